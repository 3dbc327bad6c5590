// Package sim breaks meshes in memory, thousands of them, under virtual time: the
// same head, route, hop and cache code as in earnest, between the ends of p2ptest.
// Only the engine is another: an oracle (hoptest) whose every row tells which tokens
// it was computed from, in which order and through which layers.
//
// Invariant: a scene fails unless every text is the undisturbed one, or a beginning of
// it with an error; and a failing scene says how it is played again.
// Start reading at scene.
package sim

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/meshnet/meshnet/node/head"
	"github.com/meshnet/meshnet/p2p"
	"github.com/meshnet/meshnet/p2p/p2ptest"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/route/hop"
	"github.com/meshnet/meshnet/route/hop/hoptest"
	"github.com/meshnet/meshnet/shard/gguf"
	"github.com/meshnet/meshnet/shard/tiny"
	"github.com/meshnet/meshnet/shard/token"
)

const (
	layers = 12
	hidden = 8
	answer = 6 // tokens of a chat

	patience  = 10 * time.Minute // virtual: an answer that takes longer hangs
	forgotten = 10 * time.Second // virtual: in which all peers forget a session that is over
)

// spans are the peers of a mesh: every layer has two holders, the second of them slow.
var spans = []struct {
	id         p2p.PeerID
	start, end int
}{{"a", 0, 4}, {"b", 4, 8}, {"c", 8, 12}, {"a2", 0, 4}, {"b2", 4, 8}, {"c2", 8, 12}}

// vocabulary is the tiny model's.
var vocabulary = sync.OnceValue(func() *token.Tokenizer {
	var b bytes.Buffer
	if err := tiny.Write(&b, 1); err != nil {
		panic(err)
	}
	f, err := gguf.Parse(b.Bytes())
	if err != nil {
		panic(err)
	}
	tok, err := token.New(f)
	if err != nil {
		panic(err)
	}
	return tok
})

// voice makes a token of a row: of all its bits, so that another row says another word.
type voice struct{}

// Logits implements head.Output.
func (voice) Logits(x []float32, rows int, dst []float32) error {
	clear(dst)
	n := len(dst) / rows
	for i := range rows {
		dst[i*n+int(word(x[i*hidden:(i+1)*hidden]))] = 50
	}
	return nil
}

func word(row []float32) int32 {
	h := uint64(14695981039346656037)
	for _, v := range row {
		h = (h ^ uint64(math.Float32bits(v))) * 1099511628211
	}
	tok := vocabulary()
	for id := int32(h >> 33 % uint64(tok.Size())); ; id = (id + 1) % int32(tok.Size()) {
		if !tok.EOG(id) && !tok.Control(id) {
			return id
		}
	}
}

// script is a chat as nothing disturbs it.
type script struct {
	ids    []int32           // prompt, then the answer
	prompt int               // of ids
	text   string            // of the answer
	rows   [][]float32       // that each word of the answer is made of
	at     map[int][]float32 // by layer: what goes into it, for all positions
}

// lengths are the prompts of the scripts. The last is of several frames.
var lengths = []int{24, 31, 40, 1100}

// scripts are computed from the tokens alone, without any state.
var scripts = sync.OnceValue(func() []script {
	out := make([]script, len(lengths))
	for n, length := range lengths {
		s := &out[n]
		s.prompt = length
		for i := range length {
			s.ids = append(s.ids, int32((n*53+i*7)%vocabulary().Size()))
		}
		d := vocabulary().NewDecoder()
		for range answer {
			row := hoptest.Expect(s.ids, layers, hidden, 1)
			s.rows = append(s.rows, row)
			s.ids = append(s.ids, word(row))
			s.text += d.Push(word(row))
		}
		s.text += d.Flush()
		s.at = map[int][]float32{}
		for _, p := range spans {
			s.at[p.start] = hoptest.Expect(s.ids, p.start, hidden, len(s.ids))
		}
	}
	return out
})

