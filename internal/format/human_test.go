package format

import (
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
)

func TestNumbers(t *testing.T) {
	tests := []struct{ got, want string }{
		{Count(uint64(0)), "0"},
		{Count(999), "999"},
		{Count(1000), "1,000"},
		{Count(uint64(1234567)), "1,234,567"},
		{Count(int64(-1234567)), "-1,234,567"},
		{Count(^uint64(0)), "18,446,744,073,709,551,615"},
		{Span(0), "0 ns"},
		{Span(999), "999 ns"},
		{Span(1000), "1.00 µs"},
		{Span(1234), "1.23 µs"},
		{Span(45_678), "45.7 µs"},
		{Span(999_400), "999 µs"},
		{Span(999_500), "1.00 ms"},
		{Span(9_996_000), "10.0 ms"},
		{Span(1_500_000_000), "1.50 s"},
		{Span(119_000_000_000), "119 s"},
		{Span(125_000_000_000), "2 min 5 s"},
		{Span(7200_000_000_000), "2 h 0 min"},
		{Size(0), "0 B"},
		{Size(999), "999 B"},
		{Size(1000), "1.00 kB"},
		{Size(999_499), "999 kB"},
		{Size(999_500), "1.00 MB"},
		{Size(2 << 30), "2.15 GB"},
		{Size(^uint64(0)), "18447 PB"},
		{SignedSize(-2000), "-2.00 kB"},
		{SignedSize(0), "+0 B"},
		{Rate(0), "0.00/s"},
		{Rate(45000.4), "45,000/s"},
		{Rate(12.34), "12.3/s"},
		{Percent(0), "0.0%"},
		{Percent(0.0001), "<0.1%"},
		{Percent(0.5), "50.0%"},
		{Percent(2.5), "250.0%"},
		{Clean("a\x1b[31m\nb"), "a?[31m?b"},
		{Plural(1, "call", "calls"), "1 call"},
		{Plural(uint64(2000), "call", "calls"), "2,000 calls"},
		{signalName(9), "SIGKILL"},
		{signalName(40), "signal 40"},
		{Shorten("abcdef", 4), "abc…"},
		{ShortPath("/usr/lib/libcuda.so", 8), "…cuda.so"},
	}
	for _, tt := range tests {
		if tt.got != tt.want {
			t.Errorf("got %q, want %q", tt.got, tt.want)
		}
	}
}

func TestEndings(t *testing.T) {
	tests := []struct {
		status int32
		want   string
	}{
		{
			0,
			"with code 0",
		}, {1 << 8, "with code 1"}, {255 << 8, "with code 255"}, {9, "by SIGKILL"}, {
			139, "by SIGSEGV, with a core dump",
		},
	}
	for _, tt := range tests {
		if got := Ending(tt.status); got != tt.want {
			t.Errorf("status %d: %q, want %q", tt.status, got, tt.want)
		}
	}
}

// FuzzClean: whatever a target is called, what is printed is one line of a bounded length that can rewrite no terminal.
func FuzzClean(f *testing.F) {
	f.Add("python\x1b[2J\r\n\u202eevil\u200b\xff", 7)
	fuzzing.Run(f, func(t *testing.T, s string, n int) {
		for _, got := range []string{Clean(s), CleanText(s)} {
			if utf8.RuneCountInString(got) > maxSentence+1 || !utf8.ValidString(got) {
				t.Errorf("%q: %q", s, got)
			}
			for _, r := range got {
				if !unicode.IsPrint(r) {
					t.Errorf("%q: %q has %U", s, got, r)
				}
			}
		}
		if again := Clean(Clean(s)); utf8.RuneCountInString(s) <= maxText && again != Clean(s) {
			t.Errorf("%q: %q, cleaned again %q", s, Clean(s), again)
		}
		if n = 1 + n&0xff; utf8.RuneCountInString(Shorten(s, n)) > n || utf8.RuneCountInString(ShortPath(s, n)) > n {
			t.Errorf("%q is longer than %d: %q, %q", s, n, Shorten(s, n), ShortPath(s, n))
		}
	})
}
