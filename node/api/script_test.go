package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/meshnet/meshnet/node/head"
	"github.com/meshnet/meshnet/p2p/wire"
	"github.com/meshnet/meshnet/route"
)

// fake answers with the steps of a script:
//
//	text "..."             one token with this text
//	token ID LP "..." "..." one token: id, log probability, bytes, text
//	note "..."             a word for whoever waits
//	sleep DURATION         takes that long
//	finish REASON | fail gap|long|bad|internal | hang
type fake struct {
	script string
	asked  chan head.Request
	gone   chan struct{} // closed when the first answer has ended
	once   sync.Once
}

var gapError = &route.GapError{First: 10, Missing: [][2]int{{10, 20}}}

func (f *fake) Generate(ctx context.Context, req head.Request, emit func(head.Delta) error) (head.Result, error) {
	defer f.once.Do(func() { close(f.gone) })
	select {
	case f.asked <- req:
	default:
	}
	res := head.Result{Session: req.Session, PromptIDs: []int32{1, 2, 3}, FirstToken: time.Millisecond}
	for line := range strings.Lines(f.script) {
		verb, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		var d head.Delta
		switch verb {
		case "":
			continue
		case "text":
			text, _ := strconv.Unquote(rest)
			d = head.Delta{Text: text, IDs: []int32{9}}
		case "token":
			var t head.TokenLogprob
			var raw string
			if _, err := fmt.Sscanf(rest, "%d %g %q %q", &t.ID, &t.Logprob, &raw, &d.Text); err != nil {
				return res, err
			}
			t.Bytes = []byte(raw)
			d.IDs = []int32{t.ID}
			if req.Logprobs {
				t.Top = []head.TokenLogprob{t}
				d.Tokens = []head.TokenLogprob{t}
			}
		case "note":
			text, _ := strconv.Unquote(rest)
			d.Note = &head.Note{Kind: head.NoteWaiting, Text: text}
		case "finish":
			res.FinishReason = rest
			return res, nil
		case "sleep":
			d, _ := time.ParseDuration(rest)
			time.Sleep(d)
			continue
		case "hang":
			<-ctx.Done()
			return res, ctx.Err()
		case "fail":
			return res, map[string]error{"gap": fmt.Errorf("plan: %w", gapError), "long": &head.TooLongError{Prompt: 9000, Context: 8192}, "internal": errors.New("boom")}[rest]
		default:
			return res, fmt.Errorf("script: %q", line)
		}
		res.Text += d.Text
		res.IDs = append(res.IDs, d.IDs...)
		if err := emit(d); err != nil {
			return res, err
		}
	}
	return res, errors.New("script has no end")
}

func newServer(t *testing.T, script string, change func(*Config)) (*Server, *fake) {
	t.Helper()
	f := &fake{script: script, asked: make(chan head.Request, 1), gone: make(chan struct{})}
	cfg := Config{
		Engine: f,
		Model:  Model{ID: "smol", Created: time.Unix(1600000000, 0), Context: 2048},
		Now:    func() time.Time { return time.Unix(1700000000, 0) },
		NewSession: func() (id wire.SessionID) {
			for i := range id {
				id[i] = byte(i + 1)
			}
			return id
		},
	}
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s, f
}

// TestTranscripts plays testdata/*.txt: what the engine does, the request, and
// the exact answer, written by hand from OpenAI's API reference.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			part := sections(string(raw))
			s, f := newServer(t, part["engine"], nil)
			line, body, _ := strings.Cut(part["request"], "\n")
			method, path, _ := strings.Cut(line, " ")
			r := httptest.NewRequest(method, path, strings.NewReader(body))
			r.Host = "localhost:8080"
			w := httptest.NewRecorder()
			s.Handler().ServeHTTP(w, r)

			headers, want, _ := strings.Cut(part["response"], "\n\n")
			status, headers, _ := strings.Cut(headers, "\n")
			if got := strconv.Itoa(w.Code); got != status {
				t.Errorf("status %s, want %s", got, status)
			}
			for h := range strings.Lines(headers) {
				name, value, _ := strings.Cut(strings.TrimSpace(h), ": ")
				if got := w.Header().Get(name); got != value {
					t.Errorf("%s: %q, want %q", name, got, value)
				}
			}
			want = strings.ReplaceAll(want, "GAP", fmt.Errorf("plan: %w", gapError).Error())
			if diff := cmp.Diff(strings.TrimRight(want, "\n"), strings.TrimRight(w.Body.String(), "\n")); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
			if part["asked"] != "" {
				if diff := cmp.Diff(part["asked"], asked(<-f.asked, part["asked"])); diff != "" {
					t.Errorf("what the engine was asked (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func sections(s string) map[string]string {
	out := map[string]string{}
	name := ""
	for line := range strings.Lines(s) {
		if rest, ok := strings.CutPrefix(line, "-- "); ok {
			name = strings.TrimSuffix(strings.TrimSpace(rest), " --")
			continue
		}
		out[name] += line
	}
	return out
}

// asked prints the fields of req that want mentions.
func asked(req head.Request, want string) string {
	var b strings.Builder
	for line := range strings.Lines(want) {
		switch field, _, _ := strings.Cut(line, " "); field {
		case "max":
			fmt.Fprintf(&b, "max %d\n", req.MaxTokens)
		case "message":
			m := req.Messages[0]
			req.Messages = req.Messages[1:]
			fmt.Fprintf(&b, "message %s %q\n", m.Role, m.Content)
		case "text":
			fmt.Fprintf(&b, "text %q\n", req.Text)
		case "ids":
			fmt.Fprintf(&b, "ids %v\n", req.IDs)
		case "stop":
			for _, s := range req.Stop {
				fmt.Fprintf(&b, "stop %q\n", s)
			}
		case "seed":
			fmt.Fprintf(&b, "seed %d\n", req.Sampling.Seed)
		case "temperature":
			fmt.Fprintf(&b, "temperature %g\n", req.Sampling.Temperature)
		}
	}
	return b.String()
}

func post(path, body string) *http.Request {
	r := httptest.NewRequest("POST", path, strings.NewReader(body))
	r.Host = "127.0.0.1:8080"
	return r
}
