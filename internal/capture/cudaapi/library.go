package cudaapi

import (
	"debug/elf"
	"errors"
	"fmt"
	"math"
	"os"
	"path"
	"slices"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/capture/uprobe/elffile"
	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// fileID tells files apart. A file that is replaced at its path is another inode.
type fileID struct{ dev, inode uint64 }

func idOf(m proc.Mapping) fileID { return fileID{m.Dev, m.Inode} }

// process is what is probed in one process.
type process struct {
	pid       uint32
	libraries []*library
	launches  *launches
}

func (p *process) has(id fileID) bool {
	for _, l := range p.libraries {
		if l.id == id {
			return true
		}
	}
	return false
}

func (p *process) detach() error {
	errs := make([]error, 1, 2)
	if p.launches != nil {
		errs[0] = p.launches.close()
	}
	return errors.Join(append(errs, atOnce(p.libraries, (*library).detach))...)
}

// closers bounds how many waits of the kernel are waited for at a time, each by a thread.
const closers = 16

// atOnce does f for each of all. Taking probes off waits for a grace period of the kernel, tens of
// milliseconds and on a crowded machine seconds, which all can share.
func atOnce[T any](all []T, f func(T) error) error {
	errs := make([]error, len(all))
	var running errgroup.Group
	running.SetLimit(closers)
	for i, x := range all {
		running.Go(func() error {
			errs[i] = f(x)
			return nil
		})
	}
	_ = running.Wait() // errs has them, all
	return errors.Join(errs...)
}

// library is one mapped file that may be a CUDA library, in one process.
type library struct {
	contents
	id  fileID
	row recording.Library
	// open until it is probed; as long as the process lives where its launches come and go
	file       *os.File
	sites      points             // of all but launches
	waits      *uprobe.Attachment // of sites.waits; nil: there are none, or their probes are off
	attachment *uprobe.Attachment // of sites.plain, likewise
	frequent   *uprobe.Attachment // of sites.frequent, likewise
	shadowed   bool               // a runtime whose driver cannot be probed: its calls are seen here or not at all
	kept       bool               // file stays open
	err        error              // why it could not be read
}

// contents is what a file holds; it is the same for every process that maps it.
type contents struct {
	identity  cuda.Identity // of no kind: not a CUDA library
	machine   elf.Machine
	buildID   string
	release   int                         // of NCCL
	ranks     rankField                   // of NCCL
	functions map[uint64]elffile.Function // by file offset
	names     []cuda.Export               // Addr is the file offset
	plans     map[cuda.Options]*plan      // made so far; guarded by Source.changing
}

func (c *contents) exports() []cuda.Export { return c.names }

func (l *library) base() string { return path.Base(l.row.Path) }

func (l *library) close() {
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
}

func (l *library) detach() error {
	defer l.close()
	return l.unprobe()
}

// unprobe takes all probes off but those of launches.
func (l *library) unprobe() error {
	return errors.Join(l.off(&l.frequent), l.off(&l.attachment), l.off(&l.waits))
}

// off takes some probes off.
func (l *library) off(at **uprobe.Attachment) error {
	if *at == nil {
		return nil
	}
	err := (*at).Close()
	*at = nil
	if err != nil {
		return fmt.Errorf("take the probes off %s in pid %d: %w", l.row.Path, l.row.PID, err)
	}
	return nil
}

// losses reports what of the library cannot be seen, or is seen at a price.
// lost: all probes have gone, for this reason.
func (l *library) losses(pid uint32, lost error) []loss.Loss {
	where := fmt.Sprintf("pid %d: %s", pid, l.row.Path)
	if l.row.Error != "" {
		return []loss.Loss{{Reason: loss.LibraryRefused, Count: 1, PID: pid, Where: where, Detail: l.row.Error}}
	}
	if l.row.Probed == 0 {
		return nil
	}
	if lost != nil {
		return []loss.Loss{l.unprobed(where, lost)}
	}
	var out []loss.Loss
	if failed := l.failed(); len(failed) > 0 {
		out = append(out, loss.Loss{
			Reason: loss.ProbeFailed,
			Count:  uint64(len(failed)),
			PID:    pid,
			Where:  where,
			Detail: failed[0].Error(),
		})
	}
	if dear := l.row.Points - l.row.Cheap; dear > 0 {
		out = append(out, loss.Loss{Reason: loss.ExpensivePoint, Count: uint64(dear), PID: pid, Where: where})
	}
	return out
}

// maxFiles bounds how many files' contents are remembered.
const maxFiles = 16

// files remembers what the last files held, so that a target's hundred workers do
// not have the same library parsed a hundred times.
type files struct {
	known map[version]contents
}

// version tells the contents of files apart.
type version struct {
	id    fileID
	size  int64
	mtime int64 // ns
	ctime int64 // ns: who writes to a file can set its mtime back, and not this
}

// library opens and reads the file of m. It never fails: what went wrong is in the library.
func (f *files) library(p *proc.Process, m proc.Mapping) *library {
	l := &library{id: idOf(m), row: recording.Library{PID: p.PID, Path: m.Path, Inode: m.Inode}}
	if l.file, l.err = proc.Open(p, m); l.err != nil {
		return l
	}
	if l.contents, l.err = f.read(l.id, l.file); l.err != nil {
		return l
	}
	l.row.Kind = string(l.identity.Kind)
	l.row.BuildID = l.buildID
	l.row.Release = l.release
	return l
}

func (f *files) read(id fileID, file *os.File) (contents, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return contents{}, fmt.Errorf("stat: %w", err)
	}
	v := version{id, st.Size, st.Mtim.Nano(), st.Ctim.Nano()}
	if c, ok := f.known[v]; ok {
		return c, nil
	}
	c, err := parse(file, st.Size)
	if err != nil {
		return contents{}, err
	}
	if f.known == nil || len(f.known) >= maxFiles {
		f.known = map[version]contents{}
	}
	f.known[v] = c
	return c, nil
}

