package version

import (
	"runtime/debug"
	"testing"
)

func TestDescribe(t *testing.T) {
	vcs := func(modified string) []debug.BuildSetting {
		return []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: modified}}
	}
	for _, c := range []struct {
		name, linked      string
		build             *debug.BuildInfo
		version, revision string
	}{
		{"nothing known", "", nil, unknownVersion, ""},
		{
			"the linker wins", "v1", &debug.BuildInfo{Main: debug.Module{Version: "v0.9"}, Settings: vcs("false")},
			"v1", "abc",
		},
		{"go install", "", &debug.BuildInfo{Main: debug.Module{Version: "v0.9"}}, "v0.9", ""},
		{
			"changed tree", "", &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}, Settings: vcs("true")},
			unknownVersion, "abc+dirty",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := describe(c.linked, c.build)
			if got.Version != c.version || got.Revision != c.revision {
				t.Errorf("describe = %q %q, want %q %q", got.Version, got.Revision, c.version, c.revision)
			}
			if got.Go == "" || got.Platform == "" {
				t.Errorf("toolchain or platform missing: %+v", got)
			}
		})
	}
}
