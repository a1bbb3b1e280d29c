package sampler

import (
	"errors"
	"fmt"
	"math/bits"
	"reflect"
	"unsafe"

	"github.com/cilium/ebpf"
	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/lpm"
	"go.opentelemetry.io/ebpf-profiler/support"
	"go.opentelemetry.io/ebpf-profiler/tracer"

	"github.com/inferscope/inferscope/internal/sampler/tables"
)

// batchRules is how many rules are handed to the kernel at once; it copies each.
const batchRules = 1 << 14

// unwindMaps are the maps in which the library's programs look mappings and unwind rules
// up, and where it says that it met a process or code that it does not know.
type unwindMaps struct {
	mappings *ebpf.Map // of a process and an address, by longest prefix: which file, moved by how much
	pages    *ebpf.Map // of a file and 64 KiB of its code: which of its rules
	rules    map[int]*ebpf.Map
	infos    *ebpf.Map
	reported *ebpf.Map
	events   <-chan libpf.PIDTID
}

// takeMaps takes the maps out of the library's tracer, which hands them to nobody. The
// version of the library is pinned; TestTheLibrarysMaps says when another has them elsewhere.
func takeMaps(t *tracer.Tracer) (*unwindMaps, error) {
	all, err := private[map[string]*ebpf.Map](t, "ebpfMaps")
	if err != nil {
		return nil, err
	}
	events, err := private[chan libpf.PIDTID](t, "pidEvents")
	if err != nil {
		return nil, err
	}
	m := &unwindMaps{rules: map[int]*ebpf.Map{}, events: events}
	wanted := map[string]**ebpf.Map{
		"pid_page_to_mapping_info": &m.mappings, "stack_delta_page_to_info": &m.pages, "unwind_info_array": &m.infos, "reported_pids": &m.reported,
	}
	for name, to := range wanted {
		if *to = all[name]; *to == nil {
			return nil, fmt.Errorf("the native unwinder has no map %s", name)
		}
	}
	for i := support.StackDeltaBucketSmallest; i <= support.StackDeltaBucketLargest; i++ {
		name := fmt.Sprintf("exe_id_to_%d_stack_deltas", i)
		if m.rules[i] = all[name]; m.rules[i] == nil {
			return nil, fmt.Errorf("the native unwinder has no map %s", name)
		}
	}
	return m, nil
}

// private returns a member of the library's tracer.
func private[T any](t *tracer.Tracer, name string) (T, error) {
	v := reflect.ValueOf(t).Elem().FieldByName(name)
	if !v.IsValid() || v.Type() != reflect.TypeFor[T]() {
		return *new(T), fmt.Errorf("the native unwinder has no %s of the expected kind: another version of it?", name)
	}
	return *(*T)(unsafe.Pointer(v.UnsafeAddr())), nil
}

// mapped puts the pages of a mapping into the map, and marks the process as known.
func (m *unwindMaps) mapped(pid uint32, prefixes []lpm.Prefix, file, bias uint64) error {
	program, err := support.EncodeBiasAndUnwindProgram(bias, support.ProgUnwindNative)
	if err != nil {
		return err
	}
	value := support.PIDPageMappingInfo{File_id: file, Bias_and_unwind_program: program}
	for _, p := range prefixes {
		key := pageKey(pid, p)
		if err := m.mappings.Update(&key, &value, ebpf.UpdateAny); err != nil {
			return fmt.Errorf("tell the unwinder of a mapping of pid %d: %w", pid, err)
		}
	}
	return nil
}

func (m *unwindMaps) unmapped(pid uint32, prefixes []lpm.Prefix) {
	for _, p := range prefixes {
		key := pageKey(pid, p)
		_ = m.mappings.Delete(&key) // it may be gone
	}
}

// pageKey is the key of struct pid_page_to_mapping_info: in network order, so that the
// trie compares it from the highest bit on.
func pageKey(pid uint32, p lpm.Prefix) support.PIDPage {
	return support.PIDPage{Pid: bits.ReverseBytes32(pid), Page: bits.ReverseBytes64(p.Key), PrefixLen: support.BitWidthPID + p.Length}
}

