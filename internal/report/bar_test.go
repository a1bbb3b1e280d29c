package report

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestBars(t *testing.T) {
	draw := newPen(true)
	for _, tt := range []struct {
		parts [5]uint64
		want  string
	}{
		{[5]uint64{100, 0, 0, 0, 0}, "####################"},
		{[5]uint64{50, 0, 0, 50, 0}, "##########.........."},
		{[5]uint64{0, 0, 0, 1000, 0}, "...................."},
		{[5]uint64{20, 0, 0, 980, 0}, "#..................."},   // what is there is seen
		{[5]uint64{5, 0, 0, 995, 0}, "...................."},    // unless it is next to nothing
		{[5]uint64{950, 20, 15, 15, 0}, "#################=!."}, // and takes its place from the largest
		{[5]uint64{25, 25, 25, 25, 0}, "#####=====!!!!!....."},
		{[5]uint64{30, 0, 0, 30, 40}, "######......        "},
		{[5]uint64{}, ""},
	} {
		p := tt.parts
		if got := draw.draw(p[0], p[1], p[2], p[3], p[4]); got != tt.want {
			t.Errorf("%v: %q, want %q", p, got, tt.want)
		}
	}
}

// TestBarsHaveOneLength holds that columns of bars stay columns.
func TestBarsHaveOneLength(t *testing.T) {
	draw := newPen(false)
	n := uint64(1)
	next := func() uint64 { // a linear congruential generator: the same numbers each time
		n = n*6364136223846793005 + 1442695040888963407
		return n >> 40 >> (n >> 59)
	}
	for range 10_000 {
		bar := draw.draw(next(), next(), next(), next(), 1+next())
		if got := utf8.RuneCountInString(bar); got != barWidth {
			t.Fatalf("%q has %d characters, want %d", bar, got, barWidth)
		}
	}
}

func TestASCIIHasNoOtherCharacters(t *testing.T) {
	got := string(text(t, New(gpuWait().Recording()), TextOptions{ASCII: true}))
	if !strings.Contains(got, "######============..") {
		t.Errorf("no bar of ASCII in:\n%s", got)
	}
	if strings.ContainsAny(got, "█▓▒░") {
		t.Error("it holds block characters")
	}
}