// scene is a mesh, chats on it, and what breaks.
type scene struct {
	repeat  string // the command that plays it again
	chats   []int  // of scripts; odd ones go through a second head if there are two
	heads   int
	latency time.Duration // of every link, one way
	row     time.Duration // to compute one
	pace    time.Duration // of the client: between two tokens
	rigid   bool          // states can't be cut, as those of recurrent layers
	forget  bool          // hops keep nothing of what they gave on
	strikes []strike      // each waits for the one before
	goes    int           // the client of the first chat goes after so many tokens; 0: it stays
	finish  bool          // nothing may keep the chats from their end

	oneID   bool                            // all chats have the same session id
	inTurns bool                            // one chat after the other
	told    func(m *mesh, chat, tokens int) // if set, is called at every token
}

// played is what became of a scene.
type played struct {
	struck    int // strikes whose border came
	gaveUp    int // chats that ended with an error
	recovered int
	slowest   time.Duration
	trace     []line
	sent      []p2ptest.Sent
	results   map[int]result // by chat
}

type result struct {
	head.Result
	err  error
	took time.Duration
}

// mesh is a scene that is played.
type mesh struct {
	*hoptest.World
	scene scene
	began time.Time
	later sync.WaitGroup // strikes, peers that are killed or come back

	mu     sync.Mutex // of what follows
	out    played
	states map[*hoptest.State]int // whose it is: of scene.chats
	epochs map[*hoptest.Volunteer]map[wire.SessionID]uint32
	down   map[p2p.PeerID]bool
	over   bool // all chats are
}

// play plays a scene and fails the test, with all that is needed to play it again, for
// whatever is not as it must be.
func play(t *testing.T, sc scene) played {
	t.Helper()
	return stage(t, sc, func(t *testing.T, m *mesh) { m.run(t) })
}

// stage is play with a plot of its own.
func stage(t *testing.T, sc scene, plot func(t *testing.T, m *mesh)) (out played) {
	t.Helper()
	scripts() // outside of the bubble: it costs time once
	had := t.Failed()
	tell := func() {
		var trace strings.Builder
		for _, l := range out.trace {
			fmt.Fprintf(&trace, "\n%9.3f ms %v", float64(l.at.Microseconds())/1000, l.what)
		}
		t.Logf("play it again: %s\nfaults: %v\ntrace:%s", sc.repeat, sc.strikes, trace.String())
	}
	defer func() {
		if p := recover(); p != nil { // a goroutine that waits for ever
			tell()
			panic(p)
		}
		if t.Failed() && !had {
			tell()
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		m := newMesh(t, sc)
		defer func() { m.mu.Lock(); out = m.out; m.mu.Unlock() }()
		defer m.close()
		plot(t, m)
	})
	return out
}

func newMesh(t *testing.T, sc scene) *mesh {
	m := &mesh{
		World: hoptest.NewWorld(t, layers, hidden), scene: sc, began: time.Now(),
		states: map[*hoptest.State]int{}, epochs: map[*hoptest.Volunteer]map[wire.SessionID]uint32{}, down: map[p2p.PeerID]bool{},
	}
	m.out.results = map[int]result{}
	m.World.Spy = m.spy
	if sc.forget {
		m.World.Keep = -1
	}
	for i, p := range spans {
		o := m.Join(p.id, p.start, p.end).Offer
		if i >= len(spans)/2 {
			o.DecodeMicros *= 3
			m.Dir.Put(o)
		}
	}
	ids := []p2p.PeerID{"head1", "head2"}
	for _, p := range spans {
		ids = append(ids, p.id)
	}
	for i, a := range ids {
		for _, b := range ids[i+1:] {
			if sc.latency > 0 {
				m.Net.Latency(a, b, sc.latency)
			}
		}
	}
	m.Net.Trace(func(s p2ptest.Sent) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.out.sent = append(m.out.sent, s)
		m.say(frame(s))
	})
	return m
}

func short(protocol string) string { return strings.Split(protocol, "/")[2] }

// line is one of a trace; it becomes words only if the scene fails.
type line struct {
	at   time.Duration
	what fmt.Stringer
}

type words string

func (w words) String() string { return string(w) }

type frame p2ptest.Sent

func (f frame) String() string {
	what := "opens"
	if f.Kind != 0 {
		what = f.Kind.String()
	}
	return fmt.Sprintf("%s to %s %s, %s", f.From, f.To, what, short(f.Protocol))
}

