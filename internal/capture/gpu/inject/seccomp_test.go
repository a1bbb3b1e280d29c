//go:build amd64 || arm64

package inject

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
)

// Codes of instructions (include/uapi/linux/bpf_common.h), as far as seccomp_check_filter lets them through.
// BPF_LDX | BPF_LEN and BPF_NEG are left out: package bpf does not run them, so a process with such a filter gets no
// agent.
const (
	opLoad     = 0x20 // BPF_LD | BPF_W | BPF_ABS
	opLoadLen  = 0x80 // BPF_LD | BPF_W | BPF_LEN
	opLoadImm  = 0x00
	opLoadXImm = 0x01
	opLoadMem  = 0x60
	opLoadXMem = 0x61
	opStore    = 0x02
	opStoreX   = 0x03
	opReturnK  = 0x06
	opReturnA  = 0x16
	opTax      = 0x07
	opTxa      = 0x87
	classALU   = 0x04
	classJump  = 0x05
)

// firstTried is a system call that does not exist: filters of the test decide about such
// only, so that the thread can go on.
const firstTried = 4000

// randomFilter ends with an error number that depends on the way through it.
func randomFilter(r *rand.Rand) program {
	p := program{
		{Op: opLoad, K: 0},
		{Op: classJump | 0x30, K: firstTried, Jt: 1},
		{Op: opReturnK, K: verdictAllow},
		{Op: opStore},
		{Op: opTax},
		{Op: opStoreX, K: 1},
	}
	n := 4 + r.IntN(24)
	for i := range n {
		p = append(p, randomInstruction(r, n-i-1))
	}
	return append(
		p,
		program{{Op: classALU | 0x50, K: 0x7ff}, {Op: classALU | 0x40, K: verdictErrno}, {Op: opReturnA}}...)
}

func randomInstruction(r *rand.Rand, left int) bpf.RawInstruction {
	k := []uint32{0, 1, 2, 31, 0xff, 0x8000, 0x80000000, 0xffffffff, firstTried, r.Uint32()}[r.IntN(10)]
	skip := func() uint8 { return uint8(r.IntN(min(left, 6) + 1)) }
	switch r.IntN(8) {
	case 0:
		return bpf.RawInstruction{Op: opLoad, K: uint32(r.IntN(16)) * 4}
	case 1, 2:
		return bpf.RawInstruction{
			Op: classJump | uint16(1+r.IntN(4))<<4 | uint16(r.IntN(2))<<3,
			K:  k,
			Jt: skip(),
			Jf: skip(),
		}
	case 3:
		return bpf.RawInstruction{Op: classJump, K: uint32(skip())}
	case 4:
		return bpf.RawInstruction{
			Op: []uint16{opLoadMem, opLoadXMem, opStore, opStoreX}[r.IntN(4)],
			K:  uint32(r.IntN(2)),
		}
	case 5:
		return bpf.RawInstruction{Op: []uint16{opTax, opTxa, opLoadLen, opLoadImm, opLoadXImm}[r.IntN(5)], K: k}
	case 6:
		return bpf.RawInstruction{Op: opReturnK, K: verdictErrno | k&0x7ff}
	}
	op := []uint16{0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0xa0}[r.IntN(9)]
	switch op {
	case 0x30: // a division by X could be by zero, which kills
		return bpf.RawInstruction{Op: classALU | op, K: max(k, 1)}
	case 0x60, 0x70:
		return bpf.RawInstruction{Op: classALU | op, K: k & 31}
	}
	return bpf.RawInstruction{Op: classALU | op | uint16(r.IntN(2))<<3, K: k}
}

// installFilter puts the calling thread under a filter, for ever.
func installFilter(p program) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	prog := struct {
		n    uint16
		code *bpf.RawInstruction
	}{uint16(len(p)), &p[0]}
	if _, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, 1, 0, uintptr(unsafe.Pointer(&prog))); errno != 0 {
		return errno
	}
	runtime.KeepAlive(p)
	return nil
}

