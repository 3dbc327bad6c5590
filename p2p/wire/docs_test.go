package wire

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// docs/wire.md is checked against the code: its hex examples, kinds, codes and limits.
func wireDoc(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../../docs/wire.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// section is what stands under a heading, up to the next one.
func section(t *testing.T, doc, heading string) string {
	t.Helper()
	_, after, ok := strings.Cut(doc, "\n"+heading+"\n")
	if !ok {
		t.Fatalf("no heading %q", heading)
	}
	s, _, _ := strings.Cut(after, "\n#")
	return s
}

var hexBlock = regexp.MustCompile("(?s)```hex\n(.*?)```")

func docHex(t *testing.T, section string) []byte {
	t.Helper()
	m := hexBlock.FindAllStringSubmatch(section, -1)
	if len(m) != 1 {
		t.Fatalf("%d hex blocks instead of one in:%s", len(m), section)
	}
	b, err := hex.DecodeString(strings.Join(strings.Fields(m[0][1]), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func fieldRows(section string) int {
	return strings.Count(section, "\n| ") - 1 // without the table's head
}

func TestDocExamples(t *testing.T) {
	doc := wireDoc(t)
	for _, e := range examples() {
		k := e.frame.Kind()
		s := section(t, doc, fmt.Sprintf("### %s (%d)", k, k))
		b := docHex(t, s)
		if want := mustAppend(t, e.frame); !bytes.Equal(b, want) {
			t.Errorf("%s: the document says\n% x\nthe code\n% x", e.name, b, want)
		}
		f, n, err := Parse(b)
		if err != nil || n != len(b) || same(e.frame, f) != "" {
			t.Errorf("%s: the document's bytes give %+v, %v", e.name, f, err)
		}
		if n := fieldRows(s); n != k.elements()-1 {
			t.Errorf("%s: %d fields are described, it has %d", e.name, n, k.elements()-1)
		}
	}
	s := section(t, doc, "### The offer")
	o, err := ParseOffer(docHex(t, s))
	if err != nil || same(o, testOffer()) != "" || !bytes.Equal(docHex(t, s), mustOffer()) {
		t.Errorf("offer: %+v, %v", o, err)
	}
	if n := fieldRows(s); n != offerElements {
		t.Errorf("offer: %d fields are described, it has %d", n, offerElements)
	}
	if n := len(hexBlock.FindAllString(doc, -1)); n != len(examples())+1 {
		t.Errorf("%d hex blocks for %d examples", n, len(examples())+1)
	}
}

func TestDocCodes(t *testing.T) {
	s := section(t, wireDoc(t), "## Codes and reactions")
	rows := regexp.MustCompile(`(?m)^\| (\d+) \| (\w+) \| .* \| (.*) \|$`).FindAllStringSubmatch(s, -1)
	if len(rows) != len(Codes()) {
		t.Fatalf("%d codes are described, there are %d", len(rows), len(Codes()))
	}
	for i, c := range Codes() {
		want := fmt.Sprintf("%d %v %v", c, c, c.Reaction())
		if got := strings.Join(rows[i][1:], " "); got != want {
			t.Errorf("the document says %q, the code %q", got, want)
		}
	}
}

func TestDocLimits(t *testing.T) {
	s := section(t, wireDoc(t), "## Limits")
	for name, v := range map[string]int{
		"MaxFrame": MaxFrame, "MaxHeader": MaxHeader, "MaxOfferFrame": MaxOfferFrame, "MaxChunkRows": MaxChunkRows,
		"MaxChunkBytes": MaxChunkBytes, "MaxHidden": MaxHidden, "MaxRows": MaxRows, "MaxLayers": MaxLayers,
		"MaxTokens": MaxTokens, "MaxCacheType": MaxCacheType, "MaxPeer": MaxPeer, "MaxAddr": MaxAddr, "MaxAddrs": MaxAddrs, "MaxText": MaxText,
		"MaxNetwork": MaxNetwork, "MaxVersion": MaxVersion, "MaxRTTs": MaxRTTs, "MaxOfferBytes": MaxOfferBytes,
		"MaxOffersPerAnswer": MaxOffersPerAnswer, "MaxOffersPerRequest": MaxOffersPerRequest, "MaxOfferLife": MaxOfferLife,
	} {
		if want := fmt.Sprintf("| `%s` | %d |", name, v); !strings.Contains(s, want) {
			t.Errorf("the document lacks %q", want)
		}
	}
}
