package token

import (
	"fmt"
	"sort"
	"strings"
)

// pre is a pre-tokenizer: how a family of models cuts text into words before BPE,
// which never joins across words.
type pre struct {
	passes     []pass // each cuts the pieces of the one before
	wholeWords bool   // a word that is a token needs no merges ("ignore_merges")
	addBOS     bool   // unless the file says otherwise
	nfc        bool   // trained on text in NFC
}

func (p *pre) split(text string, yield func(string) error) error {
	return split(p.passes, text, yield)
}

func split(passes []pass, text string, yield func(string) error) error {
	if len(passes) == 0 {
		return yield(text)
	}
	return passes[0](text, func(piece string) error { return split(passes[1:], piece, yield) })
}

// family is a pre-tokenizer and the names that files give it in tokenizer.ggml.pre.
type family struct {
	names string
	make  func() *pre
}

// families lists the known pre-tokenizers. The patterns are those of the models'
// own tokenizer.json; a name that is not here is refused, because a near miss
// gives plausible but wrong ids.
func families() []family {
	return []family{
		{"gpt-2 gpt2 phi-2 mpt olmo jais trillion granite-docling gigachat a.x-4.0 mellum exaone4", func() *pre {
			return &pre{passes: []pass{scan(gpt2)}}
		}},
		{"smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", func() *pre {
			return &pre{passes: []pass{digits(1), scan(gpt2)}}
		}},
		{"qwen2 deepseek-r1-qwen kormo f2llmv2 megrez", func() *pre {
			return &pre{passes: []pass{cl100k(1, false)}, nfc: true}
		}},
		{"stablelm2 hunyuan solar-open grok-2", func() *pre {
			return &pre{passes: []pass{cl100k(1, false)}}
		}},
		{"qwen35", func() *pre {
			return &pre{passes: []pass{cl100k(1, true)}, nfc: true}
		}},
		{"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2", func() *pre {
			return &pre{passes: []pass{cl100k(3, false)}, wholeWords: true, addBOS: true}
		}},
		{"dbrx smaug-bpe chatglm-bpe glm4", func() *pre {
			return &pre{passes: []pass{cl100k(3, false)}}
		}},
		{"default", func() *pre {
			return &pre{passes: []pass{regex(`[\p{P}\$\+<=>\^~\|]+`), scan(gpt2), digits(1 << 30), regex(`[0-9][0-9][0-9]`)}}
		}},
		{"falcon", func() *pre {
			return &pre{passes: []pass{regex("[\\p{P}\\$\\+<=>\\^~\\|`]+"), scan(gpt2), regex(`[0-9][0-9][0-9]`)}}
		}},
		{"deepseek-coder", func() *pre {
			return &pre{passes: []pass{regex(`[\r\n]`), regex(`\s?\p{L}+`), regex(`\s?\p{P}+`),
				regex(`[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+`), digits(1)}}
		}},
		{"deepseek-v3 hunyuan-dense joyai-llm", func() *pre {
			return &pre{passes: []pass{digits(3), regex(`[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+`), regex(patternV3)}}
		}},
		{"gpt-4o llama4 kanana2", func() *pre {
			return &pre{passes: []pass{regex(patternO200k)}}
		}},
		{"tekken", func() *pre {
			return &pre{passes: []pass{regex(patternTekken)}, wholeWords: true, addBOS: true}
		}},
	}
}

const (
	upper = `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`
	lower = `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`
	lead  = `[^\r\n\p{L}\p{N}]?`
	short = `(?i:'s|'t|'re|'ve|'m|'ll|'d)?`
	rest  = ` ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`

	patternO200k  = lead + upper + `*` + lower + `+` + short + `|` + lead + upper + `+` + lower + `*` + short + `|\p{N}{1,3}|` + rest
	patternTekken = lead + upper + `*` + lower + `+|` + lead + upper + `+` + lower + `*|\p{N}|` + rest
	patternV3     = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+" +
		`|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

func findPre(name string) (*pre, error) {
	var known []string
	for _, f := range families() {
		for _, n := range strings.Fields(f.names) {
			if n == name {
				return f.make(), nil
			}
			known = append(known, n)
		}
	}
	if name == "" {
		return nil, fmt.Errorf("the file has no key tokenizer.ggml.pre, so how it cuts text into words is not known; convert the model again with a newer converter")
	}
	sort.Strings(known)
	return nil, fmt.Errorf("unknown pre-tokenizer %q (tokenizer.ggml.pre); known are %s", name, strings.Join(known, ", "))
}
