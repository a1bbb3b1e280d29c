package probe

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
func AttachProgram(mode Mode, prog *ebpf.Program, file *os.File, pid uint32, sites []Site) (*Attachment, error) {
	if pid == 0 || pid > 1<<31-1 {
		return nil, fmt.Errorf("attach to pid %d: %w", pid, ErrNoProcess)
	}
	b := batch{name: "entry", prog: prog, attach: attachUprobeMulti, sites: sites}
	at := place{path: pathOf(file), pid: pid}
	if mode == Perf {
		b.attach = attachPerfEvent
		var err error
		if at.pmu, err = uprobePMU(); err != nil {
			return nil, err
		}
	}
	out := &Attachment{mode: mode}
	failed, err := out.add(b, at)
	runtime.KeepAlive(file)
	if err == nil && len(out.links) == 0 && len(failed) > 0 {
		err = failed[0]
	}
	if err != nil {
		return nil, errors.Join(attachError(file, pid, err), out.Close())
	}
	out.failed = failed
	return out, nil
}

// Detect returns the best mode that works here, as NewAttacher chooses it.
func Detect() (Mode, error) {
	a, err := NewAttacher(Options{})
	if err != nil {
		return "", err
	}
	return a.Mode(), a.Close()
}
