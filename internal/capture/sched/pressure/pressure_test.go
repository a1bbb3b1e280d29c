package pressure

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/sleeper"
)

// tree makes files below a folder.
func tree(t *testing.T, content map[string]string) files {
	t.Helper()
	root := t.TempDir()
	for name, text := range content {
		must.NoError(t, os.MkdirAll(filepath.Dir(root+name), 0o755))
		must.NoError(t, os.WriteFile(root+name, []byte(text), 0o644))
	}
	return files{root: root}
}

const mountinfo = `30 25 0:26 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
32 25 0:28 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
`

func TestCgroupsOfBothVersions(t *testing.T) {
	f := tree(t, map[string]string{
		"/proc/self/mountinfo":                       mountinfo,
		"/proc/7/cgroup":                             "3:cpuset:/x\n2:cpu,cpuacct:/jobs/a\n0::/slice/b\n",
		"/sys/fs/cgroup/cpu,cpuacct/jobs/a/cpu.stat": "nr_periods 9\nnr_throttled 3\nthrottled_time 1000\n",
		"/sys/fs/cgroup/cpu,cpuacct/jobs/cpu.stat":   "nr_throttled 2\nthrottled_time 500\n",
		"/sys/fs/cgroup/unified/slice/b/cpu.stat":    "usage_usec 5\nnr_throttled 1\nthrottled_usec 7\n",
		"/sys/fs/cgroup/unified/slice/b/memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=42\n" +
			"full avg10=0.00 avg60=0.00 avg300=0.00 total=9\n",
		"/proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=99\n",
	})
	g := f.cgroups(7)
	if want := []string{
		"/sys/fs/cgroup/unified/slice/b", "/sys/fs/cgroup/unified/slice", "/sys/fs/cgroup/unified",
	}; !slices.Equal(
		g.unified,
		want,
	) {
		t.Errorf("unified %q", g.unified)
	}
	if ns, periods := f.throttled(g); ns != 1000+500+7000 || periods != 6 {
		t.Errorf("throttled %d ns in %d periods", ns, periods)
	}
	if ns, whose := f.memoryStall(g); ns != 42_000 || whose != "of the cgroup" {
		t.Errorf("memory stall %d %s", ns, whose)
	}
	if ns, whose := f.memoryStall(groups{}); ns != 99_000 || whose != "of the host" {
		t.Errorf("memory stall %d %s", ns, whose)
	}
}

func TestCgroupsOutsideAreNotRead(t *testing.T) {
	m := mount{point: "/cg", root: "/docker/1"}
	for group, want := range map[string][]string{
		"/docker/1":     {"/cg"},
		"/docker/1/a":   {"/cg/a", "/cg"},
		"/docker/12":    nil,
		"/":             nil,
		"/../../etc":    nil,
		"/docker/1/../": nil,
	} {
		if got := upwards(m, group); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", group, got, want)
		}
	}
	deep := upwards(mount{"/cg", "/"}, strings.Repeat("/a", 1000))
	if len(deep) != maxDepth {
		t.Errorf("%d folders of a cgroup that is 1,000 deep", len(deep))
	}
}

// TestGPUs: where the driver says that its GPUs are, with their nodes; one that it does not know yet is none.
func TestGPUs(t *testing.T) {
	const driver = "/proc/driver/nvidia/gpus/"
	f := tree(t, map[string]string{
		driver + "0000:1B:00.0/information":           "Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-11\nBus Type: \t PCIe\n",
		driver + "0000:9a:00.0/information":           "GPU UUID: \t GPU-22\n",
		driver + "0000:9b:00.0/information":           "GPU UUID: \t GPU-????????-????-????-????-????????????\n",
		"/sys/bus/pci/devices/0000:1b:00.0/numa_node": "1\n",
		"/sys/bus/pci/devices/0000:9a:00.0/numa_node": "-1\n",
	})
	want := []recording.HostGPU{
		{UUID: "GPU-11", Bus: "0000:1b:00.0", Node: 1}, {UUID: "GPU-22", Bus: "0000:9a:00.0", Node: -1},
	}
	if got := f.gpus(); !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := tree(t, map[string]string{"/proc/x": ""}).gpus(); got != nil {
		t.Errorf("%+v on a host without a driver", got)
	}
}

