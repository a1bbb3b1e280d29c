package cuda_test

import (
	"testing"

	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
)

// TestLaunchOfNCCL: the function of NCCL is no part of a launch's stream.
func TestLaunchOfNCCL(t *testing.T) {
	b := calltest.New()
	b.Do("cuLaunchKernelEx", 0, 0, 0xf, 258<<48|0x7f10, 2|1<<32|1<<48, 512)
	rec := b.Recording()
	e := &rec.Events[0]
	e.Flags |= event.NCCL
	if c := cuda.NewDecoder(rec.Meta.Functions).Decode(e); c.Stream != 0x7f10 || c.Grid != [3]uint32{2, 1, 1} {
		t.Errorf("stream %#x, grid %v", c.Stream, c.Grid)
	}
	if f, known := e.NCCLFunction(); !known || f != 258 {
		t.Errorf("%d %v", f, known)
	}
	e.Flags &^= event.NCCL
	if f, known := e.NCCLFunction(); known {
		t.Errorf("%d", f)
	}
}
