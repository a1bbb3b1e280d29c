package export

import (
	"bufio"
	"encoding/json"
	"strconv"
	"unicode/utf8"
)

// writer writes JSON piece by piece: a recording has millions of events, and encoding/json takes some
// microseconds for each.
type writer struct {
	*bufio.Writer
	scratch []byte
	quoted  map[string]string // JSON of long strings that come again and again: names of kernels
	err     error
}

func newWriter(w *bufio.Writer) *writer { return &writer{Writer: w, quoted: map[string]string{}} }

func (w *writer) text(s string) {
	if _, err := w.WriteString(s); err != nil && w.err == nil {
		w.err = err
	}
}

func (w *writer) put() {
	if _, err := w.Write(w.scratch); err != nil && w.err == nil {
		w.err = err
	}
}

func (w *writer) uint(n uint64) {
	w.scratch = strconv.AppendUint(w.scratch[:0], n, 10)
	w.put()
}

func (w *writer) int(n int64) {
	w.scratch = strconv.AppendInt(w.scratch[:0], n, 10)
	w.put()
}

func (w *writer) float(f float64) {
	w.scratch = strconv.AppendFloat(w.scratch[:0], f, 'g', 6, 64)
	w.put()
}

// decimal writes ns with a number of digits behind the point: 3 for µs, 9 for s.
func (w *writer) decimal(ns uint64, digits int) {
	unit := uint64(1)
	for range digits {
		unit *= 10
	}
	w.scratch = strconv.AppendUint(w.scratch[:0], ns/unit, 10)
	w.scratch = append(w.scratch, '.')
	rest := ns % unit
	for unit /= 10; unit > 0; unit /= 10 {
		w.scratch = append(w.scratch, byte('0'+rest/unit%10))
	}
	w.put()
}

// number writes `,"key":n`.
func (w *writer) number(key string, n uint64) {
	w.text(`,"`)
	w.text(key)
	w.text(`":`)
	w.uint(n)
}

// string writes `,"key":"s"`.
func (w *writer) string(key, s string) {
	w.text(`,"`)
	w.text(key)
	w.text(`":`)
	w.quote(s)
}

// triple writes `,"key":[x,y,z]`.
func (w *writer) triple(key string, t [3]uint32) {
	w.text(`,"`)
	w.text(key)
	w.text(`":[`)
	for i, n := range t {
		if i > 0 {
			w.text(",")
		}
		w.uint(uint64(n))
	}
	w.text("]")
}

// maxQuoted bounds the strings that are remembered.
const maxQuoted = 1 << 16

// quote writes a JSON string; bytes that are no UTF-8 are replaced.
func (w *writer) quote(s string) {
	if plain(s) {
		w.text(`"`)
		w.text(s)
		w.text(`"`)
		return
	}
	q, ok := w.quoted[s]
	if !ok {
		b, err := json.Marshal(s)
		if err != nil && w.err == nil {
			w.err = err
		}
		q = string(b)
		if len(w.quoted) < maxQuoted {
			w.quoted[s] = q
		}
	}
	w.text(q)
}

// plain reports whether a string stands in JSON as it is.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf || c == 0x7f {
			return false
		}
	}
	return true
}