func TestGPUNode(t *testing.T) {
	gpu := func(at, class, node string) map[string]string {
		d := "/sys/bus/pci/devices/" + at
		return map[string]string{d + "/vendor": "0x10de\n", d + "/class": class + "\n", d + "/numa_node": node + "\n"}
	}
	for name, c := range map[string]struct {
		devices []map[string]string
		want    int
	}{
		"one":           {[]map[string]string{gpu("1", "0x030200", "1")}, 1},
		"two alike":     {[]map[string]string{gpu("1", "0x030200", "1"), gpu("2", "0x030000", "1")}, 1},
		"two nodes":     {[]map[string]string{gpu("1", "0x030200", "1"), gpu("2", "0x030200", "0")}, -1},
		"not told":      {[]map[string]string{gpu("1", "0x030200", "-1")}, -1},
		"another class": {[]map[string]string{gpu("1", "0x040300", "1")}, -1},
		"none":          {nil, -1},
	} {
		t.Run(name, func(t *testing.T) {
			all := map[string]string{"/proc/x": ""}
			for _, d := range c.devices {
				maps.Copy(all, d)
			}
			if got := tree(t, all).gpuNode(); got != c.want {
				t.Errorf("node %d, want %d", got, c.want)
			}
		})
	}
}

func TestNodeOfCPUs(t *testing.T) {
	const at = "/sys/devices/system/node/node"
	two := tree(t, map[string]string{at + "0/cpulist": "0-1,4\n", at + "1/cpulist": "2-3,6\n", at + "2/cpulist": "\n"})
	if got, want := two.nodeOf(), []int{0, 0, 1, 1, 0, -1, 1}; !slices.Equal(got, want) {
		t.Errorf("nodes %v, want %v", got, want)
	}
	if got := tree(t, map[string]string{at + "0/cpulist": "0-7\n"}).nodeOf(); got != nil {
		t.Errorf("nodes %v on a host with one", got)
	}
}

func TestPagesByNode(t *testing.T) {
	total := map[string]uint64{}
	sumPages(
		strings.NewReader(
			"7f00 default file=/N9=9 mapped=3 N0=12 N1=3 kernelpagesize_kB=4\n"+
				"7f10 default anon=1 N1=2 kernelpagesize_kB=2048\nN=4 Nx=5 N99999=1\n",
		),
		4,
		total,
	)
	if want := map[string]uint64{"0": 12, "1": 3 + 2*512}; !maps.Equal(total, want) {
		t.Errorf("pages %v, want %v", total, want)
	}
}

