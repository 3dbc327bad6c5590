// Package shard computes a range of a model's layers: it is the engine.
//
// A Model is an open file. An Engine holds the weights of layers [start, end)
// and applies them to rows of many sessions at once; a State is what one session
// leaves behind in them. A Head holds what stands before the first layer and
// after the last: embedding, final norm, output matrix.
//
// Invariant: the output for a row depends on the model file and on the rows of
// its session so far. Not on how layers are split over engines, how many rows
// come at once, which other sessions share the batch, how many threads compute
// it, or which instructions they use.
//
// Start with Engine.Forward; a layer is in layer.go, attention in attention.go.
package shard

import (
	"errors"
	"fmt"

	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/model"
	"github.com/meshnet/meshnet/shard/packed"
	"github.com/meshnet/meshnet/shard/pool"
)

// Model is an open model file, checked, with nothing loaded.
type Model struct {
	file   *gguf.File
	info   *model.Info
	packed *packed.Store
	sha256 [32]byte
}

// Open maps a model file and checks all that the engine will need of it.
func Open(path string) (*Model, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := model.Read(f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("model file %q: %w", path, err), f.Close())
	}
	return &Model{file: f, info: info}, nil
}

// Parse is Open for the bytes of a file, which must not change while the model is in use.
func Parse(data []byte) (*Model, error) {
	f, err := gguf.Parse(data)
	if err != nil {
		return nil, err
	}
	info, err := model.Read(f)
	if err != nil {
		return nil, err
	}
	return &Model{file: f, info: info}, nil
}

// Info describes the model. It must not be changed.
func (m *Model) Info() *model.Info { return m.info }

// File is the open file.
func (m *Model) File() *gguf.File { return m.file }

// KeepPacked makes engines and heads loaded from now on take their weights from s, where it has them, and leave them there.
// sha256 is the model file's. Packing is the same without; a nil s changes nothing.
func (m *Model) KeepPacked(s *packed.Store, sha256 [32]byte) { m.packed, m.sha256 = s, sha256 }

// Close unmaps the file. Engines may be used on; a Head, which looks up
// embeddings in the file, may not.
func (m *Model) Close() error { return m.file.Close() }

// Options say how weights are loaded and computed with.
type Options struct {
	Threads int        // of a new pool; 0: as many as the machine runs at once
	Pool    *pool.Pool // used instead of a new one; it stays the caller's to close
	CPU     string     // kernel set: "amx", "avx512", "avxvnni", "avx2", "neon", "generic"; "": the best, or what MESHNET_CPU says

	// Progress is called from the loading goroutine after every few megabytes of the file.
	Progress func(doneBytes, totalBytes int64)
}