// onFilteredThread makes calls on a thread of its own that has only this filter, and
// returns their errors. It fails where the kernel refuses the filter.
func onFilteredThread(p program, tried []call) ([]unix.Errno, error) {
	type outcome struct {
		errs []unix.Errno
		err  error
	}
	done := make(chan outcome, 1)
	go onOwnThread(func() {
		if err := installFilter(p); err != nil {
			done <- outcome{err: err}
			return
		}
		var errs []unix.Errno
		for _, c := range tried {
			_, _, errno := unix.RawSyscall6(
				uintptr(c.number),
				uintptr(c.args[0]),
				uintptr(c.args[1]),
				uintptr(c.args[2]),
				uintptr(c.args[3]),
				uintptr(c.args[4]),
				uintptr(c.args[5]),
			)
			errs = append(errs, errno)
		}
		done <- outcome{errs: errs}
	})
	o := <-done
	return o.errs, o.err
}

// The evaluator says of random filters what the kernel does.
func TestFilterAsKernel(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	accepted, different := 0, map[unix.Errno]bool{}
	for range 1500 {
		p := randomFilter(r)
		var tried []call
		for range 8 {
			c := call{number: firstTried + uint32(r.IntN(4))}
			for i := range c.args {
				c.args[i] = r.Uint64() >> r.IntN(64)
			}
			tried = append(tried, c)
		}
		got, err := onFilteredThread(p, tried)
		if errors.Is(err, unix.EINVAL) {
			continue // one that the kernel does not accept
		}
		if err != nil {
			t.Skip("no seccomp here: ", err)
		}
		accepted++
		for i := range tried {
			data := tried[i].data()
			for off := 8; off < 16; off++ {
				data[off] = 0
			}
			v, err := p.run(data)
			if err != nil || v&verdictAction != verdictErrno {
				t.Fatalf("verdict %#x, %v of %+v on %+v", v, err, p, tried[i])
			}
			if readsAddress(p) {
				continue // of the instruction, which only the kernel knows
			}
			if unix.Errno(v&0xffff) != got[i] {
				t.Fatalf("%d by the kernel, %d by the evaluator: %+v on %+v", got[i], v&0xffff, p, tried[i])
			}
			different[got[i]] = true
		}
	}
	t.Logf("%d filters, %d different answers", accepted, len(different))
	if accepted < 500 || len(different) < 50 {
		t.Error("too few to mean anything")
	}
}

func readsAddress(p program) bool {
	for _, in := range p {
		if in.Op == opLoad && (in.K == 8 || in.K == 12) {
			return true
		}
	}
	return false
}

