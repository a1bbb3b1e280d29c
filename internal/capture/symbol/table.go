package symbol

import (
	"container/list"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/inferscope/inferscope/internal/format/symname"
)

// maxKeys bounds under how many keys one index is kept: each time a file is touched
// it gets another.
const maxKeys = 256

// Table names addresses, and keeps what it needs for that within a budget. It is
// safe for concurrent use.
type Table struct {
	budget int64
	full   bool
	vdso   func() (File, error) // read once
	now    func() time.Time

	building sync.Mutex // one build at a time, so that at most one needs memory

	mu     sync.Mutex
	files  map[any]*slot
	shared map[identity]*index
	recent *list.List // of *index, the last used first
	bytes  int64
	stats  Stats
}

// slot is the place of an index in the table, taken before it is built.
type slot struct {
	done  chan struct{} // closed when index and err are set
	index *index
	err   error
	space *space // where it is of a process's memory
}

// New returns an empty Table.
func New(o Options) *Table {
	if o.Budget <= 0 {
		o.Budget = defaultBudget
	}
	return &Table{
		budget: o.Budget,
		full:   o.Full,
		vdso:   sync.OnceValues(openVDSO),
		now:    time.Now,
		files:  map[any]*slot{},
		shared: map[identity]*index{},
		recent: list.New(),
	}
}

// Stats returns what the table did so far.
func (t *Table) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.stats
	s.Indexes, s.Bytes = t.recent.Len(), t.bytes
	return s
}

// Resolve names the address addr of a module, as the file's program headers number
// it (Segments.Address). To name the caller in a stack, pass the return address less
// one: a call can be the last instruction of a function.
//
// Where the file has no symbol for the address, or cannot be read, Name is "".
func (t *Table) Resolve(m Module, addr uint64) Symbol {
	name, start, _ := t.look(m, addr)
	if name == "" {
		return Symbol{Offset: addr, Module: m.base()}
	}
	return Symbol{Name: name, Offset: addr - start, Module: m.base()}
}

// Check reports why the addresses of a module have no names: an error where its file
// could not be opened or made no sense, nil where it was read. It builds the index.
func (t *Table) Check(m Module) error {
	in := &handle{module: m}
	defer in.close()
	_, err := t.index(in)
	return err
}

func (t *Table) look(m Module, addr uint64) (name string, start uint64, err error) {
	in := &handle{module: m}
	defer in.close()
	x, err := t.index(in)
	if err != nil {
		t.count(&t.stats.Failures)
		return "", 0, err
	}
	key, start, ok := x.find(addr)
	if !ok {
		t.count(&t.stats.Hits)
		return "", 0, nil
	}
	if name, ok := t.known(x, key); ok {
		return name, start, nil
	}
	name, err = t.read(x, key, in)
	return name, start, err
}

func (t *Table) count(n *uint64) {
	t.mu.Lock()
	*n++
	t.mu.Unlock()
}

// known returns a name that was read before.
func (t *Table) known(x *index, key nameKey) (string, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	name, ok := x.names[key]
	if ok {
		t.stats.Hits++
	}
	return name, ok
}

// read reads a name, for people, and keeps it.
func (t *Table) read(x *index, key nameKey, in *handle) (string, error) {
	raw, err := in.name(x.tables[key.table], int(key.at))
	if err != nil {
		t.count(&t.stats.Failures)
		return "", err
	}
	name := symname.Demangle(raw, t.full)
	t.keep(x, key, name)
	return name, nil
}

// keep adds a name to an index.
func (t *Table) keep(x *index, key nameKey, name string) {
	const entry = 64 // bytes of a map's entry
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stats.Misses++
	if _, ok := x.names[key]; ok || x.element == nil {
		return
	}
	cost := int64(len(name)) + entry
	// Names cost a read to get again: rather them than the index.
	if x.named+cost > t.budget/4 {
		t.bytes -= x.named
		x.names, x.named = map[nameKey]string{}, 0
	}
	x.names[key] = name
	x.named += cost
	t.bytes += cost
	t.shrink(x)
}

