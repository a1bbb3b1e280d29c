package cuda

import (
	"cmp"
	"debug/elf"
	"encoding/binary"
	"slices"
	"strings"
	"sync"
)

// NCCLFunction is a device function of NCCL, with the words of its src/device/generate.py.
type NCCLFunction struct {
	Collective string // AllReduce; SendRecv, which has nothing of the rest
	reduction  string // Sum; "" where nothing is reduced
	kind       string // of data: f32; "" where nothing is reduced
	Algorithm  string // TREE, RING, COLLNET_DIRECT, COLLNET_CHAIN, NVLS, NVLS_TREE, PAT
	Protocol   string // LL, LL128, SIMPLE
}

// Serves reports whether f can carry out an operation as reports call it, on a type of data. It cannot where the index
// that f was found by is none of its library's.
func (f *NCCLFunction) Serves(operation string, kind DataKind) bool {
	if f.Collective != operation && (f.Collective != "AllGatherV" || operation != "Broadcast") {
		return false
	}
	return f.kind == "" || unsigned(f.kind) == unsigned(shortKind(kind))
}

// unsigned names the type without a sign that an integer's bits have, which functions for both share.
func unsigned(kind string) string {
	if strings.HasPrefix(kind, "i") {
		return "u" + kind[1:]
	}
	return kind
}

// shortKind is what generate.py calls a type.
func shortKind(k DataKind) string {
	return strings.NewReplacer("bfloat", "bf", "float", "f", "uint", "u", "int", "i").Replace(k.String())
}

// ncclSeries are releases of NCCL that number their functions alike.
type ncclSeries struct {
	from       int  // release, as ncclGetVersion gives it; to the next series
	pat        bool // the algorithm of all-gather and reduce-scatter
	fp8        bool // types of 8 bits
	allGatherV bool
	indexed    uint16 // bits of a launch that are the index; 0: all, else the upper ones are the operation
}

// ncclReleases are all series whose launches carry the index of a function: 2.22 to 2.32.
var ncclReleases = []ncclSeries{
	{from: 22200},
	{from: 22300, pat: true},
	{from: 22400, pat: true, fp8: true},
	{from: 22900, pat: true, fp8: true, allGatherV: true},
	{from: 23200, pat: true, fp8: true, allGatherV: true, indexed: 1<<11 - 1},
}

// newestNCCL is the newest release whose functions were compared.
const newestNCCL = 23203

// functionsOf are the functions of each series of ncclReleases, by index.
var functionsOf = sync.OnceValue(func() [][]NCCLFunction {
	out := make([][]NCCLFunction, len(ncclReleases))
	for i := range ncclReleases {
		out[i] = ncclReleases[i].functions()
	}
	return out
})

// NCCLFunctionOf returns the device function with an index in a release, as launches have it and ncclGetVersion gives
// it; false where the release is not known or has no such function.
func NCCLFunctionOf(release int, index uint16) (*NCCLFunction, bool) {
	if release > newestNCCL {
		return nil, false
	}
	for i := len(ncclReleases) - 1; i >= 0; i-- {
		if release < ncclReleases[i].from {
			continue
		}
		if bits := ncclReleases[i].indexed; bits != 0 {
			index &= bits
		}
		if all := functionsOf()[i]; int(index) < len(all) {
			return &all[index], true
		}
		break
	}
	return nil, false
}

// functions returns what ncclDevFuncTable of a series holds: each function that another one does not stand for, sorted.
func (s *ncclSeries) functions() []NCCLFunction {
	out := []NCCLFunction{{Collective: "SendRecv"}}
	for collective, algorithms := range s.algorithms() {
		for _, algorithm := range algorithms {
			for _, protocol := range []string{"LL", "LL128", "SIMPLE"} {
				out = append(out, s.reductions(NCCLFunction{
					Collective: collective, Algorithm: algorithm, Protocol: protocol,
				})...)
			}
		}
	}
	slices.SortFunc(out, func(a, b NCCLFunction) int {
		return cmp.Or(strings.Compare(a.Collective, b.Collective), strings.Compare(a.reduction, b.reduction),
			strings.Compare(a.kind, b.kind), strings.Compare(a.Algorithm, b.Algorithm),
			strings.Compare(a.Protocol, b.Protocol))
	})
	return slices.Compact(out)
}

