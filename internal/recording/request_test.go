package recording_test

import (
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
)

// TestByID: a request is found by its id, with what its engine has put behind it, and no other whose id begins alike.
func TestByID(t *testing.T) {
	all := []recording.EngineRequest{{ID: "job-1"}, {ID: "job"}, {ID: "cmpl-7-0-deadbeef"}, {ID: "cmpl-70-0-deadbeef"}}
	found := recording.ByID(all)
	for id, want := range map[string]string{
		"job": "job", "job-1": "job-1", "cmpl-7": "cmpl-7-0-deadbeef", "cmpl-70": "cmpl-70-0-deadbeef",
	} {
		if q := found[id]; q == nil || q.ID != want {
			t.Errorf("%s is %+v", id, q)
		}
	}
	if q := found["cmp"]; q != nil {
		t.Errorf("%+v", q)
	}
}
