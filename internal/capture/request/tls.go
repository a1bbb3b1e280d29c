package request

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/capture/uprobe/elffile"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// maxTLSLibraries bounds how many copies of OpenSSL are probed in one process: Python packages bring their own.
const maxTLSLibraries = 16

// tlsFunctions are the functions of OpenSSL that plaintext goes through, with the cookie that the programs know each
// by (TLS_WRITE and TLS_EX of bpf/request.bpf.c).
var tlsFunctions = map[string]uint64{"SSL_read": 0, "SSL_write": 1, "SSL_read_ex": 2, "SSL_write_ex": 3}

const tlsFree = "SSL_free"

// callsTLS reports whether a file of this name is one of a program that is known not to switch stacks within SSL_read
// or SSL_write. The kernel keeps the return addresses of probed functions by thread, in order: a program with fibers
// that leaves SSL_read for another fiber would return to the wrong place. So no other programs are probed.
func callsTLS(base string) bool {
	switch base {
	case "nginx", "haproxy", "node", "llama-server":
		return true
	}
	return strings.HasPrefix(base, "_ssl.") || strings.HasPrefix(base, "python")
}

// tlsCandidate reports whether a file of this name may export OpenSSL's functions: the library, also one that a
// package brings under a longer name, and programs that have it within.
func tlsCandidate(base string) bool { return strings.HasPrefix(base, "libssl") || callsTLS(base) }

// tlsLibrary is one mapped file.
type tlsLibrary struct {
	dev, inode  uint64
	path        string
	file        *os.File // open as long as the process lives: levels take the probes off and put them on again; nil: nothing is probed
	calls, free []uprobe.Site
	dear        int // of calls: the kernel steps over the instruction there
	attachments []*uprobe.Attachment
	err         error
}

// followTLS probes the copies of OpenSSL that p has mapped and that are not probed yet. The caller holds the lock.
func (s *Source) followTLS(p *proc.Process) error {
	mappings, err := proc.Libraries(p, tlsCandidate)
	if err != nil {
		return fmt.Errorf("list the libraries of pid %d: %w", p.PID, err)
	}
	if !slices.ContainsFunc(mappings, func(m proc.Mapping) bool { return callsTLS(path.Base(m.Path)) }) {
		return nil
	}
	known := s.procs[p.ID()]
	var errs []error
	for _, m := range mappings {
		if len(known.tls) >= maxTLSLibraries || slices.ContainsFunc(known.tls, func(l *tlsLibrary) bool {
			return l.dev == m.Dev && l.inode == m.Inode
		}) {
			continue
		}
		l := &tlsLibrary{dev: m.Dev, inode: m.Inode, path: m.Path}
		known.tls = append(known.tls, l)
		if l.err = l.resolve(p, m); l.err == nil {
			l.err = s.putTLS(p.PID, l)
		}
		if errors.Is(l.err, uprobe.ErrNoProcess) {
			return nil // it is gone: Forget follows
		}
		if l.err != nil {
			errs = append(errs, fmt.Errorf("%s in pid %d is not probed: %w", m.Path, p.PID, l.err))
		}
	}
	return errors.Join(errs...)
}

// resolve finds the functions in the file, which may have none of them.
func (l *tlsLibrary) resolve(p *proc.Process, m proc.Mapping) error {
	file, err := proc.Open(p, m)
	if err != nil {
		return err
	}
	functions, machine, err := tlsExports(file)
	if err != nil {
		return errors.Join(err, file.Close())
	}
	for _, fn := range functions {
		if fn.Indirect {
			continue
		}
		cookie, call := tlsFunctions[fn.Name]
		at := uprobe.Choose(fn.Code, fn.Addr, machine.Machine)
		site := uprobe.Site{Offset: fn.Offset + at.Offset, Cookie: cookie}
		if call {
			l.calls = append(l.calls, site)
			if !at.Cheap {
				l.dear++
			}
		} else {
			l.free = append(l.free, site)
		}
	}
	if len(l.calls) == 0 {
		return file.Close()
	}
	l.file = file
	return nil
}

