package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// nothing stands in a cell to which no number belongs.
const nothing = "-"

// count writes 1234567 as 1,234,567.
func count[T uint64 | int | int64 | uint32](n T) string {
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

// plural writes a count with its noun.
func plural[T uint64 | int](n T, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return count(n) + " " + many
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

// span writes a duration in ns: 812 ns, 1.23 µs, 45.6 ms, 1.23 s, 2 min 3 s.
func span(ns uint64) string {
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

// size writes bytes in powers of 1000, as bandwidths are given: 812 B, 1.23 kB, 45.6 MB.
func size(b uint64) string {
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

// signedSize is size with a sign.
func signedSize(b int64) string {
	if b < 0 {
		return "-" + size(uint64(-b)) //nolint:gosec // b is negative
	}
	return "+" + size(uint64(b)) //nolint:gosec // b is not negative
}

// rate writes a number of things per second.
func rate(perSecond float64) string {
	if perSecond >= 99.95 {
		return count(uint64(math.Round(perSecond))) + "/s"
	}
	return three(perSecond) + "/s"
}

// percent writes a fraction; one that is not zero never looks like zero.
func percent(f float64) string {
	if f > 0 && f < 0.0005 {
		return "<0.1%"
	}
	return strconv.FormatFloat(100*f, 'f', 1, 64) + "%"
}

// moment writes a point on the wall clock. Reports use UTC: they are read
// elsewhere, and must not depend on where they are made.
func moment(wall int64) string {
	return time.Unix(0, wall).UTC().Format("2006-01-02 15:04:05 UTC")
}

// maxText bounds a text that the target chose, in characters.
const maxText = 200

// clean makes a text that the target chose (names, command lines, paths, errors)
// safe to print: no control characters, which could rewrite a terminal, and one line.
func clean(s string) string {
	var b strings.Builder
	n := 0
	for _, r := range s {
		if n++; n > maxText {
			b.WriteRune('…')
			break
		}
		if !unicode.IsPrint(r) {
			r = '?'
		}
		b.WriteRune(r)
	}
	return b.String()
}

// signalName names the signals that end programs: signal(7), Linux.
func signalName(n int) string {
	names := map[int]string{
		1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS",
		8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM", 24: "SIGXCPU", 31: "SIGSYS",
	}
	if name, ok := names[n]; ok {
		return name
	}
	return "signal " + strconv.Itoa(n)
}
