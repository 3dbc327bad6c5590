package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/meshnet/meshnet/p2p/wire"
)

// qualityTokens are scored in one context: with 49,152 logits each, 400 MB a file.
const qualityTokens = 2000

// quality shows what computing with quantized rows costs: for each file, the
// divergence of our logits and of the reference engine's from a float forward pass
// over the same weights, and both engines' perplexity; ours with each type of cache.
//
// The float pass is the reference engine's too, over the file's weights as F32: so it
// is independent of our engine, but for the reading of the types, which other tests
// hold against their own references. -ref must write the logits of the ids of the file
// $IDS (separated by commas), of all positions, of the model $MODEL to $OUT as .npy;
// with EXACT=1 it must keep its cache in float32.
func (m *measure) quality(files []string) error {
	if m.ref == "" || m.text == "" || len(files) == 0 {
		return errors.New("quality needs -ref COMMAND, -text FILE, and the GGUF files to compare as arguments")
	}
	text, err := os.ReadFile(m.text)
	if err != nil {
		return err
	}
	fmt.Println("| file | cache | perplexity: float | ours | reference | mean KL, nats: ours | reference | ours − reference ± standard error | ours − ours with f32 ± standard error |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|")
	for _, file := range files {
		r, err := m.qualityOf(file, string(text))
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for i, c := range wire.AllCacheTypes.Names() {
			ours := &r.ours[i]
			diff, deviation := difference(ours.kl, r.theirs.kl)
			more, spread := difference(ours.kl, r.ours[0].kl)
			fmt.Printf("| %s | %s | %.3f | %.3f | %.3f | %.5f | %.5f | %+.5f ± %.5f | %+.6f ± %.6f |\n", filepath.Base(file), c,
				math.Exp(r.exact), math.Exp(ours.nll), math.Exp(r.theirs.nll), mean(ours.kl), mean(r.theirs.kl), diff, deviation, more, spread)
		}
	}
	return nil
}

// distance is what lies between two engines, in nats: the divergence at each scored position, and the mean log loss.
type distance struct {
	kl  []float64
	nll float64
}

type qualities struct {
	exact  float64 // NLL of the float pass
	theirs distance
	ours   []distance // by type of cache
}

// difference is the mean of a − b and its standard error.
func difference(a, b []float64) (diff, deviation float64) {
	d := make([]float64, len(a))
	for i := range d {
		d[i] = a[i] - b[i]
	}
	diff = mean(d)
	for _, x := range d {
		deviation += (x - diff) * (x - diff)
	}
	n := float64(len(d))
	return diff, math.Sqrt(deviation / (n - 1) / n)
}

func mean(x []float64) (m float64) {
	for _, v := range x {
		m += v / float64(len(x))
	}
	return m
}

func (m *measure) qualityOf(file, text string) (qualities, error) {
	var q qualities
	ids, err := m.tokenIDs(file, text)
	if err != nil {
		return q, err
	}
	idsFile, exactFile := filepath.Join(m.dir, "ids"), filepath.Join(m.dir, "exact.gguf")
	list := strings.Trim(strings.ReplaceAll(fmt.Sprint(ids), " ", ","), "[]")
	if err := os.WriteFile(idsFile, []byte(list), 0o600); err != nil {
		return q, err
	}
	if err := m.shell(m.binary, "model", "quantize", "--force", file, exactFile, "F32"); err != nil {
		return q, err
	}
	defer os.Remove(exactFile)
	logits := func(name string, run func(out string) error) (*matrix, error) {
		out := filepath.Join(m.dir, name+".npy")
		defer os.Remove(out)
		if err := run(out); err != nil {
			return nil, err
		}
		return readNPY(out, len(ids))
	}
	ref := func(name, model string, exact int) (*matrix, error) {
		return logits(name, func(out string) error {
			cmd := exec.CommandContext(m.ctx, "sh", "-c", m.ref)
			cmd.Env = append(os.Environ(), "MODEL="+model, "IDS="+idsFile, "OUT="+out, fmt.Sprintf("EXACT=%d", exact))
			cmd.Stderr = os.Stderr
			return cmd.Run()
		})
	}
	exact, err := ref("exact", exactFile, 1)
	if err != nil {
		return q, fmt.Errorf("the float pass: %w", err)
	}
	theirs, err := ref("theirs", file, 0)
	if err != nil {
		return q, fmt.Errorf("the reference: %w", err)
	}
	q.theirs = exact.compare(theirs, ids)
	q.exact = exact.compare(exact, ids).nll
	for _, c := range wire.AllCacheTypes.Names() {
		ours, err := logits("ours", func(out string) error {
			return m.shell(m.binary, "generate", "--model", file, "--cache-type", c, "--ids", list, "--tokens", "1", "--logits", out)
		})
		if err != nil {
			return q, err
		}
		q.ours = append(q.ours, exact.compare(ours, ids))
	}
	return q, nil
}

