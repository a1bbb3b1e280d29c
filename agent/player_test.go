package agent_test

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/agent"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

// The tests play the daemon: they load the agent into a victim on the simulated CUDA,
// map its ring, beat, and read. Offsets are those of abi.h; TestOffsets compares them.
const (
	abi           = 4 // AGENT_ABI of abi.h
	ringHeartbeat = 64
	ringTail      = 72
	ringOn        = 80
	ringPeriod    = 88
	ringDeadline  = 96
	ringMode      = 104
	ringWake      = 108
	ringFlush     = 112
	ringHead      = 120
	ringGate      = 516
	ringArmed     = 520
	ringAsk       = 524
	ringGated     = 572
	ringDropped   = 128
	ringBegan     = 136
	ringState     = 144
	ringError     = 148
	ringVersion   = 152
	ringWindows   = 156
	ringGraphs    = 160
	ringFlushed   = 164
	ringOpening   = 168
	ringPath      = 192
	ringLost      = 432
	ringThreads   = 444
	ringGrapher   = 448
	ringHolder    = 452
	ringData      = 4096

	paramsFD     = 8
	helloAt      = 1 << 20 // behind every image
	helloSize    = 40
	paramsHello  = 56
	paramsSlots  = 12
	paramsCUPTI  = 64
	paramsLength = 64 + 480
)

// The numbers of enum agent_mode, agent_state, agent_end and agent_kind.
const (
	modeOff, modeWindows, modeContinuous, modeQuit                                   = 0, 1, 2, 3
	stateIdle, stateOpening, stateOpen, stateClosing, stateRefused, stateGone        = 1, 2, 3, 4, 5, 6
	stateKept                                                                        = 7
	endFinalized, endDisabled, endRefused, endKept                                   = 1, 2, 3, 4
	kindCall, kindKernel, kindCopy, kindSet, kindSync, kindOverhead, kindRange       = 1, 7, 8, 9, 10, 11, 12
	kindName, kindText, kindWindow, kindDevice, kindOpened, kindSteps          uint8 = 64, 65, 66, 67, 69, 70
)

// settings are what a player starts the agent with. Zero values: continuous, 200 ms of 400 ms, 1 s, 65,536 slots.
type settings struct {
	mode                 uint32
	on, period, deadline time.Duration
	slots                uint32
	cupti                string
	options              cudasim.Options
	still                bool // no heartbeat
}

// player is the daemon of one victim.
type player struct {
	t        testing.TB
	victim   *cudasim.Victim
	waiting  bool // at the script's first wait
	dir      string
	in       *os.File
	out      *bufio.Reader
	set      settings
	ring     []byte
	slots    uint64
	tail     uint64
	hello    []byte
	stop     chan struct{}
	names    map[uint32]string
	all      []slot // all but names and texts
	loads    int
	describe agent.Layout
}

// play starts a victim with the starter in it, and loads the agent once the victim is ready.
func play(t testing.TB, s settings, script ...string) *player {
	t.Helper()
	p := prepare(t, s, script...)
	p.load()
	return p
}

// prepare starts the victim without the agent, and waits until it is at the first wait of its script.
func prepare(t testing.TB, s settings, script ...string) *player {
	t.Helper()
	p := &player{t: t, dir: t.TempDir(), set: s, stop: make(chan struct{}), names: map[uint32]string{}}
	in, out := filepath.Join(p.dir, "in"), filepath.Join(p.dir, "out")
	for _, path := range []string{in, out} {
		if err := syscall.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o := s.options
	o.Env = append(o.Env, "LD_PRELOAD="+starter(t, p.dir), "STARTER_IN="+in, "STARTER_OUT="+out)
	p.victim = cudasim.Start(t, o, script...)
	p.victim.WaitLine("waiting")
	p.waiting = true
	var err error
	if p.in, err = os.OpenFile(in, os.O_WRONLY, 0); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewReader(f)
	t.Cleanup(func() { p.in.Close(); f.Close(); p.leave() })
	return p
}

// proceed lets the victim go on from its next wait.
func (p *player) proceed() {
	p.t.Helper()
	if p.waiting {
		p.waiting = false
		p.victim.Send("go")
		return
	}
	p.victim.Go()
}

// starter compiles testdata/starter.c.
func starter(t testing.TB, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "starter.so")
	cc := exec.Command("gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror",
		"-o", path, "testdata/starter.c", "-ldl", "-lpthread")
	if text, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("compile testdata/starter.c: %v\n%s", err, text)
	}
	return path
}

