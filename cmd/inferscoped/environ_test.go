package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/daemon/config"
	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// hugeEnviron is what the attack program makes of its environment, in bytes.
const hugeEnviron = 1 << 30

const hugeVariable = "INFERSCOPE_TEST_HUGE_ENVIRON"

// TestHugeEnvironProgram is the attack program: it makes /proc/self/environ huge, without any right, and waits.
func TestHugeEnvironProgram(t *testing.T) {
	if os.Getenv(hugeVariable) == "" {
		t.Skip("is started by TestEnvironWithoutEnd")
	}
	size := uintptr(hugeEnviron)
	at, _, errno := unix.Syscall6(unix.SYS_MMAP, 0, size, unix.PROT_READ,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE, ^uintptr(0), 0)
	if errno != 0 {
		t.Fatal(errno)
	}
	// struct prctl_mm_map of include/uapi/linux/prctl.h: code, data, brk, stack, arguments, environment.
	layout := struct {
		places   [11]uint64
		auxv     uint64
		auxvSize uint32
		exe      int32
	}{exe: -1}
	for i := range layout.places {
		layout.places[i] = uint64(at)
	}
	layout.places[1], layout.places[3], layout.places[8] = uint64(at)+1, uint64(at)+1, uint64(at)+1
	layout.places[10] = uint64(at + size)
	const setMM, setMap = 35, 14
	if _, _, errno = unix.Syscall6(unix.SYS_PRCTL, setMM, setMap, uintptr(unsafe.Pointer(&layout)), unsafe.Sizeof(layout), 0, 0); errno != 0 {
		fmt.Println("refused:", errno)
		return
	}
	fmt.Println("ready")
	_, _ = os.Stdin.Read(make([]byte, 1))
}

// TestEnvironWithoutEnd: a process whose environment has no end costs the daemon nothing.
func TestEnvironWithoutEnd(t *testing.T) {
	needs.Root(t, "it starts a program as another user")
	cmd := exec.Command("/proc/self/exe", "-test.run", "^TestHugeEnvironProgram$")
	cmd.Env = []string{hugeVariable + "=1"}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: 65534, Gid: 65534},
		Pdeathsig:  syscall.SIGKILL,
	}
	program := child.Start(t, cmd)
	if line := program.Line(); line != "ready" {
		t.Skipf("needs PR_SET_MM_MAP (CONFIG_CHECKPOINT_RESTORE): %q", line)
	}
	for _, single := range []bool{false, true} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_ = oneGPU(config.Settings{SingleGPU: single}, []int{program.PID})
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 4<<20 {
			t.Errorf("single_gpu %v: %d MB were allocated for an environment of %d MB",
				single, took/1e6, hugeEnviron/1_000_000)
		}
	}
}
