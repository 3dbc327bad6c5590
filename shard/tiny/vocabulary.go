package tiny

import "strings"

// space stands for a space in byte-level vocabularies.
const space = 'Ġ'

const (
	normal  int32 = 1
	control int32 = 3
)

// words become tokens, with all of their beginnings, until the vocabulary is full.
const words = " the and ing to of in is that it you he was for on are as with his they at be this have from or had by hot but some what there we can out other were all your when up use word how said an each she which do their time if will way about many then them would write like so these her long make thing see him two has look more day could go come did my sound no most number who over know water than call first people may down side been now find"

// vocabulary is three control tokens, the 256 bytes, and pieces of words. A
// merge makes a piece of the piece one letter shorter.
func vocabulary() (tokens []string, kinds []int32, merges []string) {
	seen := map[string]bool{}
	add := func(token string, kind int32) {
		tokens, kinds, seen[token] = append(tokens, token), append(kinds, kind), true
	}
	add("<|endoftext|>", control)
	add("<|im_start|>", control)
	add("<|im_end|>", control)
	for b := range 256 {
		add(string(byteRune(b)), normal)
	}
	for _, word := range strings.Fields(words) {
		word = string(space) + word
		for end := len(string(space)) + 1; end <= len(word) && len(tokens) < vocab; end++ {
			if seen[word[:end]] {
				continue
			}
			merges = append(merges, word[:end-1]+" "+word[end-1:end])
			add(word[:end], normal)
		}
	}
	return tokens, kinds, merges
}

// byteRune is the character that stands for a byte in byte-level vocabularies:
// itself if it prints, else the next one from U+0100.
func byteRune(b int) rune {
	n := rune(0)
	for c := range b {
		if !prints(c) {
			n++
		}
	}
	if prints(b) {
		return rune(b)
	}
	return 0x100 + n
}

func prints(b int) bool {
	return '!' <= b && b <= '~' || 0xa1 <= b && b <= 0xac || 0xae <= b && b <= 0xff
}
