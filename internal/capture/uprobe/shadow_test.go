package uprobe

import (
	"errors"
	"testing"
)

func TestKeepsShadowStacks(t *testing.T) {
	for release, want := range map[string]bool{
		"5.15.0-181-generic": false, "6.6.12": false, "6.10.14-amd64": false,
		"6.11.0": true, "6.18.44": true, "7.0-rc1": true,
		"": false, "six": false,
	} {
		if got := keepsShadowStacks(release); got != want {
			t.Errorf("%q: %v, want %v", release, got, want)
		}
	}
}

func TestHasShadowStack(t *testing.T) {
	for status, want := range map[string]bool{
		"Name:\tpython\nx86_Thread_features:\tshstk wrss \nx86_Thread_features_locked:\tshstk wrss \n": true,
		"Name:\tpython\nx86_Thread_features:\t\nx86_Thread_features_locked:\tshstk \n":                 false,
		"Name:\tshstk\nSeccomp:\t0\n": false,
		"":                            false,
	} {
		if got := hasShadowStack([]byte(status)); got != want {
			t.Errorf("%q: %v, want %v", status, got, want)
		}
	}
}

// refuser is a holder that must not be asked for a link.
type refuser struct{ t *testing.T }

func (r refuser) link(b batch, _ place) (uint32, error) {
	r.t.Errorf("a link of %d sites was made", len(b.sites))
	return 0, nil
}

func (refuser) close() error { return nil }

// TestNoReturnsOnShadowStacks: where returns would kill the process, no link is asked for, and each site is named.
func TestNoReturnsOnShadowStacks(t *testing.T) {
	at := &Attachment{held: refuser{t}}
	b := batch{name: "return", ret: true, sites: []Site{{Offset: 1}, {Offset: 2}}}
	failed, err := at.add(b, place{noReturns: errShadowStack})
	if err != nil || len(failed) != 2 || len(at.ids) != 0 {
		t.Fatalf("%v, %v, links %v", failed, err, at.ids)
	}
	for i := range failed {
		if failed[i].Site != b.sites[i] || !errors.Is(failed[i], errShadowStack) {
			t.Errorf("site %d: %v", i, failed[i])
		}
	}
}
