package recording_test

import (
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
)

// TestActive: what is between pauses, also those that reach beyond the interval.
func TestActive(t *testing.T) {
	o := &recording.Overhead{Sources: []recording.OverheadSource{
		{Name: "a", Paused: []recording.Pause{{From: 0, To: 12}, {From: 15, To: 16}, {From: 18, To: 30}}},
	}}
	for source, want := range map[string][]recording.Interval{
		"a": {{From: 12, To: 15}, {From: 16, To: 18}},
		"b": {{From: 10, To: 20}},
	} {
		if got := o.Active(source, 10, 20); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", source, got, want)
		}
	}
	if got := (*recording.Overhead)(nil).Active("a", 10, 20); len(got) != 1 {
		t.Errorf("nobody governed it: %v", got)
	}
}
