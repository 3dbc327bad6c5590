package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/alecthomas/kong"
)

// configPath is $MESHNET_HOME/config.toml, or the XDG place where MESHNET_HOME is
// not set. The file need not exist.
func configPath(getenv func(string) string) string {
	if home := getenv("MESHNET_HOME"); home != "" {
		return filepath.Join(home, "config.toml")
	}
	if dir := getenv("XDG_CONFIG_HOME"); dir != "" {
		return filepath.Join(dir, "meshnet", "config.toml")
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".config", "meshnet", "config.toml")
	}
	return ""
}

// tomlConfig reads settings: a key is a flag's name, at the top for all verbs
// that have the flag, in a table [verb] for one. Flag beats environment beats
// file beats default.
func tomlConfig(getenv func(string) string) kong.ConfigurationLoader {
	return func(r io.Reader) (kong.Resolver, error) {
		var tree map[string]any
		if _, err := toml.NewDecoder(r).Decode(&tree); err != nil {
			return nil, fmt.Errorf("not TOML: %w", err) // kong names the file
		}
		c := &tomlResolver{getenv: getenv, path: configPath(getenv), values: map[string]string{}}
		return c, c.flatten("", tree)
	}
}

type tomlResolver struct {
	getenv func(string) string
	path   string
	values map[string]string // "listen", "join.layers"
}

func (c *tomlResolver) flatten(prefix string, tree map[string]any) error {
	for key, v := range tree {
		key = prefix + key
		switch v := v.(type) {
		case map[string]any:
			if err := c.flatten(key+".", v); err != nil {
				return err
			}
		case []any:
			parts := make([]string, len(v))
			for i, e := range v {
				parts[i] = fmt.Sprint(e)
				if strings.Contains(parts[i], ",") {
					return fmt.Errorf("%s: %q holds a comma", key, parts[i])
				}
			}
			c.values[key] = strings.Join(parts, ",")
		default:
			c.values[key] = fmt.Sprint(v)
		}
	}
	return nil
}

// Validate refuses keys that no flag has, naming those that could be meant.
func (c *tomlResolver) Validate(k *kong.Application) error {
	known := map[string]bool{}
	var names []string
	var walk func(n *kong.Node, path string)
	walk = func(n *kong.Node, path string) {
		for _, f := range n.Flags {
			known[f.Name], known[path+f.Name] = true, true
			names = append(names, path+f.Name)
		}
		for _, child := range n.Children {
			walk(child, path+child.Name+".")
		}
	}
	walk(k.Node, "")
	for key := range c.values {
		if known[key] && key != "help" {
			continue
		}
		last := key[strings.LastIndexByte(key, '.')+1:]
		var near []string
		for _, n := range names {
			if strings.HasSuffix(n, last) && !slices.Contains(near, n) {
				near = append(near, n)
			}
		}
		if len(near) > 0 {
			return fmt.Errorf("config file %s: unknown key %q; did you mean %s?", c.path, key, strings.Join(near, " or "))
		}
		return fmt.Errorf("config file %s: unknown key %q; a key is the name of a flag, alone or in the table of its verb", c.path, key)
	}
	return nil
}

// Resolve gives a flag its value from the file. Kong would let it win over the
// environment, hence the look at the flag's variables.
func (c *tomlResolver) Resolve(_ *kong.Context, parent *kong.Path, flag *kong.Flag) (any, error) {
	for _, env := range flag.Envs {
		if c.getenv(env) != "" {
			return nil, nil
		}
	}
	if node := parent.Node(); node != nil && node.Type == kong.CommandNode {
		if v, ok := c.values[commandPath(node)+"."+flag.Name]; ok {
			return v, nil
		}
	}
	if v, ok := c.values[flag.Name]; ok {
		return v, nil
	}
	return nil, nil
}

// commandPath is "model.list" for `meshnet model list`.
func commandPath(n *kong.Node) string {
	if n.Parent == nil || n.Parent.Parent == nil {
		return n.Name
	}
	return commandPath(n.Parent) + "." + n.Name
}
