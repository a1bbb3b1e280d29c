package nvml

import (
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/sleeper"
)

// dmonAnswer are two rounds of nvidia-smi dmon -s t of a machine whose second GPU does not tell.
const dmonAnswer = `# gpu  rxpci  txpci
# Idx   MB/s   MB/s
    1   1200     30
    2      -      -
# gpu  rxpci  txpci
# Idx   MB/s   MB/s
    1    800     10
`

// nvlinkAnswer counts KIB of data over each of the two links of GPU 1.
const nvlinkAnswer = `GPU 0: NVIDIA H200 (UUID: GPU-0a00)
	 Link 0: Data Tx: N/A
	 Link 0: Data Rx: N/A
GPU 1: NVIDIA H200 (UUID: GPU-0a1b)
	 Link 0: Data Tx: KIB KiB
	 Link 0: Data Rx: 2 KiB
	 Link 1: Data Tx: KIB KiB
	 Link 1: Data Rx: 2 KiB
`

func TestParseNVLink(t *testing.T) {
	got, err := parseNVLink(strings.ReplaceAll(nvlinkAnswer, "KIB", "3"))
	want := map[linkCounter]uint64{
		{1, 0, true}: 2 << 10, {1, 0, false}: 3 << 10, {1, 1, true}: 2 << 10, {1, 1, false}: 3 << 10,
	}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	for _, none := range []string{"", "NVML: Unable to retrieve NVLink information as all links are inActive\n"} {
		if got, err := parseNVLink(none); err != nil || len(got) != 0 {
			t.Errorf("%q gives %+v, %v", none, got, err)
		}
	}
	if _, err := parseNVLink(strings.Repeat("Link\n", maxLinks+1)); err == nil {
		t.Error("an answer without an end is taken")
	}
}

