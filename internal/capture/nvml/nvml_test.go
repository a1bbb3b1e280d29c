package nvml

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/sleeper"
)

const line = "1, GPU-0a1b, NVIDIA H200, 123.45, 700.00, 61, 1755, 1980, 3201, 0x0000000000000004, 97, 42, 1024, " +
	"143771, 0, 00000000:65:00.0, Disabled"

func TestParse(t *testing.T) {
	got, err := parse(line, newFields())
	want := answer{bus: "0000:65:00", Sensor: recording.Sensor{
		GPU: 1, UUID: "GPU-0a1b", Name: "NVIDIA H200", Power: 123_450, PowerLimit: 700_000, Temperature: 61,
		SMClock: 1755, SMClockMax: 1980,
		MemoryClock: 3201, Reasons: 4, Utilization: 97, MemoryUtilization: 42, MemoryUsed: 1 << 30,
		MemoryTotal: 143771 << 20,
	}}
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

// TestSamples: sensors are read while a process uses a GPU, and the reader ends with the last one.
func TestSamples(t *testing.T) {
	s := New(Options{Program: fake(t,
		"case \"$1\" in dmon) exec sleep 60;; esac\nwhile :; do echo '"+line+"'; sleep 0.02; done\n")})
	defer s.Close()
	if got := s.State(); got.State != "waiting" {
		t.Errorf("%+v", got)
	}
	p := sleeper.Mapping(t, "libcuda.so.1")
	must.NoError(t, s.Follow(p))
	must.Become(t, "samples", func() bool { return len(s.Sensors(0, clock.Monotonic())) > 5 })
	if got := s.State(); got.State != "running" {
		t.Errorf("%+v", got)
	}
	all := s.Sensors(0, clock.Monotonic())
	if n := len(s.Sensors(all[2].TS, all[3].TS)); n != 2 {
		t.Errorf("%d samples of two moments", n)
	}
	helpers := s.Helpers()
	if len(helpers) != 2 { // sensors, and what PCIe carries
		t.Fatalf("helpers %v", helpers)
	}
	s.Forget(p)
	for _, pid := range helpers {
		must.Become(t, "end of a reader", func() bool {
			_, err := os.Stat("/proc/" + strconv.Itoa(pid))
			return err != nil
		})
	}
	if got := s.State(); got.State != "waiting" || s.Helpers() != nil {
		t.Errorf("%+v %v", got, s.Helpers())
	}
}

// TestOlderDriver: fields that are not known are asked for under their older names, or not at all.
func TestOlderDriver(t *testing.T) {
	s := New(
		Options{
			Program: fake(
				t,
				"case \"$1\" in *event_reasons*|*mig.mode*) echo 'Field \"mig.mode.current\" is not a valid field to "+
					"query.'; exit 2;; esac\nwhile :; do echo '"+strings.TrimSuffix(line, ", Disabled")+"'; sleep 0.02; done\n",
			),
		},
	)
	defer s.Close()
	must.NoError(t, s.Follow(sleeper.Mapping(t, "libcuda.so.1")))
	must.Become(t, "samples", func() bool { return len(s.Sensors(0, clock.Monotonic())) > 0 })
}

// TestOlderDriverDivided: a driver with the older names says whether a GPU is divided.
func TestOlderDriverDivided(t *testing.T) {
	divided := strings.Replace(strings.Replace(line, "97, 42", "[N/A], [N/A]", 1), "Disabled", "Enabled", 1)
	s := New(Options{Program: fake(t, "case \"$1\" in *event_reasons*) echo 'Field \"clocks_event_reasons.active\" is "+
		"not a valid field to query.'; exit 2;; esac\nwhile :; do echo '"+divided+"'; sleep 0.02; done\n")})
	defer s.Close()
	must.NoError(t, s.Follow(sleeper.Mapping(t, "libcuda.so.1")))
	must.Become(t, "sample of a divided GPU", func() bool {
		latest := s.Latest()
		return len(latest) == 1 && latest[0].MIG
	})
}

// TestNoListOfFields: a driver that knows none of the lists is asked for each once, and then waits as after any error.
func TestNoListOfFields(t *testing.T) {
	asked := filepath.Join(t.TempDir(), "asked")
	s := New(Options{Program: fake(t, "case \"$1\" in --query-gpu=*) echo \"$1\" >> "+asked+"; echo 'Field \"index\" "+
		"is not a valid field to query.'; exit 2;; *) exit 3;; esac\n")})
	defer s.Close()
	must.NoError(t, s.Follow(sleeper.Mapping(t, "libcuda.so.1")))
	var want string
	for _, fields := range fieldLists() {
		want += "--query-gpu=" + names(fields) + "\n"
	}
	var got []byte
	must.Become(t, "questions", func() bool {
		got, _ = os.ReadFile(asked)
		return len(got) >= len(want)
	})
	time.Sleep(300 * time.Millisecond) // without a pause there would be dozens more
	if got, _ = os.ReadFile(asked); string(got) != want {
		t.Errorf("asked\n%s, want\n%s", got, want)
	}
	if got := s.State(); got.State != "unavailable" || !strings.Contains(got.Detail, "does not know a field") {
		t.Errorf("%+v", got)
	}
}

// TestRefused: State says what nvidia-smi says.
func TestRefused(t *testing.T) {
	s := New(Options{
		Program: fake(
			t,
			"echo 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.'; exit 9\n",
		),
	})
	defer s.Close()
	must.NoError(t, s.Follow(sleeper.Mapping(t, "libcuda.so.1")))
	must.Become(t, "reason", func() bool {
		got := s.State()
		// Optional: reports draw their verdict without it.
		return got.State == "unavailable" && strings.Contains(got.Detail, "could not communicate") && got.Optional
	})
}

// TestProcesses: what each process holds is asked for beside the sensors.
func TestProcesses(t *testing.T) {
	s := New(Options{Program: fake(t, "case \"$1\" in *compute-apps*) echo '17, GPU-0a1b, 512'; echo '18, GPU-0a1b, "+
		"[N/A]'; exit;; esac\nwhile :; do echo '"+line+"'; sleep 0.02; done\n")})
	defer s.Close()
	must.NoError(t, s.Follow(sleeper.Mapping(t, "libcuda.so.1")))
	must.Become(t, "processes", func() bool { return len(s.Processes()) > 0 })
	got := s.Processes()
	if want := (recording.GPUProcess{TS: got[0].TS, PID: 17, UUID: "GPU-0a1b", Used: 512 << 20}); len(got) != 1 ||
		got[0] != want || want.TS == 0 {
		t.Errorf("%+v, want %+v", got, want)
	}
	for _, bad := range []string{"17, GPU-0a1b\n", "x, GPU-0a1b, 1\n", "17, GPU-0a1b, 99999999999999\n"} {
		if _, err := parseProcesses(bad, 1); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// TestXids: errors of GPUs are read from the kernel's log while a target uses one.
func TestXids(t *testing.T) {
	log := filepath.Join(t.TempDir(), "kmsg")
	must.NoError(t, syscall.Mkfifo(log, 0o600))
	w, err := os.OpenFile(log, os.O_RDWR, 0)
	must.NoError(t, err)
	defer w.Close()
	s := New(Options{Program: fake(t, "while :; do echo '"+line+"'; sleep 0.02; done\n"), KernelLog: log})
	defer s.Close()
	p := sleeper.Mapping(t, "libcuda.so.1")
	must.NoError(t, s.Follow(p))
	must.Become(t, "samples", func() bool { return len(s.Sensors(0, clock.Monotonic())) > 0 })
	for _, message := range []string{
		"usb 1-1: new device", "NVRM: Xid (PCI:0000:65:00): 31, pid=1234, name=python3, Ch 00000010. MMU Fault",
		"NVRM: Xid (PCI:0000:66:00 GPU-I:05): 79, GPU has fallen off the bus.",
	} {
		seen := len(s.Xids(0, clock.Monotonic()))
		if _, err := w.WriteString("4,17,5678901,-;" + message + "\n"); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(message, "NVRM") {
			must.Become(t, message, func() bool { return len(s.Xids(0, clock.Monotonic())) > seen })
		}
	}
	got := s.Xids(0, clock.Monotonic())
	want := []recording.Xid{
		{
			TS: got[0].TS, GPU: 1, UUID: "GPU-0a1b", Bus: "0000:65:00", Code: 31, PID: 1234,
			Text: "name=python3, Ch 00000010. MMU Fault",
		},
		{TS: got[1].TS, GPU: -1, Bus: "0000:66:00", Code: 79, Text: "GPU has fallen off the bus."},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if n := len(s.Xids(got[1].TS+1, clock.Monotonic())); n != 0 {
		t.Errorf("%d errors after the last", n)
	}
	counts := []recording.XidCount{
		{GPU: 1, Bus: "0000:65:00", Code: 31, Count: 1}, {GPU: -1, Bus: "0000:66:00", Code: 79, Count: 1},
	}
	if diff := cmp.Diff(counts, s.XidCounts()); diff != "" {
		t.Errorf("counts (-want +got)\n%s", diff)
	}
	s.keepXid(recording.Xid{Bus: "0000:65:00", Code: 31})
	if got := s.XidCounts()[0].Count; got != 2 {
		t.Errorf("an error that came twice counts as %d", got)
	}
	if latest := s.Latest(); len(latest) != 1 || latest[0].GPU != 1 {
		t.Errorf("the latest samples are %+v, want one of GPU 1", latest)
	}
	s.Forget(p) // ends the reader, which waits for the next record
}

// TestProcessesRefused: State says that only what processes hold is not known.
func TestProcessesRefused(t *testing.T) {
	s := New(Options{Program: fake(t,
		"case \"$1\" in *compute-apps*) exit 3;; esac\nwhile :; do echo '"+line+"'; sleep 0.02; done\n")})
	defer s.Close()
	must.NoError(t, s.Follow(sleeper.Mapping(t, "libcuda.so.1")))
	must.Become(t, "reason", func() bool {
		got := s.State()
		return got.State == "running" && strings.Contains(got.Detail, "what each process holds is not known") &&
			strings.Contains(got.Detail, "exit status 3")
	})
}
