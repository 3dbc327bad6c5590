package tiny

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"

	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/model"
	"github.com/meshnet/meshnet/shard/token"
)

func write(t *testing.T, seed uint64) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, seed); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestSeedDecidesTheBytes(t *testing.T) {
	a := write(t, 1)
	if !bytes.Equal(a, write(t, 1)) {
		t.Error("a seed gave two files")
	}
	if bytes.Equal(a, write(t, 2)) {
		t.Error("two seeds gave one file")
	}
	// The hash peers compare. Changing the model changes it: then every node of
	// a mesh needs the same version.
	sum := sha256.Sum256(a)
	if got, want := hex.EncodeToString(sum[:]), "c98bdffe467e5012a892e613d0996e4e8d24b5ca437e8b22ede1a753b9e1c598"; got != want {
		t.Errorf("sha256 of seed 1 is %s, want %s", got, want)
	}
}

func TestWholeFileOrNone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tiny.gguf")
	if err := WriteFile(path, 1); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(b, write(t, 1)) {
		t.Errorf("the file differs from what Write gives: %v", err)
	}
	if err := WriteFile(filepath.Join(t.TempDir(), "no", "such", "folder"), 1); err == nil {
		t.Error("a missing folder is no error")
	}
}

func TestModelAndTokenizerReadIt(t *testing.T) {
	f, err := gguf.Parse(write(t, 1))
	if err != nil {
		t.Fatal(err)
	}
	info, err := model.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	if info.Layers != layers || info.Hidden != hidden || info.Vocab != vocab || info.Tied {
		t.Errorf("info is %+v", info)
	}
	tok, err := token.New(f)
	if err != nil {
		t.Fatal(err)
	}
	if tok.Size() != vocab {
		t.Errorf("%d tokens, want %d", tok.Size(), vocab)
	}
	for _, text := range []string{"Hello, what is the time?", "naïve \x00\xff bytes", "<|im_end|>"} {
		ids, err := tok.Encode(text, false)
		if err != nil {
			t.Fatal(err)
		}
		var back []byte
		for _, id := range ids {
			if id < 3 {
				t.Errorf("%q became the control token %d", text, id)
			}
			back = append(back, tok.Piece(id)...)
		}
		if string(back) != text {
			t.Errorf("%q came back as %q", text, back)
		}
	}
	if ids, err := tok.Encode(" the time", false); err != nil || len(ids) != 2 {
		t.Errorf("\" the time\" is %v (%v), want two tokens", ids, err)
	}
	if ids, err := tok.Encode("<|im_start|>", true); err != nil || len(ids) != 1 || ids[0] != 1 {
		t.Errorf("<|im_start|> is %v (%v), want [1]", ids, err)
	}
	if !tok.EOG(2) {
		t.Error("<|im_end|> does not end a turn")
	}
}