// TestReadPCIe: columns are found by their names, and rates are bytes a second.
func TestReadPCIe(t *testing.T) {
	s := New(Options{Program: "/nowhere"})
	began := 0
	if err := s.readPCIe(strings.NewReader(dmonAnswer), func() { began++ }); err != nil || began != 3 {
		t.Fatalf("%v after %d lines", err, began)
	}
	if got := s.links[1]; got == nil || got.pcieRx != 800e6 || got.pcieTx != 10e6 || s.links[2] != nil {
		t.Errorf("%+v", s.links)
	}
	moved := strings.NewReader("# gpu     sm  txpci  rxpci\n# Idx  %  MB/s  MB/s\n 3 99 5 6\n")
	if err := s.readPCIe(moved, func() {}); err != nil || s.links[3].pcieRx != 6e6 || s.links[3].pcieTx != 5e6 {
		t.Errorf("%+v, %v", s.links[3], err)
	}
	for _, bad := range []string{
		"1 2 3\n", "# gpu sm\n 1 2\n", "# gpu rxpci txpci\n 1 2\n", "# gpu rxpci txpci\n 99 2 3\n",
		"# gpu rxpci txpci\n 1 2 -3\n", "Failed to process command line.\n",
	} {
		if err := s.readPCIe(strings.NewReader(bad), func() {}); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func FuzzLinks(f *testing.F) {
	f.Add(dmonAnswer)
	f.Add(strings.ReplaceAll(nvlinkAnswer, "KIB", "3"))
	f.Fuzz(func(t *testing.T, text string) {
		s := New(Options{Program: "/nowhere"})
		_ = s.readPCIe(strings.NewReader(text), func() {})
		counts, err := parseNVLink(text)
		for gpu := range s.links {
			if gpu < 0 || gpu >= maxGPUs {
				t.Errorf("GPU %d", gpu)
			}
		}
		for c := range counts {
			if err != nil || c.gpu < 0 || c.gpu >= maxGPUs {
				t.Errorf("%+v, %v", c, err)
			}
		}
	})
}

// TestLinks: samples hold what PCIe and NVLink carried, where that was read lately.
func TestLinks(t *testing.T) {
	dir := t.TempDir()
	script := "case \"$1\" in\ndmon) while :; do printf '" + strings.ReplaceAll(dmonAnswer, "\n", "\\n") +
		"'; sleep 0.1; done;;\nnvlink) echo x >> " + dir + "/asked; kib=$(($(wc -l < " + dir + "/asked) * 1024))\n" +
		"cat <<END\n" + strings.ReplaceAll(nvlinkAnswer, "KIB", "$kib") + "END\nexit;;\n" +
		"*apps*) exit;;\nesac\nwhile :; do echo '" + line + "'; sleep 0.02; done\n"
	s := New(Options{Program: fake(t, script)})
	defer s.Close()
	must.NoError(t, s.Follow(sleeper.Mapping(t, "libcuda.so.1")))
	must.Become(t, "sample with both links", func() bool {
		latest := s.Latest()
		return len(latest) == 1 && latest[0].Links == recording.PCIeLink|recording.NVLink
	})
	got := s.Latest()[0]
	if got.PCIeRx != 800e6 && got.PCIeRx != 1200e6 || got.PCIeTx != 10e6 && got.PCIeTx != 30e6 {
		t.Errorf("PCIe carries %d and %d bytes a second", got.PCIeRx, got.PCIeTx)
	}
	// One more MiB over each of two links in a period, which lasts a little longer on a busy machine.
	most := uint64(2<<20) / uint64(nvlinkPeriod.Seconds())
	if got.NVLinkTx > most || got.NVLinkTx < most/2 || got.NVLinkRx != 0 {
		t.Errorf("NVLink carries %d and %d bytes a second, want %d and 0", got.NVLinkTx, got.NVLinkRx, most)
	}
	if detail := s.State().Detail; strings.Contains(detail, "PCIe") {
		t.Errorf("the state says %q", detail)
	}
}

// TestOldTrafficIsNotKnown: a reading is not repeated after the process that gives it has stopped.
func TestOldTrafficIsNotKnown(t *testing.T) {
	now := clock.Monotonic()
	links := traffic{pcieRx: 1, pcieTx: 2, pcieAt: now, nvlinkRx: 3, nvlinkTx: 4, nvlinkAt: now}
	for at, want := range map[uint64]recording.Sensor{
		now:               {TS: now, Links: 3, PCIeRx: 1, PCIeTx: 2, NVLinkRx: 3, NVLinkTx: 4},
		now + pcieAge + 1: {TS: now + pcieAge + 1, Links: recording.NVLink, NVLinkRx: 3, NVLinkTx: 4},
		now + nvlinkAge*2: {TS: now + nvlinkAge*2},
	} {
		s := recording.Sensor{TS: at}
		links.add(&s)
		if diff := cmp.Diff(want, s); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
	}
}

// TestNoPCIe: a driver that cannot tell leaves the sensors as they are, and the state says why.
func TestNoPCIe(t *testing.T) {
	s := New(Options{Program: fake(t, "case \"$1\" in dmon) echo 'Not supported on the device(s)'; exit 3;; nvlink) "+
		"exit 3;; *apps*) exit;; esac\nwhile :; do echo '"+line+"'; sleep 0.02; done\n")})
	defer s.Close()
	must.NoError(t, s.Follow(sleeper.Mapping(t, "libcuda.so.1")))
	must.Become(t, "reason, and samples", func() bool {
		got := s.State()
		return got.State == "running" && strings.Contains(got.Detail, "what PCIe carries is not known: ") &&
			len(s.Latest()) == 1
	})
	if latest := s.Latest(); latest[0].Links != 0 {
		t.Errorf("%+v", latest)
	}
}

// TestKeepNVLink: only counters of both answers that did not go down are traffic.
func TestKeepNVLink(t *testing.T) {
	before := map[linkCounter]uint64{
		{gpu: 1}: 100, {gpu: 1, rx: true}: 10, {gpu: 1, link: 1}: 500, {gpu: 1, link: 2}: 7, {gpu: 2}: 900,
	}
	now := map[linkCounter]uint64{
		{gpu: 1}: 300, {gpu: 1, rx: true}: 50, {gpu: 1, link: 1}: 20, // which went down
		{gpu: 1, link: 3}: 1 << 50, {gpu: 2}: 0, {gpu: 3}: 1 << 50, // which did not count before
	}
	s := New(Options{Program: "/nowhere"})
	s.keepNVLink(before, now, 1e9, 3e9)
	if got, want := *s.trafficOf(1), (traffic{nvlinkRx: 20, nvlinkTx: 100, nvlinkAt: 3e9}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	for _, gpu := range []int{2, 3} {
		if got := *s.trafficOf(gpu); got != (traffic{}) {
			t.Errorf("GPU %d carries %+v", gpu, got)
		}
	}
}

// TestNVLinkRefused: nvidia-smi that cannot tell is asked three times, and the state says why.
func TestNVLinkRefused(t *testing.T) {
	dir := t.TempDir()
	s := New(Options{Program: fake(t, "case \"$1\" in dmon) exec sleep 60;; nvlink) echo x >> "+dir+"/asked; exit 3;; "+
		"*apps*) exit;; esac\nwhile :; do echo '"+line+"'; sleep 0.02; done\n")})
	defer s.Close()
	s.nvlinkPeriod = time.Millisecond
	must.NoError(t, s.Follow(sleeper.Mapping(t, "libcuda.so.1")))
	must.Become(t, "reason", func() bool {
		got := s.State()
		return got.State == "running" && strings.Contains(got.Detail, "what NVLink carries is not known: ") &&
			strings.Contains(got.Detail, "exit status 3")
	})
	s.watchNVLink(make(chan struct{})) // ends by itself
	if asked, err := os.ReadFile(dir + "/asked"); err != nil || string(asked) != strings.Repeat("x\n", 2*nvlinkTries) {
		t.Errorf("asked %q, %v", asked, err)
	}
}

// TestNextPause: a reader that only fails is started ever more rarely, until it gives a reading.
func TestNextPause(t *testing.T) {
	var pause time.Duration
	for i, want := range []float64{10, 20, 40, 80, 160, 320, 600, 600} {
		if pause = nextPause(pause, i == 0); pause.Seconds() != want {
			t.Errorf("pause %d is %s, want %v s", i, pause, want)
		}
	}
	if pause = nextPause(pause, true); pause != restart {
		t.Errorf("the pause after a reading is %s", pause)
	}
}