// parse reads an ELF file, which may be hostile: elffile bounds everything.
func parse(file *os.File, size int64) (contents, error) {
	lib, err := elffile.Open(file, size)
	if err != nil {
		return contents{}, err
	}
	functions, err := lib.Functions()
	if err != nil {
		return contents{}, err
	}
	c := contents{
		machine:   lib.Machine,
		buildID:   lib.BuildID,
		functions: map[uint64]elffile.Function{},
		plans:     map[cuda.Options]*plan{},
	}
	for _, fn := range functions {
		if fn.Indirect {
			continue // its address is that of a resolver, not of the function
		}
		c.functions[fn.Offset] = fn
		if fn.Name == "ncclGetVersion" {
			c.release = cuda.NCCLRelease(lib.Machine, fn.Code)
		}
		c.names = append(c.names, cuda.Export{Name: fn.Name, Addr: fn.Offset})
	}
	c.ranks = rankField{findRank(file, lib.Machine, functions), c.release}
	c.identity, _ = cuda.Identify(lib.SONAME, c.names)
	return c, nil
}

// names gives every probed function its number, which events carry. A number is
// never used again: the recorder holds events that are older than the process
// whose library brought the name.
type names struct {
	rows    []recording.Function
	numbers map[recording.Function]uint16
}

// index returns the number of f, a new one if f is new. A hostile library can
// bring made-up names, so there is an end to it.
func (n *names) index(f recording.Function) (uint16, error) {
	if i, ok := n.numbers[f]; ok {
		return i, nil
	}
	if len(n.rows) > math.MaxUint16 {
		return 0, fmt.Errorf("more than %d different functions: restart the daemon to probe %s",
			math.MaxUint16+1, f.Name)
	}
	if n.numbers == nil {
		n.numbers = map[recording.Function]uint16{}
	}
	i := uint16(len(n.rows))
	n.rows = append(n.rows, f)
	n.numbers[f] = i
	return i, nil
}

// table returns a copy of all rows, by number.
func (n *names) table() []recording.Function { return slices.Clone(n.rows) }
