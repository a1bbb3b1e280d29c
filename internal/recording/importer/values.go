package importer

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
)

// number is an unsigned integer of JSON that may stand in quotes: Kineto has written both. What is no such
// number (a name as pid, a negative stream) is not ok, and no error.
type number struct {
	n  uint64
	ok bool
}

// word is a number of 32 bits that old versions of Kineto write with a sign: ids of threads.
type word struct{ number }

// UnmarshalJSON never fails.
func (w *word) UnmarshalJSON(text []byte) error {
	if v, err := strconv.ParseInt(string(text), 10, 32); err == nil && v < 0 {
		w.n, w.ok = uint64(uint32(v)), true
		return nil
	}
	return w.number.UnmarshalJSON(text)
}

// UnmarshalJSON never fails.
func (n *number) UnmarshalJSON(text []byte) error {
	s := string(text)
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		s = s[1 : len(s)-1]
	}
	if v, err := strconv.ParseUint(s, 0, 64); err == nil {
		n.n, n.ok = v, true
	} else if f, err := strconv.ParseFloat(s, 64); err == nil && f >= 0 && f < 1<<63 {
		n.n, n.ok = uint64(f), true
	}
	return nil
}

// dimensions are a grid or a block: a list of three numbers, or a text that has them, as in "grid(100,)". A dimension
// that is not there is 1; where none is there, the shape is not known, and all are 0.
type dimensions struct{ dims [3]uint64 }

// UnmarshalJSON never fails.
func (d *dimensions) UnmarshalJSON(text []byte) error {
	n := 0
	for digits := range bytes.FieldsFuncSeq(text, func(r rune) bool { return r < '0' || r > '9' }) {
		v, err := strconv.ParseUint(string(digits), 10, 32)
		if err != nil || n == len(d.dims) {
			break
		}
		d.dims[n] = v
		n++
	}
	for ; n > 0 && n < len(d.dims); n++ {
		d.dims[n] = 1
	}
	return nil
}

// micros is a time in µs as decimal text, in ns: no floating-point number holds a wall clock to the ns.
type micros struct {
	ns uint64
	ok bool
}

// UnmarshalJSON reads a number of µs. A negative one, or one too large for a clock, is an error.
func (m *micros) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		return nil
	}
	ns, err := parseMicros(string(text))
	m.ns, m.ok = ns, err == nil
	return err
}

var errTime = errors.New("this is no time in µs")

func parseMicros(s string) (uint64, error) {
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		s = s[1 : len(s)-1]
	}
	whole, fraction := uint64(0), uint64(0)
	i := 0
	for ; i < len(s) && s[i] >= '0' && s[i] <= '9'; i++ {
		if whole > math.MaxInt64/10_000 {
			return 0, fmt.Errorf("%w that a clock can show: %.40q", errTime, s)
		}
		whole = whole*10 + uint64(s[i]-'0')
	}
	if whole >= math.MaxInt64/1000 {
		return 0, fmt.Errorf("%w that a clock can show: %.40q", errTime, s)
	}
	rest := s[i:]
	if rest == "" && i > 0 {
		return whole * 1000, nil
	}
	if i == 0 || rest[0] != '.' {
		return parseFloatMicros(s)
	}
	digits := 0
	for _, c := range []byte(rest[1:]) {
		if c < '0' || c > '9' {
			return parseFloatMicros(s)
		}
		if digits < 3 {
			fraction = fraction*10 + uint64(c-'0')
			digits++
		}
	}
	for ; digits < 3; digits++ {
		fraction *= 10
	}
	return whole*1000 + fraction, nil
}

// parseFloatMicros reads what has an exponent.
func parseFloatMicros(s string) (uint64, error) {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !(f >= 0) || f*1000 >= math.MaxInt64 {
		return 0, fmt.Errorf("%w: %.40q", errTime, s)
	}
	return uint64(math.Round(f * 1000)), nil
}
