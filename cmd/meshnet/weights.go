package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/meshnet/meshnet/cache"
	"github.com/meshnet/meshnet/cache/blob"
	"github.com/meshnet/meshnet/cache/catalog"
	"github.com/meshnet/meshnet/node"
	"github.com/meshnet/meshnet/node/head"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/shard"
	"github.com/meshnet/meshnet/shard/chat"
	"github.com/meshnet/meshnet/shard/packed"
	"github.com/meshnet/meshnet/shard/pool"
	"github.com/meshnet/meshnet/shard/tiny"
)

// openStore is the list of known models and the store of those that are here.
func (a *app) openStore() (*catalog.Catalog, *blob.Store, error) {
	list, err := catalog.New()
	if err != nil {
		return nil, nil, fail(exitModel, err)
	}
	store, err := blob.Open(filepath.Join(a.home, "blobs"))
	if err != nil {
		return nil, nil, fail(exitModel, fmt.Errorf("open the model store: %w", err))
	}
	return list, store, nil
}

func resolveOptions(s *blob.Store, p catalog.Progress) catalog.Options {
	return catalog.Options{Store: s, Progress: p, Tiny: tiny.WriteFile}
}

// weights is a model file that is here, checked and mapped.
type weights struct {
	catalog.Local
	model *shard.Model
}

// findModel finds a model's file, fetching it if need be.
func (a *app) findModel(ref string) (catalog.Local, error) {
	list, store, err := a.openStore()
	if err != nil {
		return catalog.Local{}, err
	}
	bar := newProgress(a)
	defer bar.Done()
	l, err := list.Resolve(a.ctx, ref, resolveOptions(store, bar))
	return l, fail(exitModel, err)
}

// modelPath is where a model's file is: the path itself when ref is one, else that of the store, fetched if need be. For verbs
// that read a file once, for which a copy in the store would be a waste.
func (a *app) modelPath(ref string) (string, error) {
	if info, err := os.Stat(ref); err == nil && info.Mode().IsRegular() {
		return ref, nil
	}
	l, err := a.findModel(ref)
	return l.Path, err
}

// openModel finds and maps a model file.
func (a *app) openModel(ref string) (*weights, error) {
	l, err := a.findModel(ref)
	if err != nil {
		return nil, err
	}
	store, err := a.openPacked()
	if err != nil {
		return nil, err
	}
	m, err := shard.Open(l.Path)
	if err != nil {
		return nil, fail(exitModel, err)
	}
	m.KeepPacked(store, l.SHA256)
	return &weights{l, m}, nil
}

// openPacked is the store of packed weights, nil if it is off or cannot be had: that costs time at the next start only.
func (a *app) openPacked() (*packed.Store, error) {
	if a.packedMax == "" || a.packedMax == "off" {
		return nil, nil
	}
	limit, err := cache.ParseBytes(a.packedMax)
	if err != nil || limit < 0 {
		return nil, usage("--packed %q: give a size such as 16GiB, or off", a.packedMax)
	}
	store, err := packed.Open(a.packedDir(), limit)
	if err != nil {
		a.log.Info("packed weights are not kept", "err", err)
		return nil, nil
	}
	return store, nil
}

func (a *app) packedDir() string { return filepath.Join(a.home, "packed") }

// forgetPacked removes the packed weights of a model, if there are any.
func (a *app) forgetPacked(sha256 [32]byte) {
	if _, err := os.Stat(a.packedDir()); err != nil {
		return
	}
	if store, err := packed.Open(a.packedDir(), 0); err == nil {
		store.Forget(sha256)
	}
}

func (w *weights) info() node.ModelInfo {
	return node.ModelInfo{Name: w.Name, Fingerprint: wire.Fingerprint(w.SHA256), Layers: w.model.Info().Layers}
}

// runner renders chat templates in children of this program.
func runner() (chat.Runner, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program, to render chat templates in a child: %w", err)
	}
	return chat.NewRunner(exe, "render-template"), nil
}

// localHead has all layers in this process.
type localHead struct {
	*head.Head
	close func()
}

// loadLocal loads the whole model; its sessions keep their states as cache.
func (a *app) loadLocal(w *weights, cache wire.CacheType) (*localHead, error) {
	p := pool.New(a.threads)
	bar := newProgress(a)
	engine, err := w.model.LoadRange(0, w.model.Info().Layers, shard.Options{Pool: p, Progress: bar.late("loading " + w.Name)})
	bar.Done()
	if err != nil {
		p.Close()
		return nil, fail(exitModel, err)
	}
	out, err := w.model.LoadHead(shard.Options{Pool: p})
	if err != nil {
		engine.Close()
		p.Close()
		return nil, fail(exitModel, err)
	}
	closeAll := func() {
		out.Close()
		engine.Close()
		p.Close()
	}
	info := w.model.Info()
	source := func(stateless bool) head.NewBackend {
		return head.NewLocal(node.HopEngine(engine), out, info.Layers, info.Hidden, cache, stateless).Backend
	}
	run, err := runner()
	if err == nil {
		var h *head.Head
		if h, err = head.ForModel(w.model, out, run, source(false), source(true)); err == nil {
			return &localHead{h, closeAll}, nil
		}
	}
	closeAll()
	return nil, fail(exitModel, err)
}