// The strictest of several filters counts, and clone3 may be answered with ENOSYS.
func TestAllowed(t *testing.T) {
	one := func(number, verdict uint32) program {
		return program{
			{Op: opLoad},
			{Op: classJump | 0x10, K: number, Jf: 1},
			{Op: opReturnK, K: verdict},
			{Op: opReturnK, K: verdictAllow},
		}
	}
	enosys, eperm := uint32(verdictErrno|unix.ENOSYS), uint32(verdictErrno|unix.EPERM)
	for name, tt := range map[string]struct {
		filters []program
		ok      bool
	}{
		"none":                       {nil, true},
		"logged":                     {[]program{one(unix.SYS_MEMFD_CREATE, verdictLog)}, true},
		"docker's clone3":            {[]program{one(unix.SYS_CLONE3, enosys)}, true},
		"clone3 denied":              {[]program{one(unix.SYS_CLONE3, eperm)}, false},
		"memfd_create not there":     {[]program{one(unix.SYS_MEMFD_CREATE, enosys)}, false},
		"allowed, then denied":       {[]program{one(1, verdictAllow), one(unix.SYS_MMAP, eperm)}, false},
		"killed, then allowed":       {[]program{one(unix.SYS_MMAP, verdictKillProcess), one(1, verdictAllow)}, false},
		"a supervisor":               {[]program{one(unix.SYS_OPENAT, verdictNotify)}, false},
		"a tracer":                   {[]program{one(unix.SYS_OPENAT, verdictTrace)}, false},
		"killing one thread":         {[]program{one(unix.SYS_FUTEX, verdictKillThread)}, false},
		"no other CPU":               {[]program{one(unix.SYS_SCHED_SETAFFINITY, eperm)}, true},
		"killed for a priority":      {[]program{one(unix.SYS_SCHED_SETSCHEDULER, verdictKillProcess)}, false},
		"killed for a name":          {[]program{one(unix.SYS_PRCTL, verdictKillProcess)}, false},
		"nothing that is understood": {[]program{{{Op: 0xffff}}}, false},
		"no end":                     {[]program{{{Op: opLoad}}}, false},
	} {
		if err := allowed(tt.filters, calls()); (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAgentsCallsAreKnown: a filter is asked about every system call that the agent's sources have.
func TestAgentsCallsAreKnown(t *testing.T) {
	source, err := os.ReadFile("../../../../agent/src/sys.h")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(source),
		map[string]string{"amd64": "defined(__x86_64__)", "arm64": "defined(__aarch64__)"}[runtime.GOARCH])
	text, _, _ = strings.Cut(text, "};")
	used := regexp.MustCompile(`SYS_(\w+) = (\d+)`).FindAllStringSubmatch(text, -1)
	if len(used) < 20 {
		t.Fatalf("sys.h has %d system calls: a pattern is off", len(used))
	}
	for _, u := range used {
		if !slices.ContainsFunc(calls(), func(c call) bool { return fmt.Sprint(c.number) == u[2] }) {
			t.Errorf("no filter is asked about %s", u[1])
		}
	}
}

// TestUnderAFilterOfTheseAlone: the agent comes, runs, leaves and comes again in a process that is killed for every
// call that no filter is asked about, but those that it makes itself.
func TestUnderAFilterOfTheseAlone(t *testing.T) {
	in, im := newInjector(t), agentImage(t)
	own := []uint32{unix.SYS_READ, unix.SYS_WRITE, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_SIGALTSTACK, unix.SYS_EXIT_GROUP}
	for _, c := range calls() {
		own = append(own, c.number)
	}
	slices.Sort(own)
	only := strings.Trim(strings.ReplaceAll(fmt.Sprint(slices.Compact(own)), " ", ","), "[]")
	v := start(t, "--pause", "50", "--seccomp", "only:"+only)
	files := v.descriptors()
	for range 2 {
		r, err := in.Load(within(t, 20*time.Second), v.process, im)
		if err != nil {
			t.Fatalf("%v; stderr: %s", err, v.stderr.String())
		}
		_, err = r.Await(within(t, 20*time.Second), v.process, agentHelloAt(im), 40,
			func(b []byte) bool { return get32(b, 0) == agentMagic })
		r.FD.Close()
		if err != nil {
			t.Fatal(err)
		}
		v.unharmed()
		for deadline := time.Now().Add(20 * time.Second); v.descriptors() != files; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d files open, %d before: the agent did not leave", v.descriptors(), files)
			}
		}
	}
	v.unharmed()
	v.finish()
}

func FuzzFilter(f *testing.F) {
	f.Add([]byte{6, 0, 0, 0, 0, 0, 0xff, 0x7f}, []byte{1})
	fuzzing.Run(f, func(t *testing.T, code, data []byte) {
		var p program
		for ; len(code) >= 8; code = code[8:] {
			op := uint16(code[0]) | uint16(code[1])<<8
			p = append(p, bpf.RawInstruction{Op: op, Jt: code[2], Jf: code[3], K: get32(code, 4)})
		}
		d := make([]byte, seccompBytes)
		copy(d, data)
		_, _ = p.run(d) // it must end and not panic
	})
}
