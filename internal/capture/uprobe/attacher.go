package uprobe

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/bpf"
)

// Options configure an Attacher.
type Options struct {
	// LinkHolder makes and holds the links. nil: this process does, and leaves breakpoints
	// in the target where it is killed in the moment in which it makes or closes them.
	LinkHolder *LinkHolder
	// Mode forces a way to attach; "" takes the best that works.
	Mode Mode
	// Maps replace maps of the programs by name: "rings" and "losses", as
	// ring.Rings.Maps gives them.
	Maps map[string]*ebpf.Map
}

// Attacher puts the programs for CUDA calls on functions of mapped files. It is
// safe for concurrent use.
type Attacher struct {
	mode       Mode
	coll       *ebpf.Collection
	linkHolder *LinkHolder // nil: none
	pmu        uint32      // Perf only
	trial      []error
}

// NewAttacher loads the programs, and attaches them to a file of its own for a
// moment to learn which Mode this kernel has (Session from 6.13, Multi from 6.6
// with the filter by process of 6.10, Perf from 5.15). It needs CAP_BPF and
// CAP_PERFMON, CAP_SYS_PTRACE for Multi and Session, CAP_SYS_ADMIN for Perf. The
// error says for each mode that was tried why it does not work.
func NewAttacher(opts Options) (*Attacher, error) {
	modes := []Mode{Session, Multi, Perf}
	if opts.Mode != "" {
		modes = []Mode{opts.Mode}
	}
	var trial []error
	for _, mode := range modes {
		a, err := load(mode, opts.Maps)
		if err == nil {
			a.trial, a.linkHolder = trial, opts.LinkHolder
			return a, nil
		}
		trial = append(trial, fmt.Errorf("mode %s: %w", mode, err))
	}
	return nil, fmt.Errorf(
		"no way to attach uprobes works here (run as root, or see `inferscoped --help` for the capabilities): %w",
		errors.Join(trial...),
	)
}

// Mode is how this Attacher attaches.
func (a *Attacher) Mode() Mode { return a.mode }

// Rejected reports why the modes that are better than Mode do not work here.
func (a *Attacher) Rejected() []error { return a.trial }

// Close frees the programs. Attachments that are still open keep theirs.
func (a *Attacher) Close() error {
	a.coll.Close()
	return nil
}

func load(mode Mode, maps map[string]*ebpf.Map) (*Attacher, error) {
	names, ok := programs(mode)
	if !ok {
		return nil, fmt.Errorf("unknown; it is one of %s, %s, %s", Session, Multi, Perf)
	}
	coll, err := loadPrograms(names, maps)
	if err != nil {
		return nil, err
	}
	a := &Attacher{mode: mode, coll: coll}
	if mode == Perf {
		a.pmu, err = uprobePMU()
	}
	if err == nil {
		err = a.try()
	}
	if err != nil {
		coll.Close()
		return nil, err
	}
	return a, nil
}

// programs names what a mode needs. Only that is loaded: an older kernel's verifier
// refuses programs for newer ways.
func programs(mode Mode) ([]string, bool) {
	switch mode {
	case Session:
		return []string{bpf.CallsProgCallEntry, bpf.CallsProgCallSession}, true
	case Multi:
		return []string{bpf.CallsProgCallEntry, bpf.CallsProgCallEnter, bpf.CallsProgCallReturn}, true
	case Perf:
		return []string{bpf.CallsProgPerfEntry, bpf.CallsProgPerfEnter, bpf.CallsProgPerfReturn}, true
	}
	return nil, false
}

func loadPrograms(names []string, maps map[string]*ebpf.Map) (*ebpf.Collection, error) {
	spec, err := bpf.LoadCalls()
	if err != nil {
		return nil, fmt.Errorf("read the embedded programs: %w", err)
	}
	all := spec.Programs
	spec.Programs = make(map[string]*ebpf.ProgramSpec)
	for _, name := range names {
		spec.Programs[name] = all[name]
	}
	for name, m := range maps {
		ms := spec.Maps[name]
		if ms == nil {
			return nil, fmt.Errorf("the programs have no map %q", name)
		}
		// How many CPUs there are is known only here.
		ms.MaxEntries = m.MaxEntries()
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: maps})
	if err != nil {
		return nil, fmt.Errorf("load programs: %w", err)
	}
	return coll, nil
}

// try attaches to a file of this process's own that nothing maps, so that no
// instruction anywhere is touched, whenever it is killed.
func (a *Attacher) try() error {
	file, err := scratchFile()
	if err != nil {
		return err
	}
	defer file.Close()
	if err := a.filtersByProcess(file); err != nil {
		return err
	}
	at, err := a.Attach(file, uint32(os.Getpid()), []Site{{Offset: 0}, {Offset: 16, Timed: true}})
	if err != nil {
		return err
	}
	failed := at.Failed()
	// The kernel may take a minute to take probes off where threads of high priority leave other work no CPU
	// (synchronize_srcu in bpf_uprobe_multi_link_release): nobody waits for that. The links hold the file.
	go func() { _ = at.Close() }()
	if len(failed) > 0 {
		return failed[0]
	}
	return nil
}

func scratchFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("inferscope-probe", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	file := os.NewFile(uintptr(fd), "inferscope-probe")
	if _, err := file.Write(make([]byte, os.Getpagesize())); err != nil {
		file.Close()
		return nil, fmt.Errorf("write memfd: %w", err)
	}
	return file, nil
}

var errThreadFilter = errors.New("uprobe_multi filters by thread, not by process (kernel before 6.10)")

// filtersByProcess refuses kernels whose uprobe_multi takes the pid for a thread's
// (fixed in 6.10 by 46ba0e49b642): they would miss every other thread. Such a
// kernel accepts the id of any thread, a fixed one only that of a process.
func (a *Attacher) filtersByProcess(file *os.File) error {
	if a.mode == Perf {
		return nil
	}
	tid, err := ownThread()
	if err != nil {
		return err
	}
	b := batch{prog: a.coll.Programs[bpf.CallsProgCallEntry].FD(), attach: attachUprobeMulti, sites: []Site{{}}}
	fd, err := link(b, place{file: file, pid: tid})
	switch {
	case err == nil:
		unix.Close(fd)
		return errThreadFilter
	case errors.Is(err, unix.ESRCH):
		return nil
	}
	return fmt.Errorf("try uprobe_multi: %w", err)
}

// ownThread returns a thread of this process that is not its first one. The Go
// runtime starts its monitor before main.
func ownThread() (uint32, error) {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return 0, fmt.Errorf("list own threads: %w", err)
	}
	for _, e := range entries {
		tid, err := strconv.Atoi(e.Name())
		if err == nil && tid != os.Getpid() {
			return uint32(tid), nil
		}
	}
	return 0, errors.New("this process has no second thread")
}
