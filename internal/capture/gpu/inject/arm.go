package inject

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/relocation"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/capture/uprobe/libcuda"
)

// places are the functions at which a thread may be stopped: what programs call
// all the time, and never from inside libc. Variants of each are taken too.
func places() []string {
	return []string{
		"cuLaunchKernel", "cuLaunchKernelEx", "cuGraphLaunch", "cuMemcpyAsync", "cuMemcpyHtoDAsync",
		"cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync", "cuMemcpyHtoD", "cuMemcpyDtoH", "cuMemsetD8Async",
		"cuMemsetD32Async", "cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize", "cuEventRecord",
		"cuEventQuery", "cuStreamQuery",
	}
}

// stopPoint is bpf/arm.bpf.c, attached to one process.
type stopPoint struct {
	coll        *ebpf.Collection
	attachments []*uprobe.Attachment
	stops       *ringbuf.Reader
	orders      uint64 // given so far
}

// fitted returns what this kernel's types change in the program; nothing where that cannot be found out: whoever loads
// the program then finds it out itself.
func fitted() []relocation.Change {
	spec, err := bpf.LoadArm()
	if err != nil {
		return nil
	}
	changes, _ := relocation.Find(spec.Programs)
	return changes[bpf.ArmProgArm]
}

// setStopPoint loads the program and puts it on the CUDA functions of p.
func (in *Injector) setStopPoint(p *proc.Process) (*stopPoint, error) {
	spec, err := bpf.LoadArm()
	if err != nil {
		return nil, fmt.Errorf("read the embedded program: %w", err)
	}
	if err := relocation.Apply(spec.Programs[bpf.ArmProgArm], in.changes); err != nil {
		return nil, fmt.Errorf("fit the program that stops a thread to this kernel: %w", err)
	}
	if in.mode == uprobe.Perf {
		spec.Programs[bpf.ArmProgArm].AttachType = ebpf.AttachNone
	}
	t := &stopPoint{}
	if t.coll, err = ebpf.NewCollection(spec); err != nil {
		return nil, fmt.Errorf("load the program that stops a thread: %w", err)
	}
	if t.stops, err = ringbuf.NewReader(t.coll.Maps[bpf.ArmMapStops]); err != nil {
		return nil, errors.Join(fmt.Errorf("open its ring: %w", err), t.close())
	}
	if err := t.attach(p, in.linkHolder, in.mode); err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

func (t *stopPoint) attach(p *proc.Process, linkHolder *uprobe.LinkHolder, mode uprobe.Mode) error {
	var err error
	t.attachments, err = libcuda.Attach(p, linkHolder, mode, t.coll.Programs[bpf.ArmProgArm], places())
	switch {
	case err == nil:
		return nil
	case errors.Is(err, uprobe.ErrNoProcess):
		return &Refusal{Reason: ErrGone, Cause: err}
	case errors.Is(err, libcuda.ErrNone):
		return gone(p, &Refusal{Reason: errNoCUDA, Hint: "wait until it has called cuInit", Cause: err})
	}
	return gone(p, err)
}

// caller is a thread that calls CUDA.
type caller struct {
	tid int
	bpf.ArmArmCaller
}

// callers returns the threads seen so far, the latest call first.
func (t *stopPoint) callers() ([]caller, error) {
	var all []caller
	var c caller
	var tid uint32
	it := t.coll.Maps[bpf.ArmMapCallers].Iterate()
	for it.Next(&tid, &c.ArmArmCaller) {
		if c.tid = int(tid); c.Seen > 0 { // else its thread is just writing it
			all = append(all, c)
		}
	}
	if err := it.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return nil, fmt.Errorf("list the threads that call CUDA: %w", err)
	}
	slices.SortFunc(all, func(a, b caller) int { return cmp.Compare(b.Seen, a.Seen) })
	return all, nil
}

// forget makes callers see only calls from now on.
func (t *stopPoint) forget(tid int) error {
	err := t.coll.Maps[bpf.ArmMapCallers].Delete(uint32(tid))
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

// arm makes the next call of the thread send it sig.
func (t *stopPoint) arm(tid int, sig unix.Signal) error {
	t.orders++
	order := bpf.ArmArmOrder{Signal: uint32(sig), Number: t.orders}
	if err := t.order(order); err != nil { // whole, before it names anybody
		return err
	}
	order.Tid = uint32(tid)
	return t.order(order)
}

// disarm takes the order back. What fired at this very moment still does.
func (t *stopPoint) disarm() error { return t.order(bpf.ArmArmOrder{Number: t.orders}) }

func (t *stopPoint) order(o bpf.ArmArmOrder) error {
	if err := t.coll.Maps[bpf.ArmMapOrders].Put(uint32(0), &o); err != nil {
		return fmt.Errorf("arm the program: %w", err)
	}
	return nil
}

// next returns the next word of the program for which want says so, or fails with
// errNotCalled at the deadline.
func (t *stopPoint) next(deadline time.Time, want func(*bpf.ArmArmStop) bool) (bpf.ArmArmStop, error) {
	t.stops.SetDeadline(deadline)
	for {
		record, err := t.stops.Read()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return bpf.ArmArmStop{}, errNotCalled
		}
		if err != nil {
			return bpf.ArmArmStop{}, fmt.Errorf("wait for a thread's call: %w", err)
		}
		var s bpf.ArmArmStop
		if _, err := binary.Decode(record.RawSample, binary.NativeEndian, &s); err == nil && want(&s) {
			return s, nil
		}
	}
}

