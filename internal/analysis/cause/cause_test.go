package cause

import (
	"regexp"
	"strings"
	"testing"
)

func TestTableIsWhole(t *testing.T) {
	keys := map[string]bool{}
	wellFormed := regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)
	table := All()
	if len(table) != int(Count) {
		t.Fatalf("%d rows, want %d", len(table), Count)
	}
	for i, c := range table {
		if c.ID != ID(i) || !wellFormed.MatchString(c.Key) || keys[c.Key] {
			t.Errorf("row %d has ID %d and key %q", i, c.ID, c.Key)
		}
		keys[c.Key] = true
		for name, text := range map[string]string{"means": c.Means, "proves": c.Proves, "refutes": c.Refutes} {
			if !strings.HasSuffix(text, ".") || len(text) < 20 {
				t.Errorf("%s: %s is no sentence: %q", c.Key, name, text)
			}
		}
		if c.Title == "" || strings.HasSuffix(c.Title, ".") {
			t.Errorf("%s: title %q", c.Key, c.Title)
		}
		if c.ID.Busy() != (c.Group == OnGPU) {
			t.Errorf("%s: busy %v, but group %d", c.Key, c.ID.Busy(), c.Group)
		}
		if len(c.Changes) < 2 {
			t.Errorf("%s: %d changes, want two or more", c.Key, len(c.Changes))
		}
		for _, change := range c.Changes {
			if change.Text == "" || change.Where == "" || strings.HasSuffix(change.Text, ".") ||
				strings.Contains(change.Example, "\t") {
				t.Errorf("%s: change %+v", c.Key, change)
			}
		}
	}
}

func TestByKey(t *testing.T) {
	for _, c := range All() {
		if got, _, ok := ByKey(c.Key); !ok || got.ID != c.ID {
			t.Errorf("%s: got %v, %v", c.Key, got.ID, ok)
		}
	}
	for typed, want := range map[string]string{
		"host_sync": "host-sync", "Host Sync": "host-sync", "hostsync": "host-sync", "sycn-copy": "sync-copy",
		"lock-": "lock", "pagefaults": "page-faults", "tokenization": "preprocessing", "throttle": "throttled",
		"pyhton-work": "python-work", "qqqqqqqqqqqq": "", "": "",
	} {
		row, nearest, ok := ByKey(typed)
		if ok {
			nearest = row.Key
		}
		if nearest != want {
			t.Errorf("%q: nearest is %q, want %q", typed, nearest, want)
		}
	}
	if Of(Count).ID != Unknown || Of(200).ID != Unknown || GIL.String() != "gil" {
		t.Error("Of a number that is no cause is not Unknown")
	}
}
