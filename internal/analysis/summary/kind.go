package summary

import (
	"strings"

	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording"
)

// kind is what matters of a function to whoever counts its calls: comparing the names of groups for each of millions
// takes longer than counting them.
type kind uint8

const (
	otherKind kind = iota
	launchKind
	graphKind       // makes or changes graphs
	graphLaunchKind // launches one
	copyKind
	syncKind
	allocKind
	freeKind
)

// kindOf returns the kind of a function whose row in the table is called name.
func kindOf(f *recording.Function, name string) kind {
	switch cuda.Group(f.Group) {
	case cuda.Launch:
		return launchKind
	case cuda.Graph:
		if strings.HasSuffix(name, "GraphLaunch") {
			return graphLaunchKind
		}
		return graphKind
	case cuda.Copy:
		return copyKind
	case cuda.Sync:
		return syncKind
	case cuda.Alloc:
		return allocKind
	case cuda.Free:
		return freeKind
	}
	switch { // pinning the program's own memory
	case strings.HasSuffix(name, "HostRegister"):
		return allocKind
	case strings.HasSuffix(name, "HostUnregister"):
		return freeKind
	}
	return otherKind
}

// launches reports whether calls of the kind start a kernel or a graph.
func (k kind) launches() bool { return k == launchKind || k == graphLaunchKind }