// forget lets the programs report a process again at once.
func (m *unwindMaps) forget(pid uint32) {
	_ = m.reported.Delete(&pid) // it may not be there
}

// filled is the rules of one file in a map of their own, not yet in use.
type filled struct {
	rules  *ebpf.Map
	count  int
	bucket int // which of the outer maps
	keys   []support.StackDeltaPageKey
	pages  []support.StackDeltaPageInfo
}

// fill copies a table into a new map. A file has one of 2^bucket rules, 8 bytes each, in
// the kernel: the sizes of inner maps are the outer map's.
func fill(file uint64, t *tables.Table) (*filled, error) {
	f := &filled{}
	t.Each(func(uint64, uint16) { f.count++ })
	if f.bucket = max(support.StackDeltaBucketSmallest, bits.Len(uint(f.count))); f.bucket > support.StackDeltaBucketLargest {
		return nil, tables.ErrTooLarge
	}
	var err error
	if f.rules, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: "unwind_rules", Type: ebpf.Array, KeySize: 4, ValueSize: support.Sizeof_StackDelta, MaxEntries: 1 << f.bucket,
	}); err != nil {
		return nil, fmt.Errorf("make room for %d unwind rules: %w", f.count, err)
	}
	if err := f.copy(file, t); err != nil {
		return nil, errors.Join(err, f.rules.Close())
	}
	return f, nil
}

// copy copies the rules, and notes which are of which page.
func (f *filled) copy(file uint64, t *tables.Table) error {
	first, count := t.Pages()
	f.keys, f.pages = make([]support.StackDeltaPageKey, count), make([]support.StackDeltaPageInfo, count)
	for i := range f.keys {
		f.keys[i] = support.StackDeltaPageKey{FileID: file, Page: first + uint64(i)<<support.StackDeltaPageBits}
	}
	index, rules := make([]uint32, 0, batchRules), make([]support.StackDelta, 0, batchRules)
	done, err := uint32(0), error(nil)
	flush := func() {
		if err == nil && len(rules) > 0 {
			_, err = f.rules.BatchUpdate(index, rules, nil)
		}
		index, rules = index[:0], rules[:0]
	}
	t.Each(func(addr uint64, rule uint16) {
		index, rules = append(index, done), append(rules, support.StackDelta{AddrLow: uint16(addr), UnwindInfo: rule})
		done++
		if page := int((addr - first) >> support.StackDeltaPageBits); addr >= first && page < count {
			f.pages[page].NumDeltas++
		}
		if len(rules) == batchRules {
			flush()
		}
	})
	flush()
	next := uint32(0)
	for i := range f.pages {
		f.pages[i].FirstDelta, f.pages[i].MapID = next, uint16(f.bucket)
		next += uint32(f.pages[i].NumDeltas)
	}
	return err
}

// publish hands a file's rules to the programs: the rules first, so that a page never
// leads to nothing. The kernel waits for all programs to be out of the old map, some
// 20 ms, so it is for a goroutine of its own.
func (m *unwindMaps) publish(file uint64, f *filled) error {
	defer func() { _ = f.rules.Close() }() // the outer map holds it
	fd := uint32(f.rules.FD())
	if err := m.rules[f.bucket].Update(&file, &fd, ebpf.UpdateNoExist); err != nil {
		return fmt.Errorf("hand %d unwind rules to the kernel: %w", f.count, err)
	}
	if _, err := m.pages.BatchUpdate(f.keys, f.pages, nil); err != nil {
		return errors.Join(fmt.Errorf("hand %d pages of unwind rules to the kernel: %w", len(f.keys), err), m.withdraw(file, f))
	}
	return nil
}

// withdraw takes a file's rules back: the pages first.
func (m *unwindMaps) withdraw(file uint64, f *filled) error {
	for i := range f.keys {
		_ = m.pages.Delete(&f.keys[i]) // it may not have got so far
	}
	return m.rules[f.bucket].Delete(&file)
}
