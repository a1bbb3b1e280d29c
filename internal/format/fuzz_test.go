package format

import (
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
)

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
