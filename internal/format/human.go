// Package format writes numbers, times and foreign texts for people.
package format

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Nothing stands in a cell to which no number belongs.
const Nothing = "-"

// Count writes 1234567 as 1,234,567.
func Count[T uint64 | int | int64 | uint32](n T) string {
	s := strconv.FormatInt(int64(n), 10)
	if n > 0 {
		s = strconv.FormatUint(uint64(n), 10)
	}
	sign := strings.HasPrefix(s, "-")
	s = strings.TrimPrefix(s, "-")
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	if sign {
		return "-" + s
	}
	return s
}

// Plural writes a count with its noun.
func Plural[T uint64 | int](n T, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return Count(n) + " " + many
}

// three writes v with three significant digits, none of them after the unit's place.
func three(v float64) string {
	switch {
	case v >= 99.95:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 9.995:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// Span writes a duration in ns: 812 ns, 1.23 µs, 45.6 ms, 1.23 s, 2 min 3 s.
func Span(ns uint64) string {
	v := float64(ns)
	switch {
	case ns < 1000:
		return strconv.FormatUint(ns, 10) + " ns"
	case v < 999.5e3:
		return three(v/1e3) + " µs"
	case v < 999.5e6:
		return three(v/1e6) + " ms"
	case v < 119.5e9:
		return three(v/1e9) + " s"
	}
	s := uint64(math.Round(v / 1e9))
	if s < 2*3600 {
		return fmt.Sprintf("%d min %d s", s/60, s%60)
	}
	return fmt.Sprintf("%d h %d min", s/3600, s%3600/60)
}

// Size writes bytes in powers of 1000, as bandwidths are given: 812 B, 1.23 kB, 45.6 MB.
func Size(b uint64) string {
	if b < 1000 {
		return strconv.FormatUint(b, 10) + " B"
	}
	v := float64(b)
	for _, unit := range []string{"kB", "MB", "GB", "TB"} {
		v /= 1000
		if v < 999.5 {
			return three(v) + " " + unit
		}
	}
	return three(v/1000) + " PB"
}

// SignedSize is Size with a sign.
func SignedSize(b int64) string {
	if b < 0 {
		return "-" + Size(uint64(-b))
	}
	return "+" + Size(uint64(b))
}

// Rate writes a number of things per second.
func Rate(perSecond float64) string {
	if perSecond >= 99.95 {
		return Count(uint64(math.Round(perSecond))) + "/s"
	}
	return three(perSecond) + "/s"
}

// Percent writes a fraction; one that is not zero never looks like zero.
func Percent(f float64) string {
	if f > 0 && f < 0.0005 {
		return "<0.1%"
	}
	return strconv.FormatFloat(100*f, 'f', 1, 64) + "%"
}

// Moment writes a point on the wall clock. Reports use UTC: they are read
// elsewhere, and must not depend on where they are made.
func Moment(wall int64) string {
	return time.Unix(0, wall).UTC().Format("2006-01-02 15:04:05 UTC")
}

// maxText bounds a text that the target chose, in characters.
const maxText = 200

// Clean makes a text that the target chose (names, command lines, paths, errors)
// safe to print: no control characters, which could rewrite a terminal, and one line.
func Clean(s string) string { return clean(s, maxText) }

// maxSentence bounds a sentence of ours that has texts of the target in it, in characters.
const maxSentence = 1000

// CleanText is Clean for sentences of ours, which may be longer.
func CleanText(s string) string { return clean(s, maxSentence) }

func clean(s string, most int) string {
	n := 0
	for i := range s {
		if n++; n > most {
			return Printable(s[:i]) + "…"
		}
	}
	return Printable(s)
}

// Printable replaces what cannot be seen in a text by question marks: control characters, which rewrite a terminal or
// begin a line, and those that turn the direction of what follows, which make a text look like another one. Whatever a
// target or a file chose passes it, here or in Clean, before a person reads it.
func Printable(s string) string {
	if strings.IndexFunc(s, unprintable) < 0 && utf8.ValidString(s) {
		return s
	}
	return strings.Map(func(r rune) rune {
		if unprintable(r) {
			return '?'
		}
		return r
	}, s)
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// Cell is Printable for a spreadsheet, which takes a text that begins with one of these for a formula and may run it.
// It is for names; numbers are not to pass it.
func Cell(s string) string {
	if s != "" && strings.ContainsRune("=+-@\t\r\n", rune(s[0])) {
		return "'" + Printable(s)
	}
	return Printable(s)
}

// signalName names the signals that end programs: signal(7), Linux.
func signalName(n int) string {
	names := map[int]string{
		1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS",
		8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM", 24: "SIGXCPU",
		31: "SIGSYS",
	}
	if name, ok := names[n]; ok {
		return name
	}
	return "signal " + strconv.Itoa(n)
}

// Shorten cuts s to n characters at its end.
func Shorten(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}

// ShortPath cuts s to n characters at its beginning: a path ends with what tells files apart.
func ShortPath(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return "…" + string(r[len(r)-n+1:])
}

// Ending reports how a process ended, from its wait status: wait(2), and the macros of <sys/wait.h>.
func Ending(status int32) string {
	signal := int(status & 0x7f)
	switch {
	case signal == 0:
		return fmt.Sprintf("with code %d", status>>8&0xff)
	case status&0x80 != 0:
		return "by " + signalName(signal) + ", with a core dump"
	}
	return "by " + signalName(signal)
}
