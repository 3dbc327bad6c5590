package probe

import (
	"testing"
	"time"

	"github.com/meshnet/meshnet/shard/pool"
)

// Every loop ends, and what it measures is between what a slow and an impossible machine would reach.
func TestLimitsArePlausible(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	pr, err := New(p, 32<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer pr.Close()
	for _, m := range []struct {
		what     string
		run      func() (float64, string)
		from, to float64
	}{
		{"read", func() (float64, string) { return pr.Read(20 * time.Millisecond), "" }, 1e7, 1e13},
		{"int8", func() (float64, string) { return pr.Int8(20 * time.Millisecond) }, 1e7, 1e14},
		{"float", func() (float64, string) { return pr.Float(20 * time.Millisecond) }, 1e7, 1e13},
	} {
		v, how := m.run()
		t.Logf("%s: %.4g a second (%s)", m.what, v, how)
		if v < m.from || v > m.to {
			t.Errorf("%s: %g a second", m.what, v)
		}
	}
}

// Reading takes the streams that it is given: the last byte of the last stream is inside, one more would not be.
func TestPlainGoLoops(t *testing.T) {
	b := make([]byte, streams*1024)
	readGo(&b[0], 1024, 1024)
	read(&b[0], 1024, 1024)
	for _, l := range []loop{{"dot", 16, dotGo}, {"float", 16, floatGo}} {
		l.run(10)
	}
}

// No call may hold up the collector: 100 us is the house's bound, ten times that what a busy machine's test can tell.
func TestCallsAreShort(t *testing.T) {
	b := make([]byte, streams*piece)
	for _, c := range []struct {
		what string
		run  func()
	}{
		{"read", func() { invokeRead(&b[0], piece, piece) }}, {"int8", func() { invoke(int8Loop()) }}, {"float", func() { invoke(floatLoop()) }},
	} {
		least := time.Hour
		for range 20 {
			start := time.Now()
			c.run()
			least = min(least, time.Since(start))
		}
		t.Logf("%s: %v", c.what, least)
		if least > time.Millisecond {
			t.Errorf("a call of %s takes %v", c.what, least)
		}
	}
}
