package symbol_test

import (
	"errors"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/capture/symbol"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

const kallsyms = `ffffffff81000100 T second
ffffffff81000000 T first
ffffffff81000110 d some_data
ffffffffc0000000 t nvidia_ioctl	[nvidia]
ffffffff81000200 W third
bad line
`

func TestKernel(t *testing.T) {
	opened := 0
	k := symbol.FakeKernel([]byte(kallsyms), &opened)
	ask := []uint64{
		0xffffffff81000180, 0xffffffff81000000, 0xffffffff81000204, 0xffffffffc0000010, 5, 0xffffffffb0000000,
		0xffffffff81000180,
	}
	want := []symbol.Symbol{
		{Name: "second", Offset: 0x80, Module: "kernel"},
		{Name: "first", Module: "kernel"},
		{Name: "third", Offset: 4, Module: "kernel"},
		{Name: "nvidia_ioctl", Offset: 0x10, Module: "nvidia"},
		{Offset: 5, Module: "kernel"},
		{Offset: 0xffffffffb0000000, Module: "kernel"}, // far behind any function
		{Name: "second", Offset: 0x80, Module: "kernel"},
	}
	for range 2 {
		got, err := k.Resolve(ask)
		must.NoError(t, err)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
	if opened != 1 {
		t.Errorf("the table was read %d times", opened)
	}
}

func TestKernelHidden(t *testing.T) {
	opened := 0
	k := symbol.FakeKernel([]byte("0000000000000000 T first\n0000000000000000 T second\n"), &opened)
	got, err := k.Resolve([]uint64{0xffffffff81000000})
	if !errors.Is(err, symbol.ErrHidden) || len(got) != 1 || got[0].String() != "kernel+0xffffffff81000000" {
		t.Errorf("%v, %v", got, err)
	}
}

func TestKernelHere(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to see the kernel's addresses")
	}
	_, err := symbol.NewKernel().Resolve([]uint64{0xffffffff81000000})
	if err != nil && !errors.Is(err, symbol.ErrHidden) {
		t.Error(err)
	}
}

func FuzzKernel(f *testing.F) {
	f.Add([]byte(kallsyms), uint64(0xffffffff81000180))
	fuzzing.Run(f, func(t *testing.T, text []byte, addr uint64) {
		opened := 0
		if got, _ := symbol.FakeKernel(text, &opened).Resolve([]uint64{addr, addr + 1, 0}); len(got) != 3 {
			t.Fatalf("%d symbols", len(got))
		}
	})
}
