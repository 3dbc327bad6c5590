package chat

import "testing"

// Templates of our own that use what real ones use; what they give is Python's
// Jinja2's word (testdata/gen_jinja.py).
func TestJinja(t *testing.T) {
	for _, c := range conversations(t, "testdata/jinja.jsonl") {
		got, err := Render(t.Context(), c.Template, "<s>", "</s>", c.Messages, c.Add, inProcess{})
		if err != nil || got != c.Rendered {
			t.Errorf("%s, %d messages: %q, %v\nwant %q", c.Name, len(c.Messages), got, err, c.Rendered)
		}
	}
}
