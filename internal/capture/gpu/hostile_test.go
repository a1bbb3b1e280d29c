package gpu

import (
	"math"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// hostileSlots is the size of the ring that the hostile process writes, the daemon's usual one.
const hostileSlots = 1 << 16

const hostileVariable = "INFERSCOPE_TEST_HOSTILE_RING"

// hostileProcess writes kernels that do not repeat into the ring that is its descriptor 3, as fast as it can, until it
// is killed.
func hostileProcess() {
	mem, err := unix.Mmap(3, 0, ringData+hostileSlots*slotBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		os.Exit(1)
	}
	r, err := newRing(mem, hostileSlots)
	if err != nil {
		os.Exit(1)
	}
	x := uint64(88172645463325252)
	for head := uint64(0); ; {
		now := clock.Monotonic()
		for limit := r.load64(ringTail) + hostileSlots; head < limit; head++ {
			at := int(ringData + head&(hostileSlots-1)*slotBytes)
			for word := 32; word < slotBytes; word += 8 {
				x ^= x << 13
				x ^= x >> 7
				x ^= x << 17
				r.store64(at+word, x)
			}
			r.store64(at, now+x%future)
			r.mem[at+26], r.mem[at+27] = byte(event.Kernel), byte(event.Timed)
			r.store32(at+slotSeq, r.seq(head))
		}
		r.store64(ringHead, head)
	}
}

// threadCPU returns the CPU time of this thread.
func threadCPU(t *testing.T) time.Duration {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		t.Fatal(err)
	}
	return time.Duration(now.Nano())
}

// TestHostileRingBesideAnHonestTarget has an unprivileged process write its ring flat out, beside another user's target
// with 20,000 events a second, for three times as long as the recorder keeps events. Memory and time are a twentieth of
// the usual.
func TestHostileRingBesideAnHonestTarget(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: the hostile process runs as another user")
	}
	fd, err := unix.MemfdCreate("ring", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "ring")
	defer func() { _ = file.Close() }()
	const size = ringData + hostileSlots*slotBytes
	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	ring, err := newRing(mem, hostileSlots)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{hostileVariable + "=1"}
	cmd.ExtraFiles = []*os.File{file}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: 65534, Gid: 65534},
		Pdeathsig:  unix.SIGKILL,
	}
	runtime.LockOSThread() // also for Pdeathsig, which is of the thread
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()

	const shorter, keep = 20, 3 * time.Second
	recorder, err := recording.NewRecorder(73_000_000/shorter, keep)
	if err != nil {
		t.Fatal(err)
	}
	honest, hostile := recording.Owner{UID: 1000, Target: 10}, recording.Owner{UID: 65534, Target: 20}
	recorder.Assign(10, 1, honest)
	recorder.Assign(20, 1, hostile)
	r := newReader(ring, newTestDecoder(20))
	taken := 0
	began, cpu := clock.Monotonic(), time.Duration(0)
	last := began
	for last < began+3*uint64(keep) {
		time.Sleep(10 * time.Millisecond)
		now := clock.Monotonic()
		var events []event.Event
		for ; last < now; last += 50_000 {
			events = append(events, event.Event{
				TS:    last,
				Dur:   2000 + last%977,
				PID:   10,
				TID:   10,
				Kind:  event.Call,
				Flags: event.Timed,
				Func:  3,
				Args:  [4]uint64{last % 7},
			})
		}
		recorder.Append(events...)
		before := threadCPU(t)
		recorder.Pass(now)
		r.read(now, false, func(batch []event.Event) { taken += len(batch); recorder.Append(batch...) })
		cpu += threadCPU(t) - before
	}
	s := recorder.Snapshot(0, math.MaxInt64, honest)
	defer s.Release()
	reach := float64(last-max(s.Since(), last-uint64(keep))) / 1e9 * shorter
	share := cpu.Seconds() / (float64(last-began) / 1e9) * 100
	t.Logf(
		"the honest target's history reaches %.1f of 60 s; %d records of the hostile one took %.1f%% of a core",
		reach,
		taken,
		share,
	)
	if taken < 100_000 {
		t.Errorf("the hostile process wrote %d records only: nothing is shown", taken)
	}
	if reach < 50 {
		t.Errorf("the honest target's history reaches %.1f of 60 s", reach)
	}
	if most := slotsAtOnce + 9*slotsPerSecond + slotsPerSecond/10; taken > most {
		t.Errorf("%d records were taken, want %d at most", taken, most)
	}
	if share > 20 {
		t.Errorf("the hostile ring took %.1f%% of a core", share)
	}
	for _, l := range recorder.Losses() {
		if l.Where != "pid 20" {
			t.Errorf("a loss is not the hostile target's: %+v", l)
		}
	}
}
