package nvidia

import (
	"os/exec"
	"regexp"
	"testing"

	"github.com/inferscope/inferscope/internal/cuda"
)

// hipRuntime returns the installed libamdhip64 that the dynamic linker finds.
func hipRuntime(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("/sbin/ldconfig", "-p").Output()
	found := regexp.MustCompile(`(?m)=> (\S*/libamdhip64\.so\S*)$`).FindSubmatch(out)
	if err != nil || found == nil {
		t.Skipf("AMD's HIP runtime is not installed (apt-get install libamdhip64-5; ldconfig: %v)", err)
	}
	return string(found[1])
}

// TestHIPCounts: what the probes see of the real HIP runtime is exactly what was called, with its results. Without a
// GPU, nearly all functions answer hipErrorInvalidDevice.
func TestHIPCounts(t *testing.T) {
	l := openFile(t, hipRuntime(t))
	if l.identity.Kind != cuda.HIP {
		t.Fatalf("it is taken for %+v", l.identity)
	}
	all, points := l.plan(t, cuda.Options{Hot: true})
	cheap := 0
	for _, p := range all.Points {
		if points[p.Addr].Cheap {
			cheap++
		}
	}
	t.Logf("%d of %d exports are in the table, %d addresses, %d cheap",
		all.Found, len(l.exports), len(all.Points), cheap)
	if all.Found < 150 || cheap*100 < len(all.Points)*99 {
		t.Errorf("%d functions found, %d of %d points are cheap", all.Found, cheap, len(all.Points))
	}
	c := startCaller(t, l.path, "hipInit=2:0", "hipGetDeviceCount=3:@out", "hipMalloc=5:@out,1048576", "hipFree=4:0",
		"hipMemcpy=7:0,0,0,1", "hipMemcpyAsync=500:0,0,0,1,0", "hipMemsetAsync=11:0,0,0,0", "hipStreamSynchronize=13:0",
		"hipStreamSynchronize_spt=3:0", "hipDeviceSynchronize=17",
		"hipModuleLaunchKernel=19:@zero,7,6,5,128,2,1,4096,0",
		"hipLaunchKernel=5000:@zero,1,1,1,1", "hipHostMalloc=29:@out,4096,0", "hipEventRecord=31:@zero,0",
		"hipGetDevice=1000:@out") // hot: left out
	var done map[string]answer
	calls := observe(t, l, c.pid, func() { done = c.run(t) })
	if done["hipDeviceSynchronize"].result == 0 {
		t.Skip("there is an AMD GPU here, and the script's arguments are none of its")
	}
	delete(done, "hipGetDevice")
	demandExact(t, calls, done)
	for _, call := range calls {
		if call.Library != cuda.Runtime || call.HasBytes {
			t.Fatalf("%s is seen as %+v; its arguments are not read", call.Name, call)
		}
	}
}