func tlsExports(file *os.File) ([]elffile.Function, *elffile.File, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, nil, fmt.Errorf("stat: %w", err)
	}
	image, err := elffile.Open(file, info.Size())
	if err != nil {
		return nil, nil, err
	}
	functions, err := image.Named(func(name string) bool {
		_, call := tlsFunctions[name]
		return call || name == tlsFree
	})
	return functions, image, err
}

// tlsCall returns what a call of OpenSSL costs a process at most, in ns.
func (p *process) tlsCall() uint64 {
	if slices.ContainsFunc(p.tls, func(l *tlsLibrary) bool { return l.dear > 0 }) {
		return tlsSteppedNS
	}
	return tlsCallNS
}

// putTLS puts the probes on that the level wants, and takes off the others. The caller holds the lock.
func (s *Source) putTLS(pid uint32, l *tlsLibrary) error {
	if s.level != levelAll {
		return l.off()
	}
	if len(l.attachments) > 0 || l.file == nil {
		return nil
	}
	if s.programs.generation == 0 {
		if err := s.programs.setTLS(true); err != nil {
			return err
		}
	}
	// Returns come first, so that each call that is entered is also left.
	for _, b := range []struct {
		program string
		sites   []uprobe.Site
		attach  func(*uprobe.LinkHolder, uprobe.Mode, *ebpf.Program, *os.File, uint32, []uprobe.Site) (*uprobe.Attachment, error)
	}{
		{bpf.RequestProgRequestTlsReturn, l.calls, uprobe.AttachReturns},
		{bpf.RequestProgRequestTlsFree, l.free, uprobe.AttachProgram},
		{bpf.RequestProgRequestTlsEnter, l.calls, uprobe.AttachProgram},
	} {
		if len(b.sites) == 0 {
			continue
		}
		at, err := b.attach(s.opts.LinkHolder, s.opts.Mode, s.programs.coll.Programs[b.program], l.file, pid, b.sites)
		if err != nil {
			return errors.Join(err, l.off())
		}
		l.attachments = append(l.attachments, at)
		if failed := at.Failed(); len(failed) > 0 {
			return errors.Join(failed[0], l.off())
		}
	}
	return nil
}

// applyTLS brings the level into force. The caller holds the lock.
func (s *Source) applyTLS() error {
	errs := []error{s.programs.setTLS(s.level == levelAll)}
	for id, q := range s.procs {
		for _, l := range q.tls {
			errs = append(errs, s.putTLS(id.PID, l))
		}
	}
	return errors.Join(errs...)
}

// off takes the probes off, those at entries first.
func (l *tlsLibrary) off() error {
	var errs []error
	for _, at := range slices.Backward(l.attachments) {
		if err := at.Close(); err != nil && !errors.Is(err, uprobe.ErrNoProcess) {
			errs = append(errs, fmt.Errorf("take the probes off %s: %w", l.path, err))
		}
	}
	l.attachments = nil
	return errors.Join(errs...)
}

func (l *tlsLibrary) close() error {
	err := l.off()
	if l.file != nil {
		_ = l.file.Close() // it was only read
		l.file = nil
	}
	return err
}

// lossesTLS says which copies of OpenSSL are not probed. The caller holds the lock.
func (s *Source) lossesTLS() (out []loss.Loss) {
	for id, q := range s.procs {
		for _, l := range q.tls {
			where := fmt.Sprintf("pid %d: %s", id.PID, l.path)
			if l.err != nil {
				out = append(out, loss.Loss{
					Reason: loss.RequestsUnseen, Count: 1, PID: id.PID,
					Where: where, Detail: "requests over TLS: " + l.err.Error(),
				})
			}
			if l.dear > 0 && len(l.attachments) > 0 {
				out = append(out, loss.Loss{Reason: loss.ExpensivePoint, Count: uint64(l.dear), PID: id.PID, Where: where})
			}
		}
	}
	return out
}
