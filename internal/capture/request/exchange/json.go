package exchange

import (
	"bytes"
	"sync"
)

// maxDepth is how deep objects and arrays are followed; what lies deeper is skipped.
const maxDepth = 16

// value is what a member of a JSON object has.
type value struct {
	kind byte   // '"' string, '0' number, 't' true, 'f' false, 'n' null, '[' array, '{' object
	raw  []byte // of a string its text, still escaped; of a number its digits; of an array or object nothing
	some bool   // it is not empty: a string with text, an array or object with something in it
}

// scan visits the members of objects in text that may end anywhere, with the keys that lead to them; arrays are passed
// through. It copies nothing. A visit that returns false ends the scan.
func scan(b []byte, visit func(path [][]byte, v value) bool) {
	s := scanners.Get().(*scanner)
	s.b, s.visit = b, visit
	s.run()
	*s = scanner{} // nothing of the text is kept
	scanners.Put(s)
}

// scanners are used again: each chunk of an answer is scanned.
var scanners = sync.Pool{New: func() any { return new(scanner) }}

type scanner struct {
	b     []byte
	at    int
	keys  [maxDepth][]byte // the key that each open object is at
	open  [maxDepth]byte   // '{' or '['
	path  [maxDepth][]byte // the keys of objects alone: what visit gets
	depth int
	visit func(path [][]byte, v value) bool
}

func (s *scanner) run() {
	inKey := false
	for s.at < len(s.b) {
		switch c := s.b[s.at]; c {
		case '{', '[':
			if s.depth == maxDepth || !s.say(value{kind: c, some: s.follows(c)}) {
				return
			}
			s.open[s.depth], s.keys[s.depth] = c, nil
			s.depth++
			s.at++
			inKey = c == '{'
		case '}', ']':
			if s.depth == 0 {
				return
			}
			s.depth--
			s.at++
			inKey = false
		case ',':
			s.at++
			inKey = s.depth > 0 && s.open[s.depth-1] == '{'
		case ':':
			s.at++
			inKey = false
		case '"':
			text, whole := s.text()
			if inKey {
				if !whole {
					return
				}
				s.keys[s.depth-1] = text
				continue
			}
			if !s.say(value{kind: '"', raw: text, some: len(text) > 0}) || !whole {
				return
			}
		case ' ', '\t', '\r', '\n':
			s.at++
		default:
			raw := s.word()
			if len(raw) == 0 {
				return
			}
			kind := raw[0]
			if kind == '-' || kind >= '0' && kind <= '9' {
				if s.at == len(s.b) && s.depth > 0 {
					return // it may go on
				}
				kind = '0'
			}
			if !s.say(value{kind: kind, raw: raw, some: kind != 'n'}) {
				return
			}
		}
	}
}

// say visits a value that has a key.
func (s *scanner) say(v value) bool {
	n := 0
	for i := range s.depth {
		if s.open[i] == '{' {
			s.path[n] = s.keys[i]
			n++
		}
	}
	if n == 0 {
		return true
	}
	return s.visit(s.path[:n], v)
}

// follows reports whether an object or array has something in it.
func (s *scanner) follows(c byte) bool {
	for _, next := range s.b[s.at+1:] {
		switch next {
		case ' ', '\t', '\r', '\n':
			continue
		case '}', ']':
			return next != c+2
		}
		return true
	}
	return false
}

// text passes a string and returns what is between its quotes; whole: its end is there.
func (s *scanner) text() (text []byte, whole bool) {
	from := s.at + 1
	for i := from; i < len(s.b); i++ {
		switch s.b[i] {
		case '\\':
			i++
		case '"':
			s.at = i + 1
			return s.b[from:i], true
		}
	}
	s.at = len(s.b)
	return s.b[min(from, len(s.b)):], false
}

// word passes a number or a name.
func (s *scanner) word() []byte {
	from := s.at
	for s.at < len(s.b) {
		c := s.b[s.at]
		if c != '-' && c != '+' && c != '.' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && c != 'E' {
			break
		}
		s.at++
	}
	return s.b[from:s.at]
}

// number returns a natural number of at most 9 digits.
func (v value) number() (n uint32, ok bool) {
	if v.kind != '0' || len(v.raw) == 0 || len(v.raw) > 9 {
		return 0, false
	}
	for _, c := range v.raw {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + uint32(c-'0')
	}
	return n, true
}

// is reports whether a path consists of these keys.
func is(path [][]byte, keys ...string) bool {
	if len(path) != len(keys) {
		return false
	}
	for i, k := range keys {
		if string(path[i]) != k {
			return false
		}
	}
	return true
}

// member returns the number that the last member of this name has, in text whose beginning is not known. A quote
// inside of a string is escaped, so that what looks like a key is one.
func member(b []byte, key string) (n uint32, ok bool) {
	quoted := []byte(`"` + key + `":`)
	at := bytes.LastIndex(b, quoted)
	if at < 0 || at > 0 && b[at-1] == '\\' {
		return 0, false
	}
	s := scanner{b: bytes.TrimLeft(b[at+len(quoted):], " ")}
	raw := s.word()
	if s.at == len(s.b) {
		return 0, false
	}
	return value{kind: '0', raw: raw}.number()
}
