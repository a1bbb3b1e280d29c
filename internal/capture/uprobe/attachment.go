package uprobe

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/bpf"
)

// ErrNoProcess means that the process has gone.
var ErrNoProcess = errors.New("no such process")

// Failure is a site that could not be probed.
type Failure struct {
	Site Site
	Err  error
}

// Error reports which site failed and why.
func (f Failure) Error() string {
	return fmt.Sprintf("probe at file offset %#x: %v", f.Site.Offset, f.Err)
}

// Unwrap returns the cause.
func (f Failure) Unwrap() error { return f.Err }

// Attachment is the probes on one file in one process.
type Attachment struct {
	mode   Mode
	failed []Failure

	mu   sync.Mutex
	held holder // nil: closed
	ids  []uint32
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
	out, err := newAttachment(a.linkHolder, a.mode)
	if err != nil {
		return nil, attachError(file, pid, err)
	}
	at := place{file: file, pid: pid, pmu: a.pmu, noReturns: returnsKill(pid)}
	for _, b := range a.batches(sites) {
		b.sites = without(b.sites, out.failed)
		failed, err := out.add(b, at)
		if err != nil {
			return nil, errors.Join(attachError(file, pid, err), out.Close())
		}
		out.failed = append(out.failed, failed...)
	}
	runtime.KeepAlive(a)
	return out.orNothing(file, pid)
}

// newAttachment returns an Attachment without links. Without a link holder this process holds them.
func newAttachment(linkHolder *LinkHolder, mode Mode) (*Attachment, error) {
	if linkHolder == nil {
		return &Attachment{mode: mode, held: &own{}}, nil
	}
	held, err := linkHolder.hold()
	return &Attachment{mode: mode, held: held}, err
}

// orNothing returns at, or says why it probes nothing.
func (at *Attachment) orNothing(file *os.File, pid uint32) (*Attachment, error) {
	if len(at.ids) == 0 && len(at.failed) > 0 {
		return nil, errors.Join(attachError(file, pid, at.failed[0]), at.Close())
	}
	return at, nil
}

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
	prog := func(name string) int { return a.coll.Programs[name].FD() }
	switch a.mode {
	case Session:
		return []batch{
			{name: "session", prog: prog(bpf.CallsProgCallSession), attach: attachUprobeSession, sites: timed},
			{name: "entry", prog: prog(bpf.CallsProgCallEntry), attach: attachUprobeMulti, sites: once},
		}
	case Multi:
		return []batch{
			{name: "return", prog: prog(bpf.CallsProgCallReturn), attach: attachUprobeMulti, ret: true, sites: timed},
			{name: "enter", prog: prog(bpf.CallsProgCallEnter), attach: attachUprobeMulti, sites: timed},
			{name: "entry", prog: prog(bpf.CallsProgCallEntry), attach: attachUprobeMulti, sites: once},
		}
	}
	return []batch{
		{name: "return", prog: prog(bpf.CallsProgPerfReturn), attach: attachPerfEvent, ret: true, sites: timed},
		{name: "enter", prog: prog(bpf.CallsProgPerfEnter), attach: attachPerfEvent, sites: timed},
		{name: "entry", prog: prog(bpf.CallsProgPerfEntry), attach: attachPerfEvent, sites: once},
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
	if b.ret && where.noReturns != nil {
		failed := make([]Failure, 0, len(b.sites))
		for _, s := range b.sites {
			failed = append(failed, Failure{Site: s, Err: fmt.Errorf("%s: %w", b.name, where.noReturns)})
		}
		return failed, nil
	}
	if len(b.sites) == 1 || b.attach != attachPerfEvent && len(b.sites) <= maxSites {
		id, err := at.held.link(b, where)
		switch {
		case err == nil:
			at.ids = append(at.ids, id)
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
func (at *Attachment) LinkIDs() []uint32 {
	at.mu.Lock()
	defer at.mu.Unlock()
	return slices.Clone(at.ids)
}

// Close removes the probes. When it returns no program runs for them any more. It
// may be called again.
func (at *Attachment) Close() error {
	at.mu.Lock()
	held := at.held
	at.held, at.ids = nil, nil
	at.mu.Unlock()
	if held == nil {
		return nil
	}
	return held.close()
}