func (p *player) say(line string) {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.in, line); err != nil {
		p.t.Fatalf("tell the starter %q: %v", line, err)
	}
}

func (p *player) hear() string {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatalf("the starter says nothing: %v; stderr: %s", err, p.victim.Stderr())
	}
	return strings.TrimSpace(line)
}

// parameters fills struct agent_params at the beginning of b.
func (p *player) parameters(b []byte, fd int) {
	s := p.set
	mode := s.mode
	if mode == 0 {
		mode = modeContinuous
	}
	order := binary.LittleEndian
	order.PutUint32(b, 0x41534e49)
	order.PutUint32(b[4:], abi)
	order.PutUint32(b[paramsFD:], uint32(fd))
	order.PutUint32(b[paramsSlots:], or(s.slots, 1<<16))
	order.PutUint32(b[16:], mode)
	for i, d := range []time.Duration{
		or(s.on, 200*time.Millisecond), or(s.period, 400*time.Millisecond), or(s.deadline, time.Second),
	} {
		order.PutUint64(b[24+8*i:], uint64(d))
	}
	order.PutUint64(b[48:], monotonic())
	order.PutUint64(b[paramsHello:], helloAt)
	copy(b[paramsCUPTI:paramsLength-1], s.cupti)
}

func or[T comparable](v, other T) T {
	var zero T
	if v == zero {
		return other
	}
	return v
}

func monotonic() uint64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return uint64(t.Nano())
}

// load brings the agent in by dlopen, as the injector does, and opens its ring.
func (p *player) load() {
	p.t.Helper()
	image, err := agent.Image(runtime.GOARCH)
	if err != nil {
		p.t.Skip(err)
	}
	if p.describe, err = agent.Describe(image); err != nil {
		p.t.Fatal(err)
	}
	path := filepath.Join(
		p.dir,
		fmt.Sprintf("image%d", p.loads),
	) // another file each time: another image for the loader
	p.loads++
	write(p.t, path, image)
	p.say("load " + path)
	fd, err := strconv.Atoi(p.hear())
	if err != nil {
		p.t.Fatal(err)
	}
	p.parameters(image[p.describe.Params:], fd)
	write(p.t, path, image)
	p.say("go")
	if got := p.hear(); got != "12345 loaded" {
		p.t.Fatalf("dlopen left errno and said %q, want 12345 and loaded", got)
	}
	p.open(path, 0)
}

func write(t testing.TB, path string, b []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
}

// start starts an agent that is loaded, and returns what inferscope_start said.
func (p *player) start() int {
	p.t.Helper()
	path := filepath.Join(p.dir, "params")
	b := make([]byte, paramsLength)
	p.parameters(b, -1)
	_ = os.Remove(path)
	write(p.t, path, b)
	p.say("start " + path)
	var result, errno int
	if _, err := fmt.Sscan(p.hear(), &result, &errno); err != nil || errno != 12345 {
		p.t.Fatalf("inferscope_start: %v, errno %d", err, errno)
	}
	p.open(path, result)
	return result
}

