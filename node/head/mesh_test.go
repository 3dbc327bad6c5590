package head_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/meshnet/meshnet/node/head"
	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/route/hop/hoptest"
)

const (
	testLayers = 12
	testHidden = 8
)

// chat is one session against the oracle: every step's rows are compared with an
// undisturbed run.
type chat struct {
	t   testing.TB
	b   head.Backend
	ids []int32
	did int // steps
}

func newMesh(w *hoptest.World, id p2p.PeerID) *head.Mesh {
	return newStandbyMesh(w, id, head.StandbyNone)
}

func newStandbyMesh(w *hoptest.World, id p2p.PeerID, mode head.StandbyMode) *head.Mesh {
	m, err := head.NewMesh(head.MeshConfig{
		Client: w.Client(id), Directory: w.Dir, Embed: hoptest.Embedder{}, Head: id,
		Model: hoptest.Model, Layers: w.Layers, Hidden: w.Hidden, Standby: mode, Logger: w.Log,
	})
	if err != nil {
		w.T.Fatal(err)
	}
	return m
}

func session(n int) (id wire.SessionID) {
	copy(id[:], fmt.Sprintf("session %d", n))
	return id
}

func begin(t testing.TB, b head.Backend, n, prompt int) *chat {
	t.Helper()
	if err := b.Begin(context.Background(), session(n), 4096, func(n head.Note) { t.Log("note:", n.Text) }); err != nil {
		t.Fatal(err)
	}
	c := &chat{t: t, b: b}
	for i := range prompt {
		c.ids = append(c.ids, int32(n*1000+i*7%50))
	}
	return c
}

// step answers the last token, checks it, and appends the next one.
func (c *chat) step() {
	c.t.Helper()
	past := 0
	if c.did > 0 {
		past = len(c.ids) - 1
	}
	got, err := c.b.Forward(context.Background(), c.ids, past, 1)
	if err != nil {
		c.t.Fatalf("step %d: %v", c.did, err)
	}
	if want := hoptest.Expect(c.ids, testLayers, testHidden, 1); !slices.Equal(got, want) {
		c.t.Fatalf("step %d over %d tokens differs from the undisturbed run", c.did, len(c.ids))
	}
	c.did++
	c.ids = append(c.ids, int32(c.did*31%97))
}

func (c *chat) steps(n int) {
	c.t.Helper()
	for range n {
		c.step()
	}
}

// world has three peers in a row and others who hold the same layers.
func world(t testing.TB) *hoptest.World {
	w := hoptest.NewWorld(t, testLayers, testHidden)
	if os.Getenv("MESHNET_TEST_LOG") != "" {
		w.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return w
}

func TestMeshEqualsOracle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := world(t)
		defer w.Close()
		w.Join("a", 0, 4)
		w.Join("b", 3, 9)
		w.Join("c", 8, 12)
		m := newMesh(w, "head")
		c := begin(t, m.Backend(), 1, 40)
		c.steps(20)
		st := c.b.Stats()
		t.Logf("%+v", st)
		c.b.Close()
		if !w.Forgotten(2e9) {
			t.Error("a hop still holds the session two seconds after its end")
		}
		time.Sleep(time.Second)
		for _, id := range []p2p.PeerID{"a", "b", "c"} {
			if n := w.Net.Stats(id, "head").Frames[wire.KindError]; n > 0 {
				t.Errorf("%s complained %d times about a session that just ended", id, n)
			}
		}
	})
}

// TestSessionInUse: a second request with the id of one that runs is refused, and the
// first goes on undisturbed; when that is over, the id is free.
func TestSessionInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := spares(t)
		defer w.Close()
		m := newMesh(w, "head")
		c := begin(t, m.Backend(), 1, 40)
		c.steps(2)
		for range 2 {
			b := m.Backend()
			err := b.Begin(context.Background(), session(1), 4096, nil)
			if !errors.Is(err, head.ErrBadRequest) || !strings.Contains(fmt.Sprint(err), "in use") {
				t.Errorf("a second request with the id got %v", err)
			}
			b.Close() // must not free what is another's
		}
		c.steps(3)
		if st := c.b.Stats(); len(st.Recoveries) > 0 || st.Misses > 0 {
			t.Errorf("the first was disturbed: %+v", st)
		}
		c.b.Close()
		if n := len(m.Live()); n != 0 {
			t.Errorf("%d sessions live after the end", n)
		}
		c = begin(t, m.Backend(), 1, 40)
		defer c.b.Close()
		c.steps(2)
	})
}
