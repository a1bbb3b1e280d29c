package cuda

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestNCCLFunctions compares the order of functions with what each release's own src/device/generate.py writes into
// device_table.cu: the names there without ncclDevFunc_, a line each. Of 2.31.2 and 2.32.3 they are what
// ncclDevFuncTable of NVIDIA's library for sm_90 points to, by its relocations; both ways agree on 2.30.7.
func TestNCCLFunctions(t *testing.T) {
	for release, want := range map[int]string{
		22203: "03a681572122efe7",
		22304: "23176a9d43e81d6a",
		22403: "c2940621ff767b42",
		22809: "c2940621ff767b42",
		22907: "d88304144a28f5ee",
		23007: "d88304144a28f5ee",
		23102: "d88304144a28f5ee",
		23203: "d88304144a28f5ee",
	} {
		text, n := "", uint16(0)
		for ; ; n++ {
			f, ok := NCCLFunctionOf(release, n)
			if !ok {
				break
			}
			words := []string{f.Collective, f.reduction, f.kind, f.Algorithm, f.Protocol}
			words = slices.DeleteFunc(words, func(w string) bool { return w == "" })
			text += strings.Join(words, "_") + "\n"
		}
		sum := sha256.Sum256([]byte(text))
		if got := hex.EncodeToString(sum[:8]); got != want {
			t.Errorf("%d: %d functions, digest %s, want %s", release, n, got, want)
		}
	}
}

// ncclAllReduceFunc is ncclFunc_t of an all-reduce.
const ncclAllReduceFunc = 4

// TestNCCLFunctionAndOperation: from 2.32 on a launch has the index in 11 bits and above it the operation, by the debug
// information and the device code of 2.32.3 (ncclDevWorkBatch: funcId : 11, func : 4).
func TestNCCLFunctionAndOperation(t *testing.T) {
	want := NCCLFunction{Collective: "AllReduce", reduction: "Sum", kind: "f32", Algorithm: "RING", Protocol: "LL"}
	for release, index := range map[int]uint16{23102: 261, 23203: ncclAllReduceFunc<<11 | 261} {
		if f, ok := NCCLFunctionOf(release, index); !ok || *f != want {
			t.Errorf("%d: %+v, want %+v", release, f, want)
		}
	}
}

func TestNCCLFunctionsThatAreNotKnown(t *testing.T) {
	for _, c := range []struct {
		release int
		index   uint16
	}{
		{0, 0},
		{22105, 0}, // launches otherwise
		{22809, 670},
		{23102, ncclAllReduceFunc<<11 | 261},
		{23203, ncclAllReduceFunc<<11 | 673},
		{23204, 0},
		{22809, 1<<15 - 1},
	} {
		if f, ok := NCCLFunctionOf(c.release, c.index); ok {
			t.Errorf("%+v: %+v", c, f)
		}
	}
}

// TestServes: a function for unsigned integers is that for signed ones, and Broadcast may become AllGatherV in a group.
func TestServes(t *testing.T) {
	ring := NCCLFunction{Collective: "AllReduce", reduction: "Sum", kind: "u32", Algorithm: "RING", Protocol: "LL"}
	for _, c := range []struct {
		function  NCCLFunction
		operation string
		kind      DataKind
		want      bool
	}{
		{ring, "AllReduce", 2, true},
		{ring, "AllReduce", 3, true},
		{ring, "AllReduce", 7, false},
		{ring, "AllReduce", 200, false},
		{ring, "Reduce", 2, false},
		{NCCLFunction{Collective: "AllReduce", kind: "bf16"}, "AllReduce", 9, true},
		{NCCLFunction{Collective: "AllReduce", kind: "f8e5m2"}, "AllReduce", 11, true},
		{NCCLFunction{Collective: "AllGather"}, "AllGather", 9, true},
		{NCCLFunction{Collective: "AllGatherV"}, "Broadcast", 0, true},
		{NCCLFunction{Collective: "AllGatherV"}, "AllGather", 0, false},
	} {
		if got := c.function.Serves(c.operation, c.kind); got != c.want {
			t.Errorf("%+v", c)
		}
	}
}

// TestNCCLRelease has the code of ncclGetVersion as NVIDIA's libraries of 2.28.9 have it, and as compilers make it.
func TestNCCLRelease(t *testing.T) {
	for _, c := range []struct {
		machine elf.Machine
		code    string
		want    int
	}{
		{elf.EM_X86_64, "4885ff7409c7071959000031c0c3b804000000c3", 22809},
		{elf.EM_X86_64, "f30f1efa4885ff740ac707df59000031c0c3", 23007},
		{elf.EM_AARCH64, "c00000b421238b52010000b900008052c0035fd6", 22809},
		{elf.EM_X86_64, "c00000b421238b52010000b900008052c0035fd6", 0},
		{elf.EM_X86_64, "4885ff7409c7070100000031c0c3b804000000c3", 0},
		{elf.EM_X86_64, "c707", 0},
		{elf.EM_AARCH64, "", 0},
	} {
		code, err := hex.DecodeString(c.code)
		must.NoError(t, err)
		if got := NCCLRelease(c.machine, code); got != c.want {
			t.Errorf("%v, %s: %d, want %d", c.machine, c.code, got, c.want)
		}
	}
}
