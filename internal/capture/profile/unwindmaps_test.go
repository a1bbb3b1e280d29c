package profile

import (
	"os"
	"testing"

	"go.opentelemetry.io/ebpf-profiler/libpf/pfelf"
	"go.opentelemetry.io/ebpf-profiler/support"

	"github.com/inferscope/inferscope/internal/capture/profile/unwind"
)

// numbered is a unwind.Numbers.
type numbered map[support.UnwindInfo]uint16

// Number implements unwind.Numbers.
func (n numbered) Number(info support.UnwindInfo) (uint16, error) {
	if _, ok := n[info]; !ok {
		n[info] = uint16(len(n))
	}
	return n[info], nil
}

// What is in the kernel's map is what was read, and every page leads to its own rules.
func TestFill(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: BPF maps")
	}
	name := "/usr/lib/x86_64-linux-gnu/libstdc++.so.6"
	if s := os.Getenv("FILL"); s != "" {
		name = s
	}
	in, err := os.Open(name)
	if err != nil {
		t.Skipf("needs file %s: %v", name, err)
	}
	defer in.Close()
	table := unwind.New(numbered{})
	if err := table.Read(in, name, pfelf.SystemOpener); err != nil {
		t.Fatal(err)
	}
	f, err := fill(1, table)
	if err != nil {
		t.Fatal(err)
	}
	defer f.rules.Close()
	t.Logf("%d rules on %d pages in a map of %d", f.count, len(f.pages), f.rules.MaxEntries())
	i := uint32(0)
	table.Each(func(addr uint64, rule uint16) {
		var got support.StackDelta
		if err := f.rules.Lookup(&i, &got); err != nil {
			t.Fatal(err)
		}
		if want := (support.StackDelta{AddrLow: uint16(addr), UnwindInfo: rule}); got != want {
			t.Fatalf("rule %d is %+v, want %+v", i, got, want)
		}
		page := f.pages[(addr-f.keys[0].Page)>>support.StackDeltaPageBits]
		if i < page.FirstDelta || i >= page.FirstDelta+uint32(page.NumDeltas) {
			t.Fatalf("rule %d at %#x is not of its page %+v", i, addr, page)
		}
		i++
	})
	if int(i) != f.count {
		t.Errorf("%d rules, want %d", i, f.count)
	}
}
