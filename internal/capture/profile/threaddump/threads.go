package threaddump

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"unsafe"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/format/clierror"
)

// maxThreads bounds the threads of one process that are looked at.
const maxThreads = 4096

// raw is what the kernel says of a thread.
type raw = bpf.DumpDumpedThread

// lister lists the threads of one process: an iterator in the kernel, which stops nothing.
type lister struct {
	objects bpf.DumpObjects
	iter    *link.Iter
}

// newLister needs CAP_BPF and CAP_PERFMON, and Linux 5.15 for bpf_task_pt_regs.
func newLister(pid uint32) (*lister, error) {
	spec, err := bpf.LoadDump()
	if err != nil {
		return nil, fmt.Errorf("read the program that lists threads: %w", err)
	}
	if err := spec.Variables[bpf.DumpVarDumpedPid].Set(pid); err != nil {
		return nil, fmt.Errorf("set the program that lists threads up: %w", err)
	}
	l := &lister{}
	if err := spec.LoadAndAssign(&l.objects, nil); err != nil {
		return nil, explain(fmt.Errorf("load the program that lists threads: %w", err))
	}
	if l.iter, err = link.AttachIter(link.IterOptions{Program: l.objects.DumpThreads}); err != nil {
		return nil, errors.Join(explain(fmt.Errorf("attach the program that lists threads: %w", err)),
			l.objects.Close())
	}
	return l, nil
}

func explain(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return clierror.New(clierror.Permission, "run the daemon as root or with CAP_BPF and CAP_PERFMON", err)
	}
	return err
}

func (l *lister) close() { _, _ = l.iter.Close(), l.objects.Close() } // nothing is left to be done about it

// list returns the threads as they are now, in the order of their ids.
func (l *lister) list() ([]raw, error) {
	r, err := l.iter.Open()
	if err != nil {
		return nil, fmt.Errorf("list the threads: %w", err)
	}
	defer r.Close()
	size := int64(unsafe.Sizeof(raw{}))
	b, err := io.ReadAll(io.LimitReader(r, maxThreads*size))
	if err != nil {
		return nil, fmt.Errorf("list the threads: %w", err)
	}
	out := make([]raw, int64(len(b))/size)
	if err := binary.Read(bytes.NewReader(b), binary.NativeEndian, out); err != nil {
		return nil, fmt.Errorf("list the threads: %w", err)
	}
	return out, nil
}
