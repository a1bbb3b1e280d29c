package e2e

import (
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/report"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// severalGPUs starts testdata/gpus.c on n simulated GPUs.
func severalGPUs(t *testing.T, n int) *cudasim.Victim {
	t.Helper()
	p := cudasim.Build(t)
	program := filepath.Join(t.TempDir(), "gpus")
	lib := p.Libcuda(cudasim.Shape580)
	cc := exec.Command("gcc", "-O1", "-Wall", "-Werror", "-o", program, "testdata/gpus.c", lib, "-lpthread")
	must.Run(t, cc)
	return cudasim.Start(t,
		cudasim.Options{Program: []string{program}, Env: []string{fmt.Sprintf("CUDASIM_DEVICES=%d", n)}})
}

// deviceOf is the device of an activity: the low byte of Func.
func deviceOf(e *event.Event) uint32 { return uint32(e.Func & 0xff) }

// TestEachGPUHasItsOwn: a process with two GPUs, a thread for each. Every kernel is seen on the device that it ran on,
// in its context, and each device's busy time is that of the truth.
func TestEachGPUHasItsOwn(t *testing.T) {
	t.Parallel()
	const gpus = 2
	v := severalGPUs(t, gpus)
	d := startDaemon(t, v.PID, "--gpu", "continuous")
	d.waitOpen(v.PID)
	rec := d.waitKernels(v.PID, "counted", 500)
	truth := v.Truth()
	whole(t, rec)
	windows := slices.DeleteFunc(slices.Clone(rec.Meta.GPU.Windows),
		func(w recording.GPUWindow) bool { return !w.Activity })
	if len(windows) != 1 || len(rec.Meta.GPU.Devices) != gpus {
		t.Fatalf("%d windows and %d devices, want one open window and %d devices",
			len(windows), len(rec.Meta.GPU.Devices), gpus)
	}
	m := report.New(rec)
	contexts := map[uint32]uint16{}
	for device := range uint32(gpus) {
		w := windows[0]
		want := onDevice(truth, device, w)
		got := kernelsOn(rec, device, contexts)
		got = slices.DeleteFunc(got, func(k ran) bool {
			return k.start < w.From || k.end > w.To || !slices.Contains(want, k) && k.start < w.From+20_000_000
		})
		equalKernels(t, got, want)
		compareBusy(t, m, device, want, w)
	}
	if contexts[0] == contexts[1] {
		t.Errorf("both devices' kernels are said to be of context %d", contexts[0])
	}
	d.stop()
	unharmed(t, v)
}

// onDevice returns the kernels of a device that were queued and over in a window.
func onDevice(truth *cudasim.Truth, device uint32, w recording.GPUWindow) []ran {
	name := fmt.Sprintf("counted_gpu%d_", device)
	out := kernelsOf(truth, name, w.From, w.To)
	for _, o := range truth.Ops {
		if o.Device != device && o.Kind == cudasim.Kernel && len(o.Name) >= len(name) && o.Name[:len(name)] == name {
			panic("the simulator ran a kernel on another device than its thread's")
		}
	}
	return out
}

// kernelsOn returns the kernels that are seen on a device, and notes their context.
func kernelsOn(rec *recording.Recording, device uint32, contexts map[uint32]uint16) []ran {
	only := *rec
	only.Events = slices.DeleteFunc(slices.Clone(rec.Events),
		func(e event.Event) bool { return e.Kind == event.Kernel && deviceOf(&e) != device })
	for i := range only.Events {
		if e := &only.Events[i]; e.Kind == event.Kernel {
			contexts[device] = e.Func >> 8
		}
	}
	return kernelsIn(&only, int(rec.Meta.Target), "counted")
}

// compareBusy compares what a report says of a device with the truth: kernels of one stream never overlap, so busy is
// their sum.
func compareBusy(t *testing.T, m *report.Model, device uint32, want []ran, w recording.GPUWindow) {
	t.Helper()
	var busy uint64
	for _, k := range want {
		busy += k.end - k.start
	}
	truth := float64(busy) / float64(w.To-w.From)
	for _, d := range m.GPU.Devices {
		if uint32(d.ID) != device {
			continue
		}
		t.Logf("GPU %d: busy for %.2f%% of the time, in truth %.2f%%", device, 100*d.Busy.Share, 100*truth)
		if math.Abs(d.Busy.Share-truth) > 0.02*truth+0.002 {
			t.Errorf("GPU %d is said to be busy for %.3f of the time, in truth %.3f", device, d.Busy.Share, truth)
		}
		return
	}
	t.Errorf("the report says nothing of GPU %d: %+v", device, m.GPU.Devices)
}

// children starts a shell with two victims, each with its own words of environment before it, and returns their process
// ids.
func children(t *testing.T, first, second string) (*cudasim.Victim, []int) {
	t.Helper()
	line := fmt.Sprintf(
		`exec 3<&0; %s "$0" "$@" <&3 & %s "$0" "$@" <&3 & wait`,
		first,
		second,
	) // a shell gives those behind no standard input of its own
	v := cudasim.Start(t,
		cudasim.Options{Program: []string{"sh", "-c", line, cudasim.Build(t).Victim}, NoReady: true},
		"until { launch 5 kernel=counted_us50; sync; sleep 2ms }")
	v.WaitLine("ready")
	v.WaitLine("ready")
	var pids []int
	for _, pid := range strings.Fields(readProc(t, v.PID, fmt.Sprintf("task/%d/children", v.PID))) {
		pids = append(pids, atoi(t, pid))
		t.Cleanup(func() { _ = syscall.Kill(atoi(t, pid), syscall.SIGKILL) })
	}
	return v, pids
}

// TestPartsOfAGPU: two programs that each have a part of one GPU (MIG) have a device each, since the parts run beside
// each other; two programs on a whole one share it.
func TestPartsOfAGPU(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	for name, c := range map[string]struct {
		first, second, uuid string
		devices             int
	}{
		"parts": {"CUDASIM_MIG=1", "CUDASIM_MIG=2", "MIG-", 2},
		"whole": {"", "", "GPU-", 1},
	} {
		t.Run(name, func(t *testing.T) {
			v, pids := children(t, c.first, c.second)
			d := startDaemon(t, v.PID, "--gpu", "continuous")
			rec := d.fetch(v.PID)
			few := func(pid int) bool { return len(kernelsIn(rec, pid, "counted")) < 20 }
			for end := time.Now().Add(testTimeout); time.Now().Before(end) &&
				slices.ContainsFunc(pids, few); rec = d.fetch(v.PID) {
				sleep(50)
			}
			if slices.ContainsFunc(pids, few) {
				t.Fatalf("not each of %v has its kernels: %+v", pids, rec.Meta.GPU.Agents)
			}
			uuids := map[string]bool{}
			for _, device := range rec.Meta.GPU.Devices {
				uuids[device.UUID] = true
				if !strings.HasPrefix(device.UUID, c.uuid) {
					t.Errorf("device %+v, want a UUID of the kind %s", device, c.uuid)
				}
			}
			if len(pids) != 2 || len(rec.Meta.GPU.Devices) != 2 || len(uuids) != c.devices {
				t.Errorf("processes %v with the devices %v, want %d", pids, rec.Meta.GPU.Devices, c.devices)
			}
			if m := report.New(rec); len(m.GPU.Devices) != c.devices {
				t.Errorf("the report has %d devices, want %d: %+v", len(m.GPU.Devices), c.devices, m.GPU.Devices)
			}
			d.stop()
		})
	}
}
