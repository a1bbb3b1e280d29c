package profile

import (
	"context"
	"errors"
	"runtime/debug"
	"sync"
	"time"

	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/lpm"
	"go.opentelemetry.io/ebpf-profiler/support"
	"go.uber.org/zap"

	"github.com/inferscope/inferscope/internal/capture/profile/unwind"
	"github.com/inferscope/inferscope/internal/capture/symbol"
)

// Bounds of what is known, and handed to the kernel.
const (
	maxImages     = 8192
	maxProcesses  = 8192
	maxSpaces     = 4096     // mappings of code of one process
	maxLoaded     = 12 << 20 // rules in the kernel, 8 bytes each there
	maxPrefixes   = 1 << 20  // stretches of memory that are mapped, of all processes
	maxPages      = 1 << 16  // of 64 KiB of code: 4 GiB
	maxPublishing = 32       // files on their way to the programs at a time
)

// smallTable is up to how many bytes of .eh_frame a file is read before a stack needs it.
// A PyTorch maps 90 files: 80 are smaller, and cost 0.1 s together; the others, which
// it mostly has for one function or none, cost 2 s.
const smallTable = 512 << 10

// loader tells the library's programs what processes have mapped, and hands them the unwind tables of files. It stands
// in for the library's process manager, which reads the tables of all files of a process, in the order of their
// addresses, before the programs learn of the first: 1.7 s of CPU and 240 MB for a PyTorch (unwind, BenchmarkStartup).
// Here mappings are told of at once; a stack that ends in a file without tables says by that which file is wanted most;
// and what no stack goes through is not read at all.
type loader struct {
	log     *zap.Logger
	maps    *unwindMaps
	convert *converter
	release func()        // gives memory back to the kernel, which costs as much as reading a small file
	wake    chan struct{} // has one in it where there may be something to read
	met     chan []libpf.PIDTID

	mu        sync.Mutex
	images    map[uint64]*image // by number
	byKey     map[imageKey]*image
	processes map[uint32]*processSpace
	last      uint64 // number
	loaded    int    // rules

	numbers    map[support.UnwindInfo]uint16 // used by the goroutine that reads
	publishing chan struct{}
}

// imageKey tells files apart. The path is part of it because names are looked up by it.
type imageKey struct {
	file symbol.Key
	path string
}

// image is one file with code, as the programs know it.
type image struct {
	number   uint64 // never used again
	key      imageKey
	module   *module
	size     uint64 // bytes of .eh_frame
	segments symbol.Segments

	state    imageState
	cut      string // refused: why stacks end in it
	wanted   int    // stacks that ended in it for want of its tables
	users    int    // mappings
	unused   time.Time
	holder   holder // opens the file
	unopened bool   // it could not: the process is gone
	filled   *filled
}

type imageState uint8

const (
	unread imageState = iota
	reading
	ready
	refused
)

// newLoader returns a loader that stands in for the library's process manager.
func newLoader(log *zap.Logger, c *converter) *loader {
	return &loader{
		log: log, maps: newUnwindMaps(), convert: c, release: debug.FreeOSMemory, wake: make(chan struct{}, 1),
		met:    make(chan []libpf.PIDTID, 1),
		images: map[uint64]*image{}, byKey: map[imageKey]*image{}, processes: map[uint32]*processSpace{},
		numbers: map[support.UnwindInfo]uint16{}, publishing: make(chan struct{}, maxPublishing),
	}
}

// start runs until ctx is done.
func (l *loader) start(ctx context.Context) {
	go l.follow(ctx)
	go l.read(ctx)
}

// follow learns of processes.
func (l *loader) follow(ctx context.Context) {
	cleanup := time.NewTicker(cleanupEvery)
	defer cleanup.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case met := <-l.met:
			for _, event := range met {
				l.synchronise(event)
			}
		case <-cleanup.C:
			l.clean(time.Now())
		}
	}
}

