package pressure

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// As systemd sets it up where there are cgroups of version 2 only, with cpu.stat as Linux 6.18 writes it.
func TestUnifiedOnly(t *testing.T) {
	const stat = "usage_usec 812345\nuser_usec 700000\nsystem_usec 112345\nnice_usec 0\n" +
		"core_sched.force_idle_usec 0\n" +
		"nr_periods 40\nnr_throttled %d\nthrottled_usec %d\nnr_bursts 0\nburst_usec 0\n"
	f := tree(t, map[string]string{
		"/proc/self/mountinfo": "30 25 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 " +
			"cgroup2 rw,nsdelegate,memory_recursiveprot\n",
		"/proc/7/cgroup": "0::/kubepods.slice/pod1/cri-2\n",
		"/sys/fs/cgroup/kubepods.slice/pod1/cri-2/cpu.stat": fmt.Sprintf(stat, 11, 250_000),
		"/sys/fs/cgroup/kubepods.slice/pod1/cpu.stat":       fmt.Sprintf(stat, 2, 50_000),
		"/sys/fs/cgroup/kubepods.slice/cpu.stat":            fmt.Sprintf(stat, 0, 0),
		// the root has no quota
		"/sys/fs/cgroup/cpu.stat":                            "usage_usec 1\nuser_usec 1\nsystem_usec 0\n",
		"/sys/fs/cgroup/kubepods.slice/pod1/cri-2/cpu.max":   "50000 100000\n",
		"/sys/fs/cgroup/kubepods.slice/pod1/cri-2/cgroup.id": "",
	})
	g := f.cgroups(7)
	if len(g.unified) != 4 || len(g.cpu) != 0 {
		t.Fatalf("groups %+v", g)
	}
	if ns, periods := f.throttled(g); ns != 300_000_000 || periods != 13 {
		t.Errorf("throttled for %d ns in %d periods, want 300 ms in 13", ns, periods)
	}
}

// spin is set in the environment of the child that TestQuotaOfVersion2 throttles.
const spin = "INFERSCOPE_TEST_SPIN"

func TestSpin(t *testing.T) {
	if os.Getenv(spin) == "" {
		t.Skip("only for another test")
	}
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
	}
}

// quota makes a cgroup of version 2 with a tenth of a CPU.
func quota(t *testing.T) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	must.NoError(t, err)
	root := parseMounts(string(mounts))["cgroup2"].point
	controllers, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil || !slices.Contains(strings.Fields(string(controllers)), "cpu") {
		t.Skip("needs a hierarchy of version 2 with the cpu controller (this one has: ", string(controllers), ")")
	}
	dir := filepath.Join(root, "inferscope-pressure-"+strconv.Itoa(os.Getpid()))
	_ = os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+cpu"), 0) // it may be on already
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skip("needs to make a cgroup: ", err)
	}
	t.Cleanup(func() { _ = os.Remove(dir) })
	if err := os.WriteFile(filepath.Join(dir, "cpu.max"), []byte("5000 50000"), 0); err != nil {
		t.Skip("needs to set a quota: ", err)
	}
	return dir
}

// A quota of version 2, and the real kernel: what is read as throttled is the time for which
// a program that always wants to run did not.
func TestQuotaOfVersion2(t *testing.T) {
	dir := quota(t)
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestSpin$")
	cmd.Env = append(os.Environ(), spin+"=1", "GOMAXPROCS=1")
	pid := child.Start(t, cmd).PID
	must.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0))
	read := func() (ns, periods uint64) { return files{}.throttled(files{}.cgroups(uint32(pid))) }
	time.Sleep(500 * time.Millisecond)
	before, periodsBefore := read()
	start := time.Now()
	time.Sleep(2 * time.Second)
	after, periods := read()
	took := uint64(time.Since(start))
	t.Logf("throttled for %d ns in %d periods of %d ns", after-before, periods-periodsBefore, took)
	if n := after - before; n < took/2 || n > took {
		t.Errorf("throttled for %d of %d ns, want about nine tenths", n, took)
	}
	if n := periods - periodsBefore; n < 10 {
		t.Errorf("%d periods in 2 s, want about 40 of 50 ms", n)
	}
}