// open waits for the hello, which must carry the error that is wanted, and maps the ring.
func (p *player) open(path string, want int) {
	p.t.Helper()
	f, err := os.Open(path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer f.Close()
	p.hello = make([]byte, helloSize)
	p.until("hello", func() bool {
		n, _ := f.ReadAt(p.hello, helloAt)
		return n == helloSize && binary.LittleEndian.Uint32(p.hello) == 0x41534e49
	})
	if got := int(int32(binary.LittleEndian.Uint32(p.hello[8:]))); got != want {
		p.t.Fatalf("hello says error %d, want %d", got, want)
	}
	if want == 0 {
		p.mapRing(int(binary.LittleEndian.Uint32(p.hello[12:])))
	}
}

func (p *player) mapRing(fd int) {
	p.t.Helper()
	path := fmt.Sprintf("/proc/%d/fd/%d", p.victim.PID, fd)
	if target, err := os.Readlink(path); err != nil || !strings.Contains(target, "inferscope-ring") {
		p.t.Fatalf("the ring's descriptor is %q, %v", target, err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		p.t.Fatalf("open the ring: %v", err)
	}
	defer f.Close()
	p.slots = uint64(or(p.set.slots, 1<<16))
	if p.ring, err = unix.Mmap(
		int(f.Fd()), 0, ringData+int(p.slots)*64, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED,
	); err != nil {
		p.t.Fatalf("map the ring: %v", err)
	}
	p.tail, p.names = 0, map[uint32]string{}
	p.put32(ringWake, 1)
	p.wake()
	if !p.set.still {
		go p.beat(p.ring, p.stop)
	}
}

// beat beats until the player leaves the agent. It also reads, so that the ring does not fill up.
func (p *player) beat(ring []byte, stop chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(100 * time.Millisecond):
			atomic.StoreUint64((*uint64)(unsafe.Pointer(&ring[ringHeartbeat])), monotonic())
		}
	}
}

// leave forgets the ring: for the agent the daemon is gone. It stays mapped in the test, whose beat may be under way.
func (p *player) leave() {
	if p.ring == nil {
		return
	}
	close(p.stop)
	p.stop = make(chan struct{})
	p.ring = nil
}

func (p *player) get64(at int) uint64 {
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&p.ring[at])))
}

func (p *player) get32(at int) uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&p.ring[at])))
}

func (p *player) put64(at int, v uint64) {
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&p.ring[at])), v)
}

func (p *player) put32(at int, v uint32) {
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&p.ring[at])), v)
}

// wake wakes the agent's thread.
func (p *player) wake() {
	atomic.AddUint32((*uint32)(unsafe.Pointer(&p.ring[ringWake])), 1)
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&p.ring[ringWake])), 1, 1<<30, 0, 0, 0)
}

func (p *player) mode(m uint32) {
	p.put32(ringMode, m)
	p.wake()
}

// until waits for something, and fails the test after a minute.
func (p *player) until(what string, ok func() bool) {
	p.t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			p.t.Fatalf("no %s within a minute; %s; stderr: %s", what, p.status(), p.victim.Stderr())
		}
	}
}

func (p *player) status() string {
	if p.ring == nil {
		return "no ring"
	}
	return fmt.Sprintf("state %d, error %d, windows %d, head %d, dropped %d",
		p.get32(ringState), int32(p.get32(ringError)), p.get32(ringWindows), p.get64(ringHead),
		p.get64(ringDropped))
}

func (p *player) state(want uint32) {
	p.t.Helper()
	p.until(fmt.Sprintf("state %d", want), func() bool { return p.get32(ringState) == want })
}

// flush asks for everything that CUPTI holds, and reads it.
func (p *player) flush() {
	p.t.Helper()
	want := p.get64(ringFlush) + 1
	p.put64(ringFlush, want)
	p.wake()
	p.until("flush", func() bool { return p.get32(ringFlushed) == uint32(want) })
	p.read()
}

// quit ends the agent and reads what it has written.
func (p *player) quit() {
	p.t.Helper()
	p.mode(modeQuit)
	p.state(stateGone)
	p.read()
	p.leave()
}
