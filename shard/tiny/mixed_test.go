package tiny

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/meshnet/meshnet/shard/gguf"
)

// The bytes are those of every machine: the self-test's hash rests on them. Each type has its blocks, neighbours in even layers
// share a type, and every tensor has the size that its dims say.
func TestMixed(t *testing.T) {
	types := []gguf.Type{gguf.F32, gguf.F16, gguf.BF16, gguf.Q8_0, gguf.Q4_0, gguf.Q4_1, gguf.Q5_0, gguf.Q5_1, gguf.Q2_K, gguf.Q3_K,
		gguf.Q4_K, gguf.Q5_K, gguf.Q6_K, gguf.IQ4_NL, gguf.IQ4_XS, gguf.MXFP4}
	all := sha256.New()
	for _, arch := range MixedArchs() {
		var b bytes.Buffer
		if err := (Mixed{Arch: arch, Types: types, Seed: 5}).Write(&b); err != nil {
			t.Fatal(err)
		}
		all.Write(b.Bytes())
		f, err := gguf.Parse(b.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		typ := func(name string) gguf.Type {
			ts, ok := f.Tensor(name)
			if !ok {
				t.Fatalf("%s: no tensor %q", arch, name)
			}
			return ts.Type
		}
		if q, k := typ("blk.0.attn_q.weight"), typ("blk.0.attn_k.weight"); q != k {
			t.Errorf("%s: q is %s beside a k of %s", arch, q, k)
		}
		if q, k := typ("blk.1.attn_q.weight"), typ("blk.1.attn_k.weight"); q == k {
			t.Errorf("%s: q and k of layer 1 are both %s", arch, q)
		}
	}
	if got, want := hex.EncodeToString(all.Sum(nil)[:8]), "24cbf1b93eb3a122"; got != want {
		t.Errorf("the models are %s, want %s", got, want)
	}
	if err := (Mixed{Arch: "gpt2", Types: types}).Write(&bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), `"gpt2"`) {
		t.Errorf("another architecture: %v", err)
	}
	if err := (Mixed{Arch: "llama"}).Write(&bytes.Buffer{}); err == nil {
		t.Error("no types is no error")
	}
}
