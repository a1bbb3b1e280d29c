package nvml

import (
	"fmt"
	"maps"
	"os"
	"slices"
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

// TestTopologyOfMachines has what nvidia-smi topo -m of older and newer drivers printed on machines, as people show it,
// without most network cards: NVSwitch, bridges, PCIe, a container with the CPUs of one GPU. A terminal gets the header
// underlined, and MIG parts are between the GPUs of nvidia-smi -L.
func TestTopologyOfMachines(t *testing.T) {
	for machine, want := range map[string]string{ // pairs by the kind of their connection, and one of a rare kind
		"h100x8": "NV18 28", "h100x4": "NV18 6", "a100x8": "NV12 28", "bridgesx6": "NODE 4, NV12 3, SYS 8, 0-3 NV12",
		"l40x4": "NODE 2, SYS 4, 2-3 NODE", "pciex8": "NODE 13, PHB 3, SYS 12, 3-4 PHB",
		"v100x8": "NV1 8, NV2 8, SYS 12, 2-4 NV1", "rtx3090x2": "NV4 1",
	} {
		text, err := os.ReadFile("testdata/topology/" + machine + ".txt")
		must.NoError(t, err)
		gpus := int(machine[len(machine)-1] - '0')
		names, parts := "", ""
		for gpu := range gpus {
			names += fmt.Sprintf("GPU %d: NVIDIA A (UUID: GPU-0a0%d)\n", gpu, gpu)
			parts += fmt.Sprintf("GPU %d: NVIDIA A (UUID: GPU-0a0%d)\n"+
				"  MIG 1g.10gb     Device  0: (UUID: MIG-0b%d0)\n  MIG 1g.10gb     Device  1: (UUID: MIG-0b%d1)\n",
				gpu, gpu, gpu, gpu)
		}
		header, rest, _ := strings.Cut(string(text), "\n")
		underlined := "\t\x1b[4m" + header[1:] + "\x1b[0m\n" + rest
		for _, c := range [][2]string{{names, string(text)}, {names, underlined}, {parts, underlined}} {
			links, err := parseTopology(c[0], c[1])
			must.NoError(t, err)
			if got := kindsOf(links, want); got != want {
				t.Errorf("%s: %s, want %s", machine, got, want)
			}
		}
	}
}

// kindsOf counts links by kind, and looks up the one that want ends with.
func kindsOf(links []recording.GPULink, want string) string {
	numbers := map[string]int{}
	for _, l := range links {
		numbers[l.Kind]++
	}
	var out []string
	for _, kind := range slices.Sorted(maps.Keys(numbers)) {
		out = append(out, fmt.Sprint(kind, " ", numbers[kind]))
	}
	var a, b int
	if n, _ := fmt.Sscanf(want[strings.LastIndex(want, " ")-3:], "%d-%d", &a, &b); n == 2 {
		for _, l := range links {
			if l.A == fmt.Sprintf("GPU-0a0%d", a) && l.B == fmt.Sprintf("GPU-0a0%d", b) {
				out = append(out, fmt.Sprintf("%d-%d %s", a, b, l.Kind))
			}
		}
	}
	return strings.Join(out, ", ")
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