// say adds to the trace. The lock is held.
func (m *mesh) say(what fmt.Stringer) {
	if len(m.out.trace) < 2000 {
		m.out.trace = append(m.out.trace, line{time.Since(m.began), what})
	}
}

// run has all chats at once.
func (m *mesh) run(t *testing.T) {
	m.arm(0)
	var meshes []*head.Mesh
	for i := range max(1, m.scene.heads) {
		id := p2p.PeerID(fmt.Sprint("head", i+1))
		hm, err := head.NewMesh(head.MeshConfig{
			Client: m.Client(id), Directory: m.Dir, Embed: hoptest.Embedder{}, Head: id, Model: hoptest.Model, Layers: layers, Hidden: hidden, Logger: m.Log,
		})
		if err != nil {
			t.Fatal(err)
		}
		meshes = append(meshes, hm)
	}
	var chats sync.WaitGroup
	for i, n := range m.scene.chats {
		chats.Go(func() { m.chat(t, meshes[i%len(meshes)], i, &scripts()[n]) })
		if m.scene.inTurns {
			chats.Wait()
			m.mu.Lock()
			clear(m.epochs) // the session is over; its id may begin anew
			m.mu.Unlock()
		}
	}
	chats.Wait()
}

// checked compares every row that comes back with the script's.
type checked struct {
	head.Backend
	t      *testing.T
	n      int
	script *script
}

// Forward implements head.Backend.
func (c *checked) Forward(ctx context.Context, ids []int32, past, want int) ([]float32, error) {
	rows, err := c.Backend.Forward(ctx, ids, past, want)
	if step := len(ids) - c.script.prompt; err == nil && !slices.Equal(rows, c.script.rows[step]) {
		c.t.Errorf("chat %d: the row of position %d is not what its tokens give", c.n, len(ids)-1)
	}
	return rows, err
}

