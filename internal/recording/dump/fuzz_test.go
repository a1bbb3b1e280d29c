package dump

import (
	"bytes"
	"encoding/json"
	"testing"
	"unicode"

	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
)

// FuzzText: whatever a daemon answers, the text is finite, and holds nothing that a terminal would obey.
func FuzzText(f *testing.F) {
	seed, err := json.Marshal(example())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed, true)
	f.Add([]byte(`{"processes":[{"threads":[{"name":"\u001b[2J\u202e","frames":[{}]}]},{}]}`), false)
	fuzzing.Run(f, func(t *testing.T, answer []byte, all bool) {
		var d Dump
		if json.Unmarshal(answer, &d) != nil {
			return
		}
		var out bytes.Buffer
		if err := Text(&out, &d, TextOptions{All: all}); err != nil {
			t.Fatal(err)
		}
		if out.Len() > 4096+64*len(answer) {
			t.Errorf("%d bytes of %d", out.Len(), len(answer))
		}
		for _, r := range out.String() {
			if r != '\n' && !unicode.IsPrint(r) {
				t.Fatalf("%q: the text holds %U", answer, r)
			}
		}
	})
}