func (m *measure) shell(name string, args ...string) error {
	cmd := exec.CommandContext(m.ctx, name, args...)
	cmd.Stderr = os.Stderr
	return cmd.Run()
}

// tokenIDs are the first ids of a text as the file's tokenizer cuts it.
func (m *measure) tokenIDs(file, text string) ([]int32, error) {
	out, err := exec.CommandContext(m.ctx, m.binary, "generate", "--model", file, "--raw", "--prompt", text, "--tokens", "1", "--json").Output()
	if err != nil {
		return nil, fmt.Errorf("generate: %w", err)
	}
	var got struct {
		IDs []int32 `json:"prompt_ids"`
	}
	if err := json.Unmarshal(out, &got); err != nil {
		return nil, err
	}
	return got.IDs[:min(len(got.IDs), qualityTokens)], nil
}

// matrix is float32 logits, a row a position.
type matrix struct {
	rows, cols int
	values     []float32
}

// compare is the distance of x from m at the positions whose next id is known.
func (m *matrix) compare(x *matrix, ids []int32) (d distance) {
	d.kl = make([]float64, len(ids)-1)
	for i := range d.kl {
		p, q := m.logSoftmax(i), x.logSoftmax(i)
		for j := range p {
			d.kl[i] += math.Exp(p[j]) * (p[j] - q[j])
		}
		d.nll -= q[ids[i+1]] / float64(len(d.kl))
	}
	return d
}

func (m *matrix) logSoftmax(row int) []float64 {
	x := m.values[row*m.cols : (row+1)*m.cols]
	top, sum := math.Inf(-1), 0.0
	for _, v := range x {
		top = max(top, float64(v))
	}
	for _, v := range x {
		sum += math.Exp(float64(v) - top)
	}
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = float64(v) - top - math.Log(sum)
	}
	return out
}

// readNPY reads a little-endian float32 array of rows rows (NumPy's format 1.0, which
// both programs write).
func readNPY(path string, rows int) (*matrix, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if len(b) < 10 || string(b[:8]) != "\x93NUMPY\x01\x00" {
		return nil, fmt.Errorf("%s: not a .npy file of version 1.0", path)
	}
	start := 10 + int(binary.LittleEndian.Uint16(b[8:]))
	var n, cols int
	if start > len(b) || !strings.Contains(string(b[10:start]), "'<f4'") {
		return nil, fmt.Errorf("%s: not of float32", path)
	}
	_, shape, _ := strings.Cut(string(b[10:start]), "'shape':")
	if _, err := fmt.Sscanf(strings.TrimSpace(shape), "(%d, %d)", &n, &cols); err != nil || n != rows || len(b)-start != 4*n*cols {
		return nil, fmt.Errorf("%s: shape %q, want %d rows", path, shape, rows)
	}
	m := &matrix{n, cols, make([]float32, n*cols)}
	for i := range m.values {
		m.values[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[start+4*i:]))
	}
	return m, nil
}
