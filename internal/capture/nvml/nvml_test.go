package nvml

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/recording"
)

const line = "1, GPU-0a1b, NVIDIA H200, 123.45, 700.00, 61, 1755, 1980, 3201, 0x0000000000000004, 97, 42, 1024, " +
	"143771, 0"

func TestParse(t *testing.T) {
	got, err := parse(line, newFields())
	want := recording.Sensor{
		GPU: 1, UUID: "GPU-0a1b", Name: "NVIDIA H200", Power: 123_450, PowerLimit: 700_000, Temperature: 61,
		SMClock: 1755, SMClockMax: 1980,
		MemoryClock: 3201, Reasons: 4, Utilization: 97, MemoryUtilization: 42, MemoryUsed: 1 << 30,
		MemoryTotal: 143771 << 20,
	}
	if err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	got, err = parse(strings.Replace(line, "123.45", "[N/A]", 1), newFields())
	if err != nil || got.Power != 0 || got.PowerLimit != 700_000 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{
		"", "Unable to determine the device handle", line + ", 1", strings.Replace(line, "61", "hot", 1),
		strings.Replace(line, "97", "NaN", 1), strings.Replace(line, "1,", "99,", 1),
	} {
		if _, err := parse(bad, newFields()); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(line)
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parse(text, newFields())
		if err == nil && (s.GPU < 0 || s.GPU >= maxGPUs || s.Utilization < 0 || s.Utilization > 100) {
			t.Errorf("%q gives %+v", text, s)
		}
	})
}

// fake is a program that stands in for nvidia-smi.
func fake(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nvidia-smi")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil { //nolint:gosec // it is run
		t.Fatal(err)
	}
	return path
}

// user is a process that maps a file of the driver's name.
func user(t *testing.T) *proc.Process {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("needs tool cc: ", err)
	}
	library := filepath.Join(t.TempDir(), "libcuda.so.1")
	if text, err := exec.Command("cc", "-shared", "-o", library, "-x", "c", os.DevNull).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	cmd := exec.Command("sleep", "60")
	cmd.Env = append(os.Environ(), "LD_PRELOAD="+library)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for range 200 {
		if text, err := os.ReadFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/maps"); err == nil &&
			strings.Contains(string(text), library) {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	p, err := proc.Describe(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 500 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("no %s", what)
}

// TestSamples: sensors are read while a process uses a GPU, and the reader ends with the last one.
func TestSamples(t *testing.T) {
	s := New(
		Options{Program: fake(t, "echo $$ > "+t.TempDir()+"/pid\nwhile :; do echo '"+line+"'; sleep 0.02; done\n")},
	)
	defer s.Close()
	if got := s.State(); got.State != "waiting" {
		t.Errorf("%+v", got)
	}
	p := user(t)
	if err := s.Follow(p); err != nil {
		t.Fatal(err)
	}
	until(t, "samples", func() bool { return len(s.Sensors(0, clock.Monotonic())) > 5 })
	if got := s.State(); got.State != "running" {
		t.Errorf("%+v", got)
	}
	all := s.Sensors(0, clock.Monotonic())
	if n := len(s.Sensors(all[2].TS, all[3].TS)); n != 2 {
		t.Errorf("%d samples of two moments", n)
	}
	helpers := s.Helpers()
	if len(helpers) != 1 {
		t.Fatalf("helpers %v", helpers)
	}
	s.Forget(p)
	until(
		t,
		"end of the reader",
		func() bool { _, err := os.Stat("/proc/" + strconv.Itoa(helpers[0])); return err != nil },
	)
	if got := s.State(); got.State != "waiting" || s.Helpers() != nil {
		t.Errorf("%+v %v", got, s.Helpers())
	}
}

// TestOlderDriver: a field that is not known is asked for under its older name.
func TestOlderDriver(t *testing.T) {
	s := New(
		Options{
			Program: fake(
				t,
				"case \"$1\" in *event_reasons*) echo 'Field \"clocks_event_reasons.active\" is not a valid field to "+
					"query.'; exit 2;; esac\nwhile :; do echo '"+line+"'; sleep 0.02; done\n",
			),
		},
	)
	defer s.Close()
	if err := s.Follow(user(t)); err != nil {
		t.Fatal(err)
	}
	until(t, "samples", func() bool { return len(s.Sensors(0, clock.Monotonic())) > 0 })
}

// TestRefused: State says what nvidia-smi says.
func TestRefused(t *testing.T) {
	s := New(
		Options{
			Program: fake(
				t,
				"echo 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.'; exit 9\n",
			),
		},
	)
	defer s.Close()
	if err := s.Follow(user(t)); err != nil {
		t.Fatal(err)
	}
	until(t, "reason", func() bool {
		got := s.State()
		// Optional: reports draw their verdict without it.
		return got.State == "unavailable" && strings.Contains(got.Detail, "could not communicate") && got.Optional
	})
}