// read reads one file after the other, while there are any.
func (l *loader) read(ctx context.Context) {
	table := unwind.New(l)
	used := false
	for {
		x := l.next()
		if x == nil {
			// What is left of reading goes back to the kernel: most of the time nothing is read.
			if used {
				used = false
				table.Release()
				l.release()
			}
			select {
			case <-ctx.Done():
				return
			case <-l.wake:
			}
			continue
		}
		if ctx.Err() != nil {
			return
		}
		used = true
		table.Reset()
		l.load(x, table)
	}
}

// poke makes read look for something to do.
func (l *loader) poke() {
	select {
	case l.wake <- struct{}{}:
	default: // it is told already
	}
}

// next chooses the file to read: the one that most stacks wait for, else the smallest.
func (l *loader) next() *image {
	l.mu.Lock()
	defer l.mu.Unlock()
	var best *image
	for _, x := range l.images {
		if x.state != unread || x.users == 0 || x.wanted == 0 && x.size > smallTable {
			continue
		}
		if best == nil || x.wanted > best.wanted || x.wanted == best.wanted && x.size < best.size {
			best = x
		}
	}
	if best != nil {
		best.state = reading
	}
	return best
}

// want notes that a stack ended in a file for want of its tables, and reports whether they may come.
func (l *loader) want(number uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.images[number]
	if x == nil || x.state == ready || x.state == refused {
		return false
	}
	if x.wanted++; x.wanted == 1 && x.state == unread {
		l.poke()
	}
	return true
}

// load reads a file's tables into table, and lets the programs have them.
func (l *loader) load(x *image, table *unwind.Table) {
	f, err := l.tables(x, table)
	if err != nil {
		l.log.Debug("native code is not unwound", zap.String("path", x.key.path), zap.Error(err))
		l.refuse(x, cutUnread)
		return
	}
	l.publishing <- struct{}{}
	go func() {
		defer func() { <-l.publishing }()
		l.publish(x, f)
	}()
}

// publish lets the programs have the rules of a file. Where the kernel does not take them they are out of the count
// again.
func (l *loader) publish(x *image, f *filled) {
	if err := l.maps.publish(x.number, f); err != nil {
		l.log.Debug("native code is not unwound", zap.String("path", x.key.path), zap.Error(err))
		l.giveBack(f)
		l.refuse(x, cutRefused)
		return
	}
	l.done(x, f)
}

// giveBack takes the rules of a file out of the count.
func (l *loader) giveBack(f *filled) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.loaded -= f.count
}

// done notes that the programs have the rules of a file.
func (l *loader) done(x *image, f *filled) {
	l.mu.Lock()
	defer l.mu.Unlock()
	x.state, x.filled = ready, f
}

// refuse notes that they will not have them, and why stacks end there.
func (l *loader) refuse(x *image, cut string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	x.state, x.cut = refused, cut
}

var errFull = errors.New("the unwinder has as many rules as it may")

// tables reads a file into a map.
func (l *loader) tables(x *image, table *unwind.Table) (*filled, error) {
	l.mu.Lock()
	from := x.holder
	l.mu.Unlock()
	in, err := from.open()
	if err != nil {
		l.mu.Lock()
		x.unopened = true // through the process that is gone; there may be another
		l.mu.Unlock()
		return nil, err
	}
	defer in.Close()
	if err := table.Read(in, x.key.path, from.process); err != nil {
		return nil, err
	}
	f, err := fill(x.number, table)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.loaded+f.count > maxLoaded {
		return nil, errors.Join(errFull, f.rules.Close())
	}
	l.loaded += f.count
	return f, nil
}

// Number numbers an unwind rule.
func (l *loader) Number(info support.UnwindInfo) (uint16, error) {
	if number, ok := l.numbers[info]; ok {
		return number, nil
	}
	number := len(l.numbers)
	if number >= support.UnwindInfoMaxEntries {
		return 0, unwind.ErrTooLarge
	}
	l.maps.describe(info)
	l.numbers[info] = uint16(number)
	return uint16(number), nil
}

// marker is the prefix that says to the programs that a process is known.
func marker() []lpm.Prefix { return []lpm.Prefix{{Key: 0, Length: support.BitWidthPage}} }
