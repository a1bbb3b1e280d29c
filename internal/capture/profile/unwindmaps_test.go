package profile

import (
	"errors"
	"os"
	"reflect"
	"testing"

	"github.com/cilium/ebpf"
	"go.opentelemetry.io/ebpf-profiler/libpf/pfelf"
	"go.opentelemetry.io/ebpf-profiler/support"

	"github.com/inferscope/inferscope/internal/capture/profile/unwind"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// numbered numbers unwind rules.
type numbered map[support.UnwindInfo]uint16

// Number returns the number of info, a new one if info is new.
func (n numbered) Number(info support.UnwindInfo) (uint16, error) {
	if _, ok := n[info]; !ok {
		n[info] = uint16(len(n))
	}
	return n[info], nil
}

// What is in the kernel's map is what was read, and every page leads to its own rules.
func TestFill(t *testing.T) {
	needs.Root(t, "BPF maps")
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
	must.NoError(t, table.Read(in, name, pfelf.SystemOpener))
	f, err := fill(1, table)
	must.NoError(t, err)
	defer f.rules.Close()
	t.Logf("%d rules on %d pages in a map of %d", f.count, len(f.pages), f.rules.MaxEntries())
	i := uint32(0)
	table.Each(func(addr uint64, rule uint16) {
		var got support.StackDelta
		must.NoError(t, f.rules.Lookup(&i, &got))
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

// The map of arrays of rules is made from what the arrays are made from, so that a kernel takes them: Linux 5.15 to 6.1
// refuse an array whose types are described otherwise, and every stack ended at its top.
func TestPublish(t *testing.T) {
	spec := needBPF(t)
	must.NoError(t, shareRules(spec))
	if outer := spec.Maps[rulesMap].InnerMap; !reflect.DeepEqual(outer, rulesSpec(int(outer.MaxEntries))) {
		t.Errorf("the map of arrays is made for %v with types %v and %v, the arrays are not", outer, outer.Key, outer.Value)
	}
	o, err := loadUnwinder(DefaultHz)
	must.NoError(t, err)
	defer o.close()
	maps := newUnwindMaps()
	maps.set(o, nil)
	const file, page, rules = 7, 3 << support.StackDeltaPageBits, 300
	f := &filled{
		count: rules, keys: []support.StackDeltaPageKey{{FileID: file, Page: page}},
		pages: []support.StackDeltaPageInfo{{NumDeltas: rules, MapID: support.StackDeltaBucketSmallest}},
	}
	if f.rules, err = ebpf.NewMap(rulesSpec(rules)); err != nil {
		t.Fatal(err)
	}
	maps.describe(support.UnwindInfo{BaseReg: 1, Param: 8})
	must.NoError(t, maps.publish(file, f))
	var got support.StackDeltaPageInfo
	if err := o.Pages.Lookup(&f.keys[0], &got); err != nil || got != f.pages[0] {
		t.Errorf("the page leads to %+v (%v), want %+v", got, err, f.pages[0])
	}
	var inner *ebpf.Map
	if err := o.Rules.Lookup(uint64(file), &inner); err != nil {
		t.Fatalf("the file has no rules: %v", err)
	}
	defer inner.Close()
	if inner.MaxEntries() != rules {
		t.Errorf("the file has room for %d rules, want %d", inner.MaxEntries(), rules)
	}
	maps.withdraw(file, f)
	if err := o.Rules.Lookup(uint64(file), &inner); !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Errorf("after it is withdrawn: %v", err)
	}
}

// A stack that ends in a file whose tables will not come says so; it does not wait for them.
func TestRefusedFilesSayWhy(t *testing.T) {
	l := &loader{images: map[uint64]*image{}, wake: make(chan struct{}, 1)}
	for number, refuse := range map[uint64]string{1: "", 2: cutUnread, 3: cutRefused} {
		x := &image{number: number}
		if l.images[number] = x; refuse != "" {
			l.refuse(x, refuse)
		}
		want := refuse
		if want == "" {
			want = whyCut(noTables)
		}
		if got := l.whyCut(noTables, number); got != want {
			t.Errorf("file %d: %q, want %q", number, got, want)
		}
		if waits := l.better(noTables, number); waits != (refuse == "") {
			t.Errorf("file %d is waited for: %v", number, waits)
		}
	}
	if got := l.whyCut(noMapping, 3); got != whyCut(noMapping) {
		t.Errorf("the caller of a file whose tables were refused: %q", got)
	}
}
