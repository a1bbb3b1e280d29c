package uprobe

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/cilium/ebpf"
)

// AttachProgram puts a program of the caller's own on the entries of sites of file in
// process pid, as Attacher.Attach does its own. The program must have been loaded for
// the mode: with ebpf.AttachTraceUprobeMulti for Multi and Session, with none for Perf.
// linkHolder is as in Options.
func AttachProgram(
	linkHolder *LinkHolder,
	mode Mode,
	prog *ebpf.Program,
	file *os.File,
	pid uint32,
	sites []Site,
) (*Attachment, error) {
	return attachProgram(linkHolder, mode, batch{name: "entry", prog: prog.FD(), sites: sites}, prog, file, pid)
}

// AttachReturns is AttachProgram for the returns of the functions whose entries sites are.
func AttachReturns(
	linkHolder *LinkHolder,
	mode Mode,
	prog *ebpf.Program,
	file *os.File,
	pid uint32,
	sites []Site,
) (*Attachment, error) {
	return attachProgram(linkHolder, mode, batch{name: "return", prog: prog.FD(), ret: true, sites: sites}, prog, file, pid)
}

func attachProgram(
	linkHolder *LinkHolder,
	mode Mode,
	b batch,
	prog *ebpf.Program,
	file *os.File,
	pid uint32,
) (*Attachment, error) {
	if pid == 0 || pid > 1<<31-1 {
		return nil, fmt.Errorf("attach to pid %d: %w", pid, ErrNoProcess)
	}
	b.attach = attachUprobeMulti
	at := place{file: file, pid: pid, noReturns: returnsKill(pid)}
	if mode == Perf {
		b.attach = attachPerfEvent
		var err error
		if at.pmu, err = uprobePMU(); err != nil {
			return nil, err
		}
	}
	out, err := newAttachment(linkHolder, mode)
	if err != nil {
		return nil, attachError(file, pid, err)
	}
	if out.failed, err = out.add(b, at); err != nil {
		return nil, errors.Join(attachError(file, pid, err), out.Close())
	}
	runtime.KeepAlive(prog)
	return out.orNothing(file, pid)
}

// Detect returns the best mode that works here, as NewAttacher chooses it.
func Detect() (Mode, error) {
	a, err := NewAttacher(Options{})
	if err != nil {
		return "", err
	}
	return a.Mode(), a.Close()
}
