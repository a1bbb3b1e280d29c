package importer

import (
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
)

// FuzzMicros: a time is what the number says, to the ns, and none that a clock cannot show.
func FuzzMicros(f *testing.F) {
	for _, text := range []string{
		"1", "1.5", "\"3.25\"", "1e3", "-1", "922337203685477.999", "\"", "", ".", "0x1p3", "NaN", "9e99",
	} {
		f.Add(text)
	}
	fuzzing.Run(f, func(t *testing.T, text string) {
		ns, err := parseMicros(text)
		if err != nil {
			return
		}
		if ns > math.MaxInt64 {
			t.Errorf("%q: %d ns", text, ns)
		}
		x, err := strconv.ParseFloat(strings.Trim(text, `"`), 64)
		if err == nil && math.Abs(float64(ns)-x*1000) > 1+math.Abs(x)*1000/(1<<50) {
			t.Errorf("%q: %d ns", text, ns)
		}
	})
}
