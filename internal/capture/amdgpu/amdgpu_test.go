package amdgpu

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
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

// metrics is a gpu_metrics file of format 1.3 with these reasons.
func metrics(status uint64) string {
	return string(binary.LittleEndian.AppendUint64(header(120, 1, 3, 112), status))
}

// header is the beginning of a gpu_metrics file of so many bytes.
func header(size uint16, format, content byte, length int) []byte {
	b := make([]byte, length)
	binary.LittleEndian.PutUint16(b, size)
	b[2], b[3] = format, content
	return b
}

// tree makes a folder like /sys/class/drm with a card of AMD, one of another vendor, and a connector.
func tree(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for path, content := range map[string]string{
		"card0/device/vendor":                       "0x10de\n",
		"card1-DP-1/status":                         "connected\n",
		"card12/device/vendor":                      "0x1002\n",
		"card12/device/device":                      "0x740f\n",
		"card12/device/unique_id":                   "3df1b2c4d5e6f708\n",
		"card12/device/gpu_busy_percent":            "87\n",
		"card12/device/mem_busy_percent":            "31\n",
		"card12/device/mem_info_vram_used":          "1073741824\n",
		"card12/device/mem_info_vram_total":         "68702699520\n",
		"card12/device/pp_dpm_sclk":                 "0: 500Mhz \n1: 800Mhz *\n2: 1700Mhz \n",
		"card12/device/pcie_bw":                     "1000 20 256\n",
		"card12/device/ras/umc_err_count":           "ue: 2\nce: 5\n",
		"card12/device/gpu_metrics":                 metrics(1<<2 | 1<<36),
		"card12/device/hwmon/hwmon5/power1_average": "214500000\n",
		"card12/device/hwmon/hwmon5/power1_cap":     "300000000\n",
		"card12/device/hwmon/hwmon5/temp1_input":    "61700\n",
		"card12/device/hwmon/hwmon5/freq1_input":    "1485000000\n",
		"card12/device/hwmon/hwmon5/freq2_input":    "1600000000\n",
	} {
		path = filepath.Join(root, path)
		must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	}
	return root
}

func TestRead(t *testing.T) {
	root := tree(t)
	list := cards(root)
	if len(list) != 1 {
		t.Fatalf("%d cards, want the one of AMD", len(list))
	}
	got, err := list[0].read(9)
	want := recording.Sensor{
		TS: 9, UUID: "GPU-3df1b2c4d5e6f708", Name: "AMD GPU 0x740f", Power: 214_500, PowerLimit: 300_000, Temperature: 62,
		SMClock: 1485, SMClockMax: 1700, MemoryClock: 1600, Reasons: 0x24, Utilization: 87, MemoryUtilization: 31,
		MemoryUsed: 1 << 30, MemoryTotal: 68702699520, Uncorrected: 2,
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, -want +got\n%s", err, diff)
	}
	hwmon := filepath.Join(list[0].device, "hwmon/hwmon5")
	must.NoError(t, os.Rename(filepath.Join(hwmon, "power1_average"), filepath.Join(hwmon, "power1_input")))
	if got, err = list[0].read(9); err != nil || got.Power != 214_500 {
		t.Errorf("%d mW, %v from power1_input", got.Power, err)
	}
	must.NoError(t, os.Rename(filepath.Join(hwmon, "temp1_input"), filepath.Join(hwmon, "temp2_input")))
	if got, err = list[0].read(9); err != nil || got.Temperature != 62 {
		t.Errorf("%d C, %v from temp2_input", got.Temperature, err)
	}
	if rx, tx, ok := list[0].pcie(); !ok || rx != 256_000 || tx != 5120 {
		t.Errorf("PCIe %d, %d, %t", rx, tx, ok)
	}
	must.NoError(t, os.Remove(filepath.Join(list[0].device, "gpu_busy_percent")))
	if got, err := list[0].read(9); err == nil {
		t.Errorf("a load that is not known is %d%%", got.Utilization)
	}
}

