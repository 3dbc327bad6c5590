// Package fake is a stand-in for the meshnet binary that the tests of testnet run:
// it starts at once and says what a mesh would, so that the tests are about
// processes and not about models. A test binary becomes it by calling Main first.
//
// Invariant: it takes the very flags that testnet gives; an unknown one is an error.
package fake

import (
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
)

// Env makes a process the fake; FAKE_DIE=NAME makes that node fail at its start,
// and a chat of the prompt "fail" ends with code 4.
const Env = "FAKE_MESHNET=1"

// Main never returns in a process that is meant to be the fake.
func Main() {
	if os.Getenv("FAKE_MESHNET") != "1" || len(os.Args) < 2 {
		return
	}
	os.Exit(run(os.Args[1], os.Args[2:]))
}

type flags struct {
	name, layers, listen, prompt string
	json, events                 bool
	tokens                       int
	rest                         []string
}

func parse(verb string, args []string) flags {
	var f flags
	set := flag.NewFlagSet(verb, flag.ExitOnError)
	set.StringVar(&f.name, "name", "", "")
	set.StringVar(&f.layers, "layers", "", "")
	set.StringVar(&f.listen, "listen", "", "")
	set.StringVar(&f.prompt, "prompt", "", "")
	set.BoolVar(&f.json, "json", false, "")
	set.BoolVar(&f.events, "events", false, "")
	set.IntVar(&f.tokens, "tokens", 0, "")
	for _, s := range []string{"model", "threads", "network", "nice", "pause", "announce", "dial-from", "temp", "seed", "ids", "port"} {
		set.String(s, "", "")
	}
	set.Func("peer", "", func(string) error { return nil })
	for _, b := range []string{"v", "no-mdns", "no-quic", "mesh"} {
		set.Bool(b, false, "")
	}
	set.Parse(args)
	f.rest = set.Args()
	return f
}

func run(verb string, args []string) int {
	home := os.Getenv("MESHNET_HOME")
	if verb == "model" {
		verb, args = "model "+args[0], args[1:]
	}
	f := parse(verb, args)
	switch verb {
	case "model list":
		say(map[string]any{"home": os.Getenv("FAKE_HOME")})
	case "model pull":
		say(map[string]any{"models": []any{map[string]any{"path": "fake.gguf"}}})
	case "model show":
		say(map[string]any{"shape": map[string]any{"layers": 12}})
	case "join":
		return join(home, f)
	case "serve":
		say(map[string]any{"url": "http://127.0.0.1:1/v1"})
		wait()
	case "chat", "generate":
		return answer(verb, f)
	default:
		fmt.Fprintln(os.Stderr, "unknown verb", verb)
		return 2
	}
	return 0
}

func say(v any) { json.NewEncoder(os.Stdout).Encode(v) }

func wait() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGTERM, syscall.SIGINT)
	<-c
}

// answer ends with the whole command line as its text.
func answer(verb string, f flags) int {
	prompt := strings.Join(append(f.rest, f.prompt), "")
	if prompt == "fail" {
		fmt.Fprintln(os.Stderr, "nobody offers layers 3 to 5")
		return 4
	}
	report := map[string]any{"text": strings.Join(os.Args[1:], " "), "ids": []int{f.tokens}, "finish_reason": "stop"}
	if !f.events {
		say(report)
		return 0
	}
	say(map[string]any{"note": "a route"})
	say(map[string]any{"text": "he", "tokens": 1})
	say(map[string]any{"text": "llo", "tokens": 2})
	say(map[string]any{"report": report})
	return 0
}

// join serves the control socket until SIGTERM.
func join(home string, f flags) int {
	fmt.Println("fake", f.name, "starts")
	if os.Getenv("FAKE_DIE") == f.name {
		fmt.Fprintln(os.Stderr, "no layers for me")
		return 1
	}
	dir := filepath.Join(home, "nodes", f.name)
	id, err := identity(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	socket := filepath.Join(dir, "control.sock")
	os.Remove(socket)
	l, err := net.Listen("unix", socket)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	sessions := 2
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		json.NewEncoder(w).Encode(map[string]any{
			"node":     map[string]any{"name": f.name, "state": "online", "peer": id},
			"peers":    peers(home),
			"sessions": []any{map[string]any{"session": "ab12", "rows": 40}},
			"cache":    map[string]any{"ttl": os.Getenv("MESHNET_SHARD_CACHE_TTL_SECONDS")},
		})
	})
	mux.HandleFunc("POST /evict", func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Session string }
		json.NewDecoder(r.Body).Decode(&body)
		if body.Session != "all" {
			http.Error(w, fmt.Sprintf("no session %q", body.Session), http.StatusBadRequest)
			return
		}
		json.NewEncoder(w).Encode(map[string]int{"evicted": sessions})
		sessions = 0
	})
	go http.Serve(l, mux)
	wait()
	fmt.Println("fake", f.name, "leaves")
	return 0
}

func identity(dir string) (string, error) {
	b, err := os.ReadFile(filepath.Join(dir, "identity.key"))
	if err != nil {
		return "", err
	}
	key, err := crypto.UnmarshalPrivateKey(b)
	if err != nil {
		return "", err
	}
	id, err := peer.IDFromPrivateKey(key)
	return id.String(), err
}

// peers is every identity under home.
func peers(home string) []map[string]any {
	var all []map[string]any
	dirs, _ := filepath.Glob(filepath.Join(home, "nodes", "*"))
	for _, d := range dirs {
		if id, err := identity(d); err == nil {
			all = append(all, map[string]any{"peer": id, "state": "online"})
		}
	}
	return all
}
