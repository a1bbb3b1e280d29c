package report

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/inferscope/inferscope/internal/testkit/exporttest"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// FuzzReport: whatever a recording holds and names are, the page has the two scripts and the block of data that are
// ours, the Markdown has no markup of a name's, and the text nothing that a terminal would obey.
func FuzzReport(f *testing.F) {
	f.Add([]byte{}, "python")
	f.Add([]byte("\x01\x02\x03\x04\x05\x06\x07\x08\x07\x00\x01\x01\x00\x00\x00\x00"),
		"</title></script><script>x()</script><!--\x1b[2J\u202e|*b*[x](y)`````\n# H")
	fuzzing.Run(f, func(t *testing.T, raw []byte, name string) {
		m := New(exporttest.Hostile(raw, name))
		var page, md, text bytes.Buffer
		must.NoError(t, HTML(&page, m))
		for tag, want := range map[string]int{"<script": 2, "</script": 2, "</title": 1, "</html": 1} {
			if n := strings.Count(strings.ToLower(page.String()), tag); n != want {
				t.Errorf("the page has %d times %s, want %d", n, tag, want)
			}
		}
		if n := strings.Count(page.String(), "<!--"); n != 0 || !utf8.Valid(page.Bytes()) {
			t.Errorf("the page has %d comments, or is no UTF-8", n)
		}
		must.NoError(t, Markdown(&md, m))
		if !utf8.Valid(md.Bytes()) || strings.Contains(outsideCode(md.String()), "<") {
			t.Errorf("the Markdown has HTML in it:\n%s", outsideCode(md.String()))
		}
		must.NoError(t, Text(&text, m, TextOptions{}))
		for _, r := range md.String() + text.String() {
			if r != '\n' && !unicode.IsPrint(r) {
				t.Fatalf("a report holds %U", r)
			}
		}
		must.NoError(t, JSON(io.Discard, m))
	})
}

// outsideCode leaves fenced code out, where characters mean nothing.
func outsideCode(md string) string {
	var out strings.Builder
	fence := ""
	for line := range strings.Lines(md) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case fence == "" && strings.HasPrefix(line, "```"):
			fence = line
		case fence != "" && line == fence:
			fence = ""
		case fence == "":
			out.WriteString(line + "\n")
		}
	}
	return out.String()
}
