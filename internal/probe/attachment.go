package probe

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/bpf"
)

// ErrNoProcess says that the process has gone.
var ErrNoProcess = errors.New("no such process")

// closers is how many links are closed at a time: the few of Session and Multi
// share the kernel's grace period so. Nothing helps those of Perf: the kernel closes
// them one by one under one lock, 0.1 s each (600 functions, 800 events: 93 s on
// 6.18, whether 1 or 256 at a time).
const closers = 8

// Failure is a site that could not be probed.
type Failure struct {
	Site Site
	Err  error
}

// Error says which site failed and why.
func (f Failure) Error() string {
	return fmt.Sprintf("probe at file offset %#x: %v", f.Site.Offset, f.Err)
}

// Unwrap returns the cause.
func (f Failure) Unwrap() error { return f.Err }

// Attachment is the probes on one file in one process.
type Attachment struct {
	mode   Mode
	failed []Failure

	mu    sync.Mutex
	links []int
}

// Attach probes sites of file in process pid, with all its threads, now and
// wherever that process maps the file later. The probed inode is that of the open
// file, whatever its path leads to by now. pid is as this process's pid namespace
// numbers it.
//
// Sites that cannot be probed are left out and reported by Failed. The error is
// ErrNoProcess where the process has gone, and otherwise says why nothing is probed.
func (a *Attacher) Attach(file *os.File, pid uint32, sites []Site) (*Attachment, error) {
	if pid == 0 || pid > 1<<31-1 {
		return nil, fmt.Errorf("attach to pid %d: %w", pid, ErrNoProcess)
	}
	at := place{path: pathOf(file), pid: pid, pmu: a.pmu}
	out := &Attachment{mode: a.mode}
	for _, b := range a.batches(sites) {
		b.sites = without(b.sites, out.failed)
		failed, err := out.add(b, at)
		if err != nil {
			return nil, errors.Join(attachError(file, pid, err), out.Close())
		}
		out.failed = append(out.failed, failed...)
	}
	runtime.KeepAlive(file)
	if len(out.links) == 0 && len(out.failed) > 0 {
		return nil, attachError(file, pid, out.failed[0])
	}
	return out, nil
}

// pathOf names the inode itself, not where it was found.
func pathOf(file *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(file.Fd())) }

func attachError(file *os.File, pid uint32, err error) error {
	if errors.Is(err, unix.ESRCH) {
		err = fmt.Errorf("%w: %w", ErrNoProcess, err)
	}
	return fmt.Errorf("attach to pid %d, file %s: %w", pid, file.Name(), err)
}

// batches sorts sites by what they need. Returns come before entries, so that no
// call is entered without its return being caught; a return without its entry is
// counted by the program (LOSS_NO_ENTRY).
func (a *Attacher) batches(sites []Site) []batch {
	var once, timed []Site
	for _, s := range sites {
		if s.Timed {
			timed = append(timed, s)
		} else {
			once = append(once, s)
		}
	}
	prog := a.coll.Programs
	switch a.mode {
	case Session:
		return []batch{
			{name: "session", prog: prog[bpf.CallsProgCallSession], attach: attachUprobeSession, sites: timed},
			{name: "entry", prog: prog[bpf.CallsProgCallEntry], attach: attachUprobeMulti, sites: once},
		}
	case Multi:
		return []batch{
			{name: "return", prog: prog[bpf.CallsProgCallReturn], attach: attachUprobeMulti, ret: true, sites: timed},
			{name: "enter", prog: prog[bpf.CallsProgCallEnter], attach: attachUprobeMulti, sites: timed},
			{name: "entry", prog: prog[bpf.CallsProgCallEntry], attach: attachUprobeMulti, sites: once},
		}
	}
	return []batch{
		{name: "return", prog: prog[bpf.CallsProgPerfReturn], attach: attachPerfEvent, ret: true, sites: timed},
		{name: "enter", prog: prog[bpf.CallsProgPerfEnter], attach: attachPerfEvent, sites: timed},
		{name: "entry", prog: prog[bpf.CallsProgPerfEntry], attach: attachPerfEvent, sites: once},
	}
}

func without(sites []Site, failed []Failure) []Site {
	if len(failed) == 0 {
		return sites
	}
	bad := make(map[Site]bool, len(failed))
	for _, f := range failed {
		bad[f.Site] = true
	}
	var good []Site
	for _, s := range sites {
		if !bad[s] {
			good = append(good, s)
		}
	}
	return good
}

// add attaches b. Where the kernel refuses a batch because of some of its sites, it
// does not say which: halves are tried until the refused ones stand alone.
func (at *Attachment) add(b batch, where place) ([]Failure, error) {
	if len(b.sites) == 0 {
		return nil, nil
	}
	if b.attach != attachPerfEvent || len(b.sites) == 1 {
		fd, err := link(b, where)
		switch {
		case err == nil:
			at.links = append(at.links, fd)
			return nil, nil
		case !concerns(err):
			return nil, fmt.Errorf("%s probes: %w", b.name, err)
		case len(b.sites) == 1:
			return []Failure{{Site: b.sites[0], Err: fmt.Errorf("%s: %w", b.name, err)}}, nil
		}
	}
	left, right := b, b
	left.sites, right.sites = b.sites[:len(b.sites)/2], b.sites[len(b.sites)/2:]
	failed, err := at.add(left, where)
	if err != nil {
		return nil, err
	}
	more, err := at.add(right, where)
	return append(failed, more...), err
}

// Mode is how the probes are attached.
func (at *Attachment) Mode() Mode { return at.mode }

// Failed returns the sites that are not probed.
func (at *Attachment) Failed() []Failure { return at.failed }

// LinkIDs returns the kernel's ids of the links that are open.
func (at *Attachment) LinkIDs() ([]uint32, error) {
	at.mu.Lock()
	defer at.mu.Unlock()
	ids := make([]uint32, 0, len(at.links))
	for _, fd := range at.links {
		id, err := linkID(fd)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// Close removes the probes. When it returns no program runs for them any more. It
// may be called again.
func (at *Attachment) Close() error {
	at.mu.Lock()
	links := at.links
	at.links = nil
	at.mu.Unlock()
	// The last batch holds the launches, which cost the target most: off first,
	// where it takes the kernel long.
	slices.Reverse(links)

	errs := make([]error, len(links))
	slots := make(chan struct{}, closers)
	var wg sync.WaitGroup
	for i, fd := range links {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := unix.Close(fd); err != nil {
				errs[i] = fmt.Errorf("close uprobe link: %w", err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