// TestReasons: only revisions whose bits mean the same on every GPU are read.
func TestReasons(t *testing.T) {
	other := []byte(metrics(1))
	other[3] = 4
	for _, c := range []struct {
		name    string
		content string
		want    uint64
		ok      bool
	}{
		{"nothing", metrics(0), 0, true},
		{"power", metrics(1 << 3), 0x4, true},
		{"current", metrics(1 << 16), 0x4, true},
		{"clock controller", metrics(1 << 23), 0x8, true},
		{"heat", metrics(1 << 43), 0x20, true},
		{"processor hot", metrics(1 << 47), 0x40, true},
		{"not known", metrics(1<<64 - 1), 0, true},
		{"an APU", string(binary.LittleEndian.AppendUint64(header(128, 2, 2, 120), 1<<35)), 0x20, true},
		{"a newer APU", string(binary.LittleEndian.AppendUint64(header(168, 2, 4, 120), 1)), 0x4, true},
		{"another revision", string(other), 0, false},
		{"cut off", metrics(1)[:50], 0, false},
		{"empty", "", 0, false},
	} {
		got, err := (&card{}).reasons([]byte(c.content))
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("%s: %#x, %v; want %#x", c.name, got, err, c.want)
		}
	}
}

// TestResidencies: newer data centre GPUs count for how long something held their clocks down, at a place of their own
// in each revision.
func TestResidencies(t *testing.T) {
	for _, l := range []struct {
		size    uint16
		content byte
		offset  int
	}{{384, 6, 108}, {1680, 6, 36}, {1800, 7, 44}, {2400, 8, 44}} {
		file := header(l.size, 1, l.content, int(l.size))
		c := &card{}
		for i, want := range []uint64{0, 0, 0x40, 0x4, 0x20, 0x20, 0x20, 0} {
			if i >= 2 && i < 7 { // one counter each time
				at := file[l.offset+4*(i-2):]
				binary.LittleEndian.PutUint32(at, binary.LittleEndian.Uint32(at)+3)
			}
			if got, err := c.reasons(file); err != nil || got != want {
				t.Errorf("1.%d of %d bytes, reading %d: %#x, %v; want %#x", l.content, l.size, i, got, err, want)
			}
		}
		binary.LittleEndian.PutUint32(file[l.offset:], 1<<32-1) // not known
		if got, err := c.reasons(file); err != nil || got != 0 {
			t.Errorf("1.%d: %#x of a counter that is not known, %v", l.content, got, err)
		}
	}
}

func FuzzReasons(f *testing.F) {
	f.Add([]byte(metrics(1)))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := &card{throttled: &residencies{}}
		if got, err := c.reasons(b); err == nil && got&^0x6c != 0 {
			t.Errorf("%#x", got)
		}
	})
}

// TestSamples: sensors are read while a process uses HIP, with what PCIe carried.
func TestSamples(t *testing.T) {
	s := New(Options{Folder: tree(t)})
	defer s.Close()
	if got := s.State(); got.State != "waiting" || !got.Optional {
		t.Errorf("%+v", got)
	}
	p := sleeper.Mapping(t, "libamdhip64.so.6")
	must.NoError(t, s.Follow(p))
	must.Become(t, "samples with PCIe", func() bool {
		latest := s.Latest()
		return len(latest) == 1 && latest[0].Links == recording.PCIeLink|recording.PCIeAtMost &&
			latest[0].PCIeRx == 256_000 && len(s.Sensors(0, clock.Monotonic())) > 1
	})
	all := s.Sensors(0, clock.Monotonic())
	if got := s.State(); got.State != "running" || all[0].Power != 214_500 {
		t.Errorf("%+v, %+v", got, all)
	}
	if n := len(s.Sensors(all[0].TS, all[0].TS)); n != 1 {
		t.Errorf("%d samples of one moment", n)
	}
	s.Forget(p)
	if got := s.State(); got.State != "waiting" {
		t.Errorf("%+v", got)
	}
	n := len(s.Sensors(0, clock.Monotonic()))
	time.Sleep(3 * interval)
	if again := len(s.Sensors(0, clock.Monotonic())); again != n {
		t.Errorf("%d samples after the last process, %d before", again, n)
	}
}

