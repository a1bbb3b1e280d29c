//go:build amd64 || arm64

package inject

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/inferscope/inferscope/bpf"
)

// From 64 bytes on kernels since 6.13 put a program's stack where another thread on the
// same CPU can overwrite it (bpf/shapes.h); they round up to 16 bytes.
func TestProgramStack(t *testing.T) {
	needRoot(t)
	const most = 48
	spec, err := bpf.LoadArm()
	if err != nil {
		t.Fatal(err)
	}
	coll, err := ebpf.NewCollectionWithOptions(spec,
		ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{LogLevel: ebpf.LogLevelStats}})
	if err != nil {
		t.Skip("this kernel does not load it: ", err)
	}
	defer coll.Close()
	log := coll.Programs[bpf.ArmProgArm].VerifierLog
	found := regexp.MustCompile(`stack depth ([0-9+]+)`).FindStringSubmatch(log)
	if found == nil {
		t.Fatalf("the verifier says nothing of its stack:\n%s", log)
	}
	for _, s := range strings.Split(found[1], "+") {
		if n, err := strconv.Atoi(s); err != nil || n > most {
			t.Errorf("stack depth %s, at most %d", found[1], most)
		}
	}
}
