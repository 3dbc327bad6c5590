package api

import (
	"encoding/json"
	"net/http/httptest"
	"testing"
	"unicode/utf8"
)

// FuzzRequest sends any body to both endpoints: it is answered, or refused in
// OpenAI's shape as the client's own fault.
func FuzzRequest(f *testing.F) {
	for _, body := range []string{
		`{"model":"smol",` + hi + `,"stop":["a","b"],"seed":-1,"logit_bias":{"5":-100},"logprobs":true,"top_logprobs":3}`,
		`{"prompt":[[1,2,3]],"logprobs":2,"max_tokens":5,"temperature":0.5,"top_p":0.9,"stream":true}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text"}]}]}`,
		`{"messages":[{"role":"user","content":null}],"stop":null,"stream_options":null}`,
		`{"prompt":["a"],"temperature":1e39}`, `{"prompt":{},"n":1e3}`, `{"messages":[null]}`, `[[[[`, "\xff", `"\ud800"`, `{"prompt":[1.5]}`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, path := range []string{"/v1/chat/completions", "/v1/completions"} {
			s, _ := newServer(t, "text \"a\"\nfinish stop", nil)
			w := httptest.NewRecorder()
			s.Handler().ServeHTTP(w, post(path, string(body)))
			if !utf8.Valid(w.Body.Bytes()) {
				t.Errorf("%s: the answer is not UTF-8: %q", path, w.Body)
			}
			switch w.Code {
			case 200:
			case 400, 404:
				var e struct {
					Error *struct{ Message, Type string }
				}
				if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || e.Error == nil || e.Error.Message == "" || e.Error.Type != "invalid_request_error" {
					t.Errorf("%s: %d %q, %v", path, w.Code, w.Body, err)
				}
			default:
				t.Errorf("%s: %d %q", path, w.Code, w.Body)
			}
		}
	})
}
