package nvml

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/sleeper"
)

// threeGPUs and matrix are what nvidia-smi -L and topo -m say of three GPUs and a network card.
const (
	threeGPUs = "GPU 0: NVIDIA A (UUID: GPU-0a00)\nGPU 1: NVIDIA A (UUID: GPU-0a01)\nGPU 2: NVIDIA A (UUID: GPU-0a02)\n"
	matrix    = "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n" +
		"GPU0\t X \tNV18\tSYS\tPXB\t0-55,112-167\t0\t\tN/A\n" +
		"GPU1\tNV18\t X \tPIX\tPXB\t0-55,112-167\t0\t\tN/A\n" +
		"GPU2\tSYS\tPIX\t X \tPIX\t56-111\t1\t\tN/A\n" +
		"NIC0\tPXB\tPXB\tPIX\t X \t\t\t\t\n\nLegend:\n\n" +
		"  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"
)

func wantLinks() []recording.GPULink {
	return []recording.GPULink{
		{A: "GPU-0a00", B: "GPU-0a01", Kind: "NV18"},
		{A: "GPU-0a00", B: "GPU-0a02", Kind: "SYS"},
		{A: "GPU-0a01", B: "GPU-0a02", Kind: "PIX"},
	}
}

func TestParseTopology(t *testing.T) {
	got, err := parseTopology(threeGPUs, matrix)
	must.NoError(t, err)
	if diff := cmp.Diff(wantLinks(), got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	for _, bad := range []string{
		"\tGPU0\tGPU1\nGPU0\t X \tfast\n", "\tGPU0\tGPU9\nGPU0\t X \tSYS\n", "", strings.ReplaceAll(matrix, "\t", " "),
		"\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\tSYS\t X \n",
	} {
		if got, err := parseTopology(threeGPUs, bad); err == nil {
			t.Errorf("%q is taken: %v", bad, got)
		}
	}
}

// TestTopology: how GPUs are connected is asked for where there are several.
func TestTopology(t *testing.T) {
	s := New(Options{Program: fake(t, "case \"$1\" in\n-L) printf '%b' '"+threeGPUs+"'; exit;;\n"+
		"topo) printf '%b' '"+matrix+"'; exit;;\nnvlink|dmon|*compute-apps*) exit;;\nesac\n"+
		"while :; do echo '"+line+"'; sleep 0.02; done\n")})
	defer s.Close()
	must.NoError(t, s.Follow(sleeper.Mapping(t, "libcuda.so.1")))
	must.Become(t, "links", func() bool { return len(s.GPULinks()) > 0 })
	if diff := cmp.Diff(wantLinks(), s.GPULinks()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func FuzzTopology(f *testing.F) {
	f.Add(threeGPUs, matrix)
	f.Fuzz(func(t *testing.T, names, matrix string) {
		list, err := parseTopology(names, matrix)
		if err != nil && list != nil {
			t.Errorf("%v and %v", list, err)
		}
	})
}