// TestProcesses: the compute driver says what each process holds, by a number of its own for each GPU.
func TestProcesses(t *testing.T) {
	compute := t.TempDir()
	for path, content := range map[string]string{
		"topology/nodes/0/gpu_id":     "0\n", // a CPU
		"topology/nodes/0/properties": "cpu_cores_count 64\nunique_id 0\n",
		"topology/nodes/1/gpu_id":     "51183\n",
		"topology/nodes/1/properties": "simd_count 416\nunique_id 4463545264172889864\n", // 0x3df1b2c4d5e6f708
		"proc/4711/vram_51183":        "1073741824\n",
		"proc/4711/vram_7":            "4096\n", // of no GPU that is known
		"proc/4711/pasid":             "32770\n",
		"proc/4712/vram_51183":        "0\n",
	} {
		path = filepath.Join(compute, path)
		must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	}
	s := New(Options{Folder: tree(t), Compute: compute})
	defer s.Close()
	must.NoError(t, s.Follow(sleeper.Mapping(t, "libamdhip64.so.6")))
	must.Become(t, "processes", func() bool { return len(s.Processes()) > 0 })
	got := s.Processes()
	want := []recording.GPUProcess{{TS: got[0].TS, PID: 4711, UUID: s.cards[0].uuid, Used: 1 << 30}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestNoCard(t *testing.T) {
	s := New(Options{Folder: t.TempDir()})
	if got := s.State(); got.State != "unavailable" || len(s.Latest()) != 0 {
		t.Errorf("%+v", got)
	}
}

// TestOneCardFails: the sensors are unavailable only where no card gives any.
func TestOneCardFails(t *testing.T) {
	root := tree(t)
	second := filepath.Join(root, "card13/device")
	must.NoError(t, os.MkdirAll(second, 0o700))
	must.NoError(t, os.WriteFile(filepath.Join(second, "vendor"), []byte(vendor+"\n"), 0o600))
	s := New(Options{Folder: root})
	for _, order := range [][]int{{0, 1}, {1, 0}} {
		for _, i := range order {
			s.keep(s.cards[i].read(1))
		}
		if got := s.state(true); got.State != "running" || !strings.Contains(got.Detail, "the load of AMD GPU 1") {
			t.Errorf("one of two fails: %+v", got)
		}
	}
	s.keep(recording.Sensor{GPU: 0}, errors.New("gone"))
	if got := s.state(true); got.State != "unavailable" || !strings.HasPrefix(got.Detail, "gone; ") {
		t.Errorf("both fail: %+v", got)
	}
	s.keep(recording.Sensor{GPU: 1}, nil)
	if got := s.state(true); got.State != "running" || !strings.HasSuffix(got.Detail, "; gone") {
		t.Errorf("the other fails: %+v", got)
	}
}

// TestForgetDoesNotWait: a read of pcie_bw under way holds up Close, but not Forget, and is dropped.
func TestForgetDoesNotWait(t *testing.T) {
	root := tree(t)
	bandwidth := filepath.Join(root, "card12/device/pcie_bw")
	must.NoError(t, os.Remove(bandwidth))
	must.NoError(t, syscall.Mkfifo(bandwidth, 0o600))
	w, err := os.OpenFile(bandwidth, os.O_RDWR, 0)
	must.NoError(t, err)
	defer w.Close()
	s, p := New(Options{Folder: root}), sleeper.Mapping(t, "libamdhip64.so.6")
	must.NoError(t, s.Follow(p))
	forgotten := make(chan struct{})
	go func() {
		s.Forget(p)
		close(forgotten)
	}()
	must.Become(t, "end of Forget", func() bool {
		select {
		case <-forgotten:
			return true
		default:
			return false
		}
	})
	answer := "1000 20 256\n"
	if _, err := w.WriteString(answer + strings.Repeat(" ", maxFile-len(answer))); err != nil {
		t.Fatal(err)
	}
	must.NoError(t, s.Close())
	if len(s.links) != 0 {
		t.Errorf("%+v is kept", s.links)
	}
}