// index returns the index of a module, building it where it is not there.
func (t *Table) index(in *handle) (*index, error) {
	key, err := in.key()
	if err != nil {
		return nil, err
	}
	s, mine := t.slot(key)
	if mine {
		t.build(key, s, in)
	}
	<-s.done
	return s.index, s.err
}

// slot returns the slot of a key; mine says that the caller must fill it.
func (t *Table) slot(key any) (s *slot, mine bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s = t.files[key]; s != nil {
		if s.index != nil && s.index.element != nil {
			t.recent.MoveToFront(s.index.element)
		}
		return s, false
	}
	s = &slot{done: make(chan struct{})}
	t.files[key] = s
	return s, true
}

// build fills a slot. A file that makes no sense has an empty index, so that it is
// not read again; one that could not be read is forgotten.
func (t *Table) build(key any, s *slot, in *handle) {
	t.building.Lock()
	defer t.building.Unlock()
	x, err := t.make(in)
	t.mu.Lock()
	defer t.mu.Unlock()
	defer close(s.done)
	if isIO(err) {
		s.err = err
		delete(t.files, key)
		return
	}
	s.index, s.err = x, err
	t.insert(key, x)
}

// make reads the index of a file, or finds it under another key.
func (t *Table) make(in *handle) (*index, error) {
	empty := &index{}
	f, err := in.file()
	if err != nil {
		return empty, err
	}
	key, err := Identify(f)
	if err != nil {
		return empty, err
	}
	im, err := openImage(f, key.size)
	if err != nil {
		return empty, fmt.Errorf("reading the symbols of %s: %w", in.module.base(), err)
	}
	b := builder{module: in.module, im: im, id: im.buildID(), budget: t.budget}
	id := identity{b.id, im.size, im.headers, owner(f)}
	if x := t.same(id); x != nil {
		return x, nil
	}
	tables, err := b.build()
	if err != nil {
		return empty, fmt.Errorf("reading the symbols of %s: %w", in.module.base(), err)
	}
	x := &index{tables: tables}
	if id.buildID != "" {
		x.shared = id
	}
	return x, nil
}

func owner(f File) uint32 {
	if info, err := f.Stat(); err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			return st.Uid
		}
	}
	return 0
}

func (t *Table) same(id identity) *index {
	if id.buildID == "" {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.shared[id]
}

// insert puts an index into the table under a key. The caller holds the lock.
func (t *Table) insert(key any, x *index) {
	if x.element == nil {
		x.names = map[nameKey]string{}
		x.fixed = indexBytes
		for _, f := range x.tables {
			x.fixed += f.bytes()
		}
		x.element = t.recent.PushFront(x)
		t.bytes += x.fixed
		t.stats.Builds++
		if x.shared.buildID != "" {
			t.shared[x.shared] = x
		}
	}
	if len(x.keys) == maxKeys {
		delete(t.files, x.keys[0])
		x.keys = x.keys[1:]
	}
	x.keys = append(x.keys, key)
	t.shrink(x)
}

// shrink drops what was not used for longest until the budget is kept; never what is
// in use now. The caller holds the lock.
func (t *Table) shrink(inUse *index) {
	for t.bytes > t.budget {
		last := t.recent.Back()
		if last == nil || last.Value.(*index) == inUse {
			return
		}
		t.drop(last.Value.(*index))
		t.stats.Evictions++
	}
}

// drop forgets an index. Whoever still looks into it may finish.
func (t *Table) drop(x *index) {
	t.recent.Remove(x.element)
	x.element = nil
	for _, k := range x.keys {
		delete(t.files, k)
	}
	x.keys = nil
	if t.shared[x.shared] == x {
		delete(t.shared, x.shared)
	}
	t.bytes -= x.fixed + x.named
}
