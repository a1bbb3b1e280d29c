package profile

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"

	"github.com/cilium/ebpf"
	"go.opentelemetry.io/ebpf-profiler/lpm"
	"go.opentelemetry.io/ebpf-profiler/support"

	"github.com/inferscope/inferscope/internal/capture/profile/unwind"
)

// unwindMaps hands mappings and unwind rules to the library's programs. The programs take a
// while to load; what is said to them meanwhile waits, so that the files of a process are read beside
// that.
type unwindMaps struct {
	loaded  chan struct{} // closed once the programs are loaded, or will not be
	objects *unwindObjects
	why     error // why they will not be

	mu     sync.Mutex
	unsaid []support.UnwindInfo // rules that have a number which the programs do not know yet
	said   uint32               // how many they know
}

func newUnwindMaps() *unwindMaps { return &unwindMaps{loaded: make(chan struct{})} }

// set records what has become of the programs; it is called once.
func (m *unwindMaps) set(o *unwindObjects, err error) {
	m.objects, m.why = o, err
	close(m.loaded)
}

// wait returns the maps once they are there.
func (m *unwindMaps) wait() (*unwindObjects, error) {
	<-m.loaded
	return m.objects, m.why
}

// describe defines what the rule with the next number means. The programs learn of it with
// the next file.
func (m *unwindMaps) describe(info support.UnwindInfo) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unsaid = append(m.unsaid, info)
}

// say tells the programs of the rules that are new.
func (m *unwindMaps) say(o *unwindObjects) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.unsaid) == 0 {
		return nil
	}
	numbers := make([]uint32, len(m.unsaid))
	for i := range numbers {
		numbers[i] = m.said + uint32(i)
	}
	if _, err := o.Infos.BatchUpdate(numbers, m.unsaid, nil); err != nil {
		return fmt.Errorf("hand %d kinds of unwind rules to the kernel: %w", len(numbers), err)
	}
	m.said += uint32(len(numbers))
	m.unsaid = m.unsaid[:0]
	return nil
}

// mapped puts the pages of a mapping into the map, and marks the process as known.
func (m *unwindMaps) mapped(pid uint32, prefixes []lpm.Prefix, file, bias uint64) error {
	program, err := support.EncodeBiasAndUnwindProgram(bias, support.ProgUnwindNative)
	if err != nil {
		return err
	}
	o, err := m.wait()
	if err != nil {
		return err
	}
	value := support.PIDPageMappingInfo{File_id: file, Bias_and_unwind_program: program}
	for _, p := range prefixes {
		key := pageKey(pid, p)
		if err := o.Mappings.Update(&key, &value, ebpf.UpdateAny); err != nil {
			return fmt.Errorf("tell the unwinder of a mapping of pid %d: %w", pid, err)
		}
	}
	return nil
}

func (m *unwindMaps) unmapped(pid uint32, prefixes []lpm.Prefix) {
	o, err := m.wait()
	if err != nil {
		return
	}
	for _, p := range prefixes {
		key := pageKey(pid, p)
		_ = o.Mappings.Delete(&key) // it may be gone
	}
}

// pageKey is the key of struct pid_page_to_mapping_info: in network order, so that the
// trie compares it from the highest bit on.
func pageKey(pid uint32, p lpm.Prefix) support.PIDPage {
	return support.PIDPage{
		Pid:       bits.ReverseBytes32(pid),
		Page:      bits.ReverseBytes64(p.Key),
		PrefixLen: support.BitWidthPID + p.Length,
	}
}

// forget lets the programs report a process again at once.
func (m *unwindMaps) forget(pid uint32) {
	if o, err := m.wait(); err == nil {
		_ = o.Reported.Delete(&pid) // it may not be there
	}
}

// rulesSpec is of an array with room for some rules. The map of arrays is made from the same, for Linux 5.15 to 6.1
// take no array into it whose types are described where its own are not (bpf_map_meta_equal).
func rulesSpec(rules int) *ebpf.MapSpec {
	return &ebpf.MapSpec{
		Name: "unwind_rules", Type: ebpf.Array, KeySize: 4, ValueSize: support.Sizeof_StackDelta,
		MaxEntries: uint32(max(1, rules)), Flags: ruleFlags,
	}
}

// filled is the rules of one file in a map of their own, not yet in use.
type filled struct {
	rules *ebpf.Map
	count int
	keys  []support.StackDeltaPageKey
	pages []support.StackDeltaPageInfo
}

// fill copies a table into a new map, in which a rule takes 8 bytes.
func fill(file uint64, t *unwind.Table) (*filled, error) {
	f := &filled{}
	t.Each(func(uint64, uint16) { f.count++ })
	var err error
	if f.rules, err = ebpf.NewMap(rulesSpec(f.count)); err != nil {
		return nil, fmt.Errorf("make room for %d unwind rules: %w", f.count, err)
	}
	if err := f.copy(file, t); err != nil {
		return nil, errors.Join(err, f.rules.Close())
	}
	return f, nil
}

// copy copies the rules, and notes which are of which page.
func (f *filled) copy(file uint64, t *unwind.Table) error {
	first, count := t.Pages()
	f.keys, f.pages = make([]support.StackDeltaPageKey, count), make([]support.StackDeltaPageInfo, count)
	for i := range f.keys {
		f.keys[i] = support.StackDeltaPageKey{FileID: file, Page: first + uint64(i)<<support.StackDeltaPageBits}
	}
	w := ruleWriter{fd: f.rules.FD(), total: f.count}
	t.Each(func(addr uint64, rule uint16) {
		w.put(uint16(addr), rule)
		if page := int((addr - first) >> support.StackDeltaPageBits); addr >= first && page < count {
			f.pages[page].NumDeltas++
		}
	})
	if err := w.close(); err != nil {
		return fmt.Errorf("write %d unwind rules: %w", f.count, err)
	}
	next := uint32(0)
	for i := range f.pages {
		f.pages[i].FirstDelta, f.pages[i].MapID = next, support.StackDeltaBucketSmallest
		next += uint32(f.pages[i].NumDeltas)
	}
	return nil
}

// publish hands a file's rules to the programs: the rules first, so that a page never
// leads to nothing. The kernel waits for all programs to be out of the old map, some
// 20 ms, so it is for a goroutine of its own.
func (m *unwindMaps) publish(file uint64, f *filled) error {
	defer func() { _ = f.rules.Close() }() // the outer map holds it
	o, err := m.wait()
	if err != nil {
		return err
	}
	if err := m.say(o); err != nil {
		return err
	}
	fd := uint32(f.rules.FD())
	if err := o.Rules.Update(&file, &fd, ebpf.UpdateNoExist); err != nil {
		return fmt.Errorf("hand %d unwind rules to the kernel: %w", f.count, err)
	}
	if _, err := o.Pages.BatchUpdate(f.keys, f.pages, nil); err != nil {
		return errors.Join(fmt.Errorf("hand %d pages of unwind rules to the kernel: %w", len(f.keys), err),
			withdraw(o, file, f))
	}
	return nil
}

// withdraw takes a file's rules back.
func (m *unwindMaps) withdraw(file uint64, f *filled) {
	if o, err := m.wait(); err == nil {
		_ = withdraw(o, file, f) // nothing can be done about it
	}
}

// withdraw takes a file's rules back: the pages first.
func withdraw(o *unwindObjects, file uint64, f *filled) error {
	for i := range f.keys {
		_ = o.Pages.Delete(&f.keys[i]) // it may not have got so far
	}
	return o.Rules.Delete(&file)
}
