package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// TestCapabilitiesForFlags: the daemon keeps more capabilities than the named ones where a flag needs one, and there
// alone.
func TestCapabilitiesForFlags(t *testing.T) {
	needs.Root(t, "folders of other users are made")
	own, other := t.TempDir(), filepath.Join(t.TempDir(), "other")
	must.NoError(t, os.Mkdir(other, 0o755))
	must.NoError(t, os.Chown(other, 64001, 64001))
	with := func(change func(*flags)) *flags {
		f := &flags{socket: filepath.Join(own, "s"), probeMode: "multi", metricsAddr: ":9400"}
		f.record.dir = filepath.Join(own, "recordings")
		change(f)
		return f
	}
	always := perfOnly("multi") // a kernel before 6.6
	for name, c := range map[string]struct {
		flags *flags
		more  cap.Value
		has   bool
	}{
		"a port for root":         {with(func(f *flags) { f.metricsAddr = "0.0.0.0:443" }), cap.NET_BIND_SERVICE, true},
		"a port":                  {with(func(*flags) {}), cap.NET_BIND_SERVICE, false},
		"a foreign socket":        {with(func(f *flags) { f.socket = filepath.Join(other, "s") }), cap.DAC_OVERRIDE, true},
		"recordings elsewhere":    {with(func(f *flags) { f.record.dir = filepath.Join(other, "a/b") }), cap.DAC_OVERRIDE, true},
		"own folders":             {with(func(*flags) {}), cap.DAC_OVERRIDE, false},
		"probes by perf events":   {with(func(f *flags) { f.probeMode = "perf" }), cap.SYS_ADMIN, true},
		"probes by links of 6.6+": {with(func(*flags) {}), cap.SYS_ADMIN, always},
	} {
		got := kept(c.flags)
		if slices.Contains(got, c.more) != c.has {
			t.Errorf("%s: it keeps %v, with %v: want %v", name, got, c.more, c.has)
		}
		if !slices.Equal(got[:len(needed)], needed) {
			t.Errorf("%s: it keeps %v, want %v and more", name, got, needed)
		}
	}
}
