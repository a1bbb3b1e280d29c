// Package version says which build this is.
package version

import (
	"runtime"
	"runtime/debug"
)

// version is set by the linker:
//
//	-ldflags "-X github.com/inferscope/inferscope/internal/format/version.version=v0.1.0"
//
// It is the one package variable of the project: the linker cannot set anything else.
var version string //nolint:gochecknoglobals // see above

// unknownVersion is the version of a build of which nothing is known.
const unknownVersion = "devel"

// Info is what can be said about a build.
type Info struct {
	Version  string `json:"version"`            // as the linker was told, else the module's, else unknownVersion
	Revision string `json:"revision,omitempty"` // commit, with "+dirty" where the tree had changes
	Go       string `json:"go"`                 // toolchain, e.g. go1.26.0
	Platform string `json:"platform"`           // GOOS/GOARCH
}

// String returns the version alone.
func String() string { return Get().Version }

// Get returns what is known of this build. It never fails: what is unknown stays empty.
func Get() Info {
	info, _ := debug.ReadBuildInfo()
	return describe(version, info)
}

func describe(linked string, build *debug.BuildInfo) Info {
	i := Info{Version: linked, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if build == nil {
		build = &debug.BuildInfo{}
	}
	settings := map[string]string{}
	for _, s := range build.Settings {
		settings[s.Key] = s.Value
	}
	i.Revision = settings["vcs.revision"]
	if i.Revision != "" && settings["vcs.modified"] == "true" {
		i.Revision += "+dirty"
	}
	if i.Version == "" && build.Main.Version != "(devel)" {
		i.Version = build.Main.Version
	}
	if i.Version == "" {
		i.Version = unknownVersion
	}
	return i
}