// chat is one request from its first to its last word.
func (m *mesh) chat(t *testing.T, hm *head.Mesh, n int, s *script) {
	h, err := head.New(head.Config{
		Tokenizer: vocabulary(), Output: voice{}, Hidden: hidden, Vocab: vocabulary().Size(), Context: 4096,
		Backend: func() head.Backend { return &checked{hm.Backend(), t, n, s} },
	})
	if err != nil {
		t.Error(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var text strings.Builder
	tokens, left := 0, false
	at := time.Now()
	id := wire.SessionID{byte(n + 1)}
	if m.scene.oneID {
		id = wire.SessionID{1}
	}
	res, err := h.Generate(ctx, head.Request{Session: id, IDs: s.ids[:s.prompt], MaxTokens: answer}, func(d head.Delta) error {
		text.WriteString(d.Text)
		if tokens += len(d.IDs); len(d.IDs) > 0 {
			time.Sleep(m.scene.pace)
			if m.scene.told != nil {
				m.scene.told(m, n, tokens)
			}
		}
		if n == 0 && m.scene.goes > 0 && tokens >= m.scene.goes {
			left = true
			cancel()
		}
		return nil
	})
	took := time.Since(at)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.say(words(fmt.Sprintf("chat %d: %d tokens, %s, %v", n, len(res.IDs), res.FinishReason, err)))
	m.out.slowest = max(m.out.slowest, took)
	m.out.recovered += len(res.Stats.Recoveries)
	m.out.results[n] = result{res, err, took}
	if text.String() != res.Text {
		t.Errorf("chat %d: %q was sent, the answer is %q", n, text.String(), res.Text)
	}
	if !strings.HasPrefix(s.text, res.Text) {
		t.Errorf("chat %d: %q is no beginning of %q", n, res.Text, s.text)
	}
	switch {
	case err == nil && (res.FinishReason != head.FinishLength || res.Text != s.text):
		t.Errorf("chat %d ended with %q after %q; undisturbed it is %q", n, res.FinishReason, res.Text, s.text)
	case err == nil:
	case left:
		if res.FinishReason != head.FinishCancel {
			t.Errorf("chat %d, whose client went, ended with %q: %v", n, res.FinishReason, err)
		}
	default:
		m.out.gaveUp++
		if m.scene.finish || res.FinishReason != head.FinishError || took >= patience {
			t.Errorf("chat %d ended with %q after %v: %v", n, res.FinishReason, took, err)
		}
	}
}

// close mends the mesh and looks for what is left of the chats.
func (m *mesh) close() {
	m.mu.Lock()
	m.over = true
	m.mu.Unlock()
	m.Net.ClearFaults()
	m.mend()
	m.later.Wait()
	m.mend() // what a strike that was under way has done
	if !m.Forgotten(forgotten) {
		m.T.Errorf("a peer holds a session %v after the last chat", forgotten)
	}
	m.World.Close()
}

// mend undoes what strikes have done to peers and links that are there.
func (m *mesh) mend() {
	for i, p := range spans {
		m.Net.Thaw(p.id)
		for _, h := range []p2p.PeerID{"head1", "head2"} {
			m.Net.Heal(p.id, h)
		}
		for _, q := range spans[i+1:] {
			m.Net.Heal(p.id, q.id)
		}
	}
}

// spy stands before a peer: every row that it is to compute must be the one that the
// tokens up to its position give, in a state of the same chat, and it must not take up
// an epoch after a later one.
func (m *mesh) spy(v *hoptest.Volunteer, h p2p.Handler) p2p.Handler {
	v.Engine.RowTime, v.Engine.Rigid = m.scene.row, m.scene.rigid
	v.Engine.Before = func(batch []hop.Work) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, w := range batch {
			m.checkRows(v.ID, w)
		}
		return nil
	}
	return func(ctx context.Context, s p2p.Stream) { h(ctx, &spied{Stream: s, m: m, v: v}) }
}

func (m *mesh) checkRows(id p2p.PeerID, w hop.Work) {
	st := w.State.(*hoptest.State)
	from := st.Len()
	is := func(script int) bool {
		s := &scripts()[script]
		all := s.at[st.Start()]
		return (from+w.Rows)*hidden <= len(all) && slices.Equal(w.X, all[from*hidden:(from+w.Rows)*hidden])
	}
	chat, known := m.states[st]
	if !known {
		chat = slices.IndexFunc(m.scene.chats, is)
		if chat >= 0 {
			m.states[st] = chat
		}
	}
	if chat < 0 || !is(m.scene.chats[chat]) {
		m.T.Errorf("%s computes rows [%d, %d) from layer %d on that are not those of chat %d", id, from, from+w.Rows, st.Start(), chat)
	}
}

// spied is an activation stream; the first frame of each side is read.
type spied struct {
	p2p.Stream
	m       *mesh
	v       *hoptest.Volunteer
	in, out []byte
	open    *wire.Open
	ready   bool
}

// Read implements p2p.Stream. One goroutine reads.
func (s *spied) Read(p []byte) (int, error) {
	n, err := s.Stream.Read(p)
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if s.open == nil {
		s.in = append(s.in, p[:n]...)
		if f, _, err := wire.Parse(s.in); err == nil {
			s.open, _ = f.(*wire.Open)
		}
	}
	return n, err
}

// Write implements p2p.Stream.
func (s *spied) Write(p []byte) (int, error) {
	s.m.mu.Lock()
	if !s.ready && s.open != nil && s.open.Role == wire.RoleHead {
		s.out = append(s.out, p...)
		if f, _, err := wire.Parse(s.out); err == nil {
			s.ready = true
			if _, ok := f.(*wire.Ready); ok {
				s.m.serves(s.v, s.open)
			}
		}
	}
	s.m.mu.Unlock()
	return s.Stream.Write(p)
}

// serves notes that a peer serves an epoch from now on. The lock is held.
func (m *mesh) serves(v *hoptest.Volunteer, o *wire.Open) {
	seen := m.epochs[v]
	if seen == nil {
		seen = map[wire.SessionID]uint32{}
		m.epochs[v] = seen
	}
	if o.Epoch <= seen[o.Session] {
		m.T.Errorf("%s serves epoch %d of a session after epoch %d", v.ID, o.Epoch, seen[o.Session])
	}
	seen[o.Session] = o.Epoch
}
