package bench

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshnet/meshnet/shard"
	"github.com/meshnet/meshnet/shard/tiny"
)

func tinyFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tiny.gguf")
	if err := tiny.WriteFile(path, 1); err != nil {
		t.Fatal(err)
	}
	return path
}

// The figures hang together: runs, medians, and what tiny must do for a token by its geometry.
func TestFigures(t *testing.T) {
	r, err := Run(t.Context(), tinyFile(t), Config{Cache: shard.CacheF16, Prefill: 40, Decode: 5, Depth: 70, Batch: 3, Rounds: 4, Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.PrefillRuns) != 4 || len(r.DecodeRuns) != 4 || r.PrefillPerS <= 0 || r.DecodePerS <= 0 {
		t.Errorf("runs: %+v", r)
	}
	if r.Arch != "llama" || r.Types != "Q8_0 F32" || r.Threads != 2 || r.Kernels == "" || !strings.Contains(r.Model, "tiny") {
		t.Errorf("what was measured: %+v", r)
	}
	if r.LoadSeconds <= 0 || r.FirstTokenSeconds <= r.LoadSeconds {
		t.Errorf("loading took %g s, the first token came after %g s", r.LoadSeconds, r.FirstTokenSeconds)
	}
	// 8 layers of 128*128*2 + 128*64*2 + 128*256*3 values; and 384*128 for the last row's logits.
	ops := 2 * float64(8*(128*128*2+128*64*2+128*256*3)+384*128/40.0)
	if want := ops * r.PrefillPerS; math.Abs(r.PrefillOps/want-1) > 1e-9 {
		t.Errorf("prefill: %g operations a second, by hand %g", r.PrefillOps, want)
	}
	if want := float64(r.WeightBytes) * r.DecodePerS / 3; math.Abs(r.DecodeBytes/want-1) > 1e-9 {
		t.Errorf("decode: %g bytes a second, by hand %g", r.DecodeBytes, want)
	}
	if l := r.Limits; l.ReadBytesPerS <= 0 || l.Int8OpsPerS <= 0 || l.FloatOpsPerS <= 0 || l.Int8With == "" || r.PrefillPercent <= 0 || r.DecodePercent <= 0 {
		t.Errorf("limits: %+v, shares %g %g", l, r.PrefillPercent, r.DecodePercent)
	}
	// Q8_0 takes 34 bytes for 32 values, the output matrix 4 a value; rows are padded to 64.
	if least := int64(8*(128*128*2+128*64*2+128*256*3)*34/32 + 384*128*4); r.WeightBytes != least {
		t.Errorf("%d bytes of weights, by hand %d", r.WeightBytes, least)
	}
	if r.CacheBytes < 3*75*8*2*64 {
		t.Errorf("%d bytes of caches", r.CacheBytes)
	}
}

func TestOneOfBoth(t *testing.T) {
	path := tinyFile(t)
	r, err := Run(t.Context(), path, Config{Cache: shard.CacheF16, Decode: 2, Batch: 1, Rounds: 1, Threads: 1, CPU: "generic"})
	if err != nil || len(r.PrefillRuns) != 0 || r.PrefillPercent != 0 || r.DecodePerS <= 0 || r.Kernels != "generic" {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err = Run(t.Context(), path, Config{Cache: shard.CacheF16, Prefill: 3, Batch: 1, Rounds: 2}); err != nil || len(r.DecodeRuns) != 0 || r.PrefillPerS <= 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestRefused(t *testing.T) {
	path := tinyFile(t)
	for _, tc := range []struct {
		cfg  Config
		want string
	}{
		{Config{Batch: 1, Rounds: 1}, "nothing is left to measure"},
		{Config{Cache: shard.CacheF16, Prefill: -1, Decode: 1}, "prefill is -1, want at least 0\nbatch is 0, want at least 1\nrounds is 0"},
		{Config{Cache: shard.CacheF16, Prefill: 512, Depth: 8000, Batch: 1, Rounds: 1}, "beyond the model's context of 8192"},
		{Config{Cache: shard.CacheF16, Prefill: 5, Batch: 1, Rounds: 1, CPU: "sse"}, `"sse"`},
	} {
		if _, err := Run(t.Context(), path, tc.cfg); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v, want %q", tc.cfg, err, tc.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, path, Config{Cache: shard.CacheF16, Prefill: 5, Batch: 1, Rounds: 1}); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped: %v", err)
	}
}
