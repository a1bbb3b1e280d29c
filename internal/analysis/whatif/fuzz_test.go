package whatif

import (
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
)

// FuzzParse: what is accepted has a factor that time can be divided by, and a cause or a pattern.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"sync", "tokenize*=2", "gemm=NaN", "x=1e400", "a[=3", "=", "*=0"} {
		f.Add(text, byte(1))
	}
	fuzzing.Run(f, func(t *testing.T, text string, verb byte) {
		e, err := Parse([]Verb{Without, Faster, Kernels, Overlap}[verb%4], text)
		if err != nil {
			return
		}
		if (e.Verb == Faster || e.Verb == Kernels) && !(e.Factor > 0 && e.Factor <= 1e9) {
			t.Errorf("%q: factor %v", text, e.Factor)
		}
		if e.Pattern == "" || e.Cause > cause.Count {
			t.Errorf("%q: %+v", text, e)
		}
		e.matches(text)
	})
}