// await waits until the armed thread has been sent its signal, or fails with
// errNotCalled at the deadline.
func (t *stopPoint) await(deadline time.Time) (bpf.ArmArmStop, error) {
	s, err := t.next(deadline, func(s *bpf.ArmArmStop) bool { return s.Number == t.orders }) // others were taken back
	switch errno := unix.Errno(-s.Error); {
	case err != nil:
		return s, err
	case errno == unix.EBUSY:
		return s, refuse(errSignal, "its thread blocks the signal", hintStart)
	case errno != 0:
		return s, fmt.Errorf("send the thread a signal: %w", errno)
	}
	return s, nil
}

// filters returns the seccomp filters that the stopped thread ran the program under, the newest first.
func (t *stopPoint) filters(s *bpf.ArmArmStop) ([]program, error) {
	if s.Filters < 0 {
		return nil, errFilter
	}
	all := make([]program, s.Filters)
	for i := range all {
		var f bpf.ArmArmFilter
		if err := t.coll.Maps[bpf.ArmMapFilters].Lookup(uint32(i), &f); err != nil {
			return nil, fmt.Errorf("read a copy of a seccomp filter: %w", err)
		}
		if f.Length == 0 || f.Length > uint64(len(f.Code)) {
			return nil, errFilter
		}
		code := binary.NativeEndian.AppendUint64(nil, 0)[:0]
		for _, c := range f.Code[:f.Length] {
			code = binary.NativeEndian.AppendUint64(code, c)
		}
		all[i] = make(program, f.Length)
		if _, err := binary.Decode(code, binary.NativeEndian, all[i]); err != nil {
			return nil, fmt.Errorf("read a copy of a seccomp filter: %w", err)
		}
	}
	return all, nil
}

// newcomer waits a moment for a thread that makes its first call, and returns the latest
// of those that have: the one that will live longest.
func (t *stopPoint) newcomer(patience time.Duration) (caller, error) {
	fresh := func(s *bpf.ArmArmStop) bool { return s.Number == 0 }
	s, err := t.next(time.Now().Add(patience), fresh)
	if err != nil {
		return caller{}, err
	}
	for later := s; err == nil; later, err = t.next(time.Now(), fresh) {
		s = later
	}
	return caller{tid: int(s.Tid), ArmArmCaller: bpf.ArmArmCaller{Seen: s.At, Calls: 1, Sp: s.Sp, Tls: s.Tls}}, nil
}

// close takes the probes off. It takes a grace period of the kernel.
func (t *stopPoint) close() error {
	var errs []error
	for _, a := range t.attachments {
		errs = append(errs, a.Close())
	}
	if t.stops != nil {
		errs = append(errs, t.stops.Close())
	}
	t.coll.Close()
	return errors.Join(errs...)
}

// How long a thread that calls for the first time is waited for, before those are looked at of which the ring had no
// room to tell.
const (
	firstLook = 5 * time.Millisecond
	lastLook  = 80 * time.Millisecond
)

// candidates waits until a thread that was not refused before has called CUDA, and returns
// such threads, the best first. One that calls for the first time is told of at once: it may not live for long. Where
// only threads that were refused call it fails with errAllRefused.
func (t *stopPoint) candidates(ctx context.Context, refused map[int]error) ([]caller, error) {
	until := time.Now().Add(lookRefused)
	for wait := firstLook; ctx.Err() == nil; wait = min(2*wait, lastLook) {
		c, err := t.newcomer(wait)
		if err == nil && refused[c.tid] == nil {
			return []caller{c}, nil
		}
		if err != nil && !errors.Is(err, errNotCalled) {
			return nil, err
		}
		all, err := t.callers()
		if err != nil {
			return nil, err
		}
		calls := len(all) > 0
		all = slices.DeleteFunc(all, func(c caller) bool { return refused[c.tid] != nil })
		if len(all) > 0 {
			return all, nil
		}
		if calls && time.Now().After(until) {
			return nil, errAllRefused
		}
	}
	return nil, ctx.Err()
}