func TestStatOfAHostileName(t *testing.T) {
	faults, start, err := parseStat("7 (a) R 1 2 (x)) S 1 7 7 0 -1 4194560 100 0 55 0 1 2 3 4 20 0 1 0 4711 1000 200")
	if err != nil || faults != 55 || start != 4711 {
		t.Errorf("%d, %d, %v", faults, start, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("7 (a) S 1 7 7 0 -1 4194560 100 0 55 0 1 2 3 4 20 0 1 0 4711 1000 200")
	f.Add(mountinfo)
	f.Add("some avg10=0.00 total=42\n")
	fuzzing.Run(f, func(t *testing.T, text string) {
		_, _, _ = parseStat(text)
		_ = parsePressure(text)
		for _, m := range parseMounts(text) {
			for _, dir := range upwards(m, text) {
				if strings.Contains(dir, "..") && !strings.Contains(m.point, "..") {
					t.Errorf("%q leads out", dir)
				}
			}
		}
		sumPages(strings.NewReader(text), 4, map[string]uint64{})
	})
}

// With the real files: samples come, and their counters do not go back.
func TestRealProcess(t *testing.T) {
	p := sleeper.Start(t)
	p.Root = p.PID
	s := New(Options{Interval: 10 * time.Millisecond})
	defer s.Close()
	must.NoError(t, s.Follow(p))
	must.Become(t, "5 samples", func() bool { return len(s.Pressure(p.PID, 0, 1<<63)) >= 5 })
	samples := s.Pressure(p.PID, 0, 1<<63)
	if s.State().State != "running" {
		t.Errorf("it is %+v", s.State())
	}
	for i, one := range samples[1:] {
		if before := samples[i]; one.TS <= before.TS || one.Throttled < before.Throttled ||
			one.MajorFaults < before.MajorFaults ||
			one.MemoryStall < before.MemoryStall {
			t.Errorf("sample %d %+v goes back behind %+v", i+1, one, before)
		}
	}
	middle := s.Pressure(p.PID, samples[2].TS, samples[2].TS+1)
	if len(middle) == 0 || middle[0].TS > samples[2].TS || middle[len(middle)-1].TS <= samples[2].TS {
		t.Errorf("around sample 2 (%d): %+v", samples[2].TS, middle)
	}
	s.Forget(p)
	time.Sleep(30 * time.Millisecond)
	n := len(s.Pressure(p.PID, 0, 1<<63))
	time.Sleep(50 * time.Millisecond)
	if more := len(s.Pressure(p.PID, 0, 1<<63)); more != n {
		t.Errorf("%d samples after the end", more-n)
	}
}

func TestSamplesAreForgotten(t *testing.T) {
	s := New(Options{Interval: time.Hour, Keep: time.Millisecond})
	defer s.Close()
	r := &root{procs: map[proc.ID]uint64{{PID: 1 << 30}: 5}, ended: 2}
	for range 50 {
		s.take(1<<30, r, time.Now())
		time.Sleep(100 * time.Microsecond)
	}
	if len(r.samples) > 40 {
		t.Errorf("%d samples within 1 ms", len(r.samples))
	}
	if last := r.samples[len(r.samples)-1]; last.MajorFaults != 7 {
		t.Errorf("%d major faults, want those of the dead and the last figure of who cannot be read", last.MajorFaults)
	}
}

// TestEndedTargetsAreForgotten: of a daemon that sees programs come and go for months, only those that run and those
// that recordings are still about take memory.
func TestEndedTargetsAreForgotten(t *testing.T) {
	const keep = time.Minute
	s := New(Options{Interval: time.Hour, Keep: keep})
	defer s.Close()
	s.mu.Lock()
	now := clock.Monotonic()
	s.roots[1] = &root{samples: []recording.Pressure{{TS: now - uint64(2*keep)}}}
	s.roots[2] = &root{samples: []recording.Pressure{{TS: now}}}
	s.roots[3] = &root{procs: map[proc.ID]uint64{{PID: 1 << 30}: 5}}
	s.mu.Unlock()
	s.sample(time.Now())
	if s.Pressure(1, 0, 1<<63) != nil || len(s.Pressure(2, 0, 1<<63)) != 1 || len(s.Pressure(3, 0, 1<<63)) == 0 {
		kept := slices.Sorted(maps.Keys(s.roots))
		t.Errorf("kept are %v, want 2, which ended just now, and 3, which runs", kept)
	}
}

// TestFreeCPUs: time that nobody took is free, and that of programs of lower priority; nothing is known of a target
// that goes before others.
func TestFreeCPUs(t *testing.T) {
	stat := func(nice string) string {
		return "7 (a b) S 1 7 7 0 -1 0 0 0 3 0 0 0 0 0 20 " + nice + " 1 0 500 0 0\n"
	}
	host := "cpu  1000 20 300 4000 5 0 7 0 0 0\ncpu0 1000 20 300 4000 5 0 7 0 0 0\n"
	for _, test := range []struct {
		nice, host string
		want       uint64
	}{
		{"0", host, 4025 * 10_000_000},
		{"5", host, 4025 * 10_000_000},
		{"-5", host, 0},
		{"0", "cpu  1 2\n", 0},
		{"0", "intr 5\n", 0},
	} {
		f := tree(t, map[string]string{"/proc/7/stat": stat(test.nice), "/proc/stat": test.host})
		if got := f.freeCPU(7); got != test.want {
			t.Errorf("nice %s, %q: %d ns, want %d", test.nice, test.host, got, test.want)
		}
	}
}