// algorithms are those of each collective.
func (s *ncclSeries) algorithms() map[string][]string {
	gathers := []string{"RING", "COLLNET_DIRECT", "NVLS"}
	if s.pat {
		gathers = append(gathers, "PAT")
	}
	out := map[string][]string{
		"AllGather":     gathers,
		"ReduceScatter": gathers,
		"AllReduce":     {"TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE"},
		"Broadcast":     {"RING"},
		"Reduce":        {"RING"},
	}
	if s.allGatherV {
		out["AllGatherV"] = []string{"RING"}
	}
	return out
}

// reductions returns the functions for all reductions and types, or f where nothing is reduced.
func (s *ncclSeries) reductions(f NCCLFunction) []NCCLFunction {
	if f.Protocol != "SIMPLE" && f.Algorithm != "RING" && f.Algorithm != "TREE" {
		return nil
	}
	if f.Collective != "AllReduce" && f.Collective != "Reduce" && f.Collective != "ReduceScatter" {
		return []NCCLFunction{f}
	}
	kinds := []string{"i8", "u8", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "bf16"}
	if s.fp8 {
		kinds = append(kinds, "f8e4m3", "f8e5m2")
	}
	var out []NCCLFunction
	for _, f.reduction = range []string{"Sum", "Prod", "MinMax", "PreMulSum", "SumPostDiv"} {
		for _, f.kind = range kinds {
			if f.built() {
				primary := f
				if s.shared(&f) {
					primary.kind = unsigned(f.kind)
				}
				out = append(out, primary)
			}
		}
	}
	return out
}

// built reports whether a library has the function for a reduction and type.
func (f *NCCLFunction) built() bool {
	integer := f.kind[0] == 'i' || f.kind[0] == 'u'
	if f.reduction == "SumPostDiv" && !integer {
		return false
	}
	if !strings.Contains(f.Algorithm, "NVLS") {
		return true
	}
	switch f.kind {
	case "i32", "u32", "i64", "u64", "f16", "bf16":
		return f.reduction == "Sum" || f.reduction == "MinMax"
	case "f32", "f64":
		return f.reduction == "Sum"
	}
	return false
}

// shared reports whether the function for unsigned integers is also that for the signed ones.
func (s *ncclSeries) shared(f *NCCLFunction) bool {
	switch f.reduction {
	case "MinMax":
		return !strings.Contains(f.Algorithm, "NVLS")
	case "SumPostDiv":
		return s.fp8 // of the same release
	}
	return true
}

// NCCLRelease reads the release from the code of ncclGetVersion, which stores it: 22809 is 2.28.9. It returns 0 where
// the code is not of that kind.
func NCCLRelease(machine elf.Machine, code []byte) int {
	const first, last = 20000, 99999
	switch machine {
	case elf.EM_X86_64:
		for i := 0; i+6 <= len(code) && i < 64; i++ {
			if code[i] == 0xc7 && code[i+1] == 0x07 { // mov dword [rdi], imm32
				if v := binary.LittleEndian.Uint32(code[i+2:]); v >= first && v <= last {
					return int(v)
				}
			}
		}
	case elf.EM_AARCH64:
		for i := 0; i+4 <= len(code) && i < 64; i += 4 {
			if op := binary.LittleEndian.Uint32(code[i:]); op&0xffe00000 == 0x52800000 { // mov w, imm16
				if v := op >> 5 & 0xffff; v >= first {
					return int(v)
				}
			}
		}
	}
	return 0
}
