package nvidia

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/capture/ring"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
	"github.com/inferscope/inferscope/internal/testkit/nvlibs"
)

// caller is a running testdata/caller.c.
type caller struct {
	*child.Child
	pid  uint32
	zero uint64 // address of its zeroes
}

func startCaller(t *testing.T, library string, script ...string) *caller {
	t.Helper()
	cc := needs.Tool(t, "cc")
	binary := filepath.Join(t.TempDir(), "caller")
	must.Run(t, exec.Command(
		cc, "-O1", "-Wall", "-Werror", "-o", binary, "testdata/caller.c", "-ldl",
	))
	c := &caller{Child: child.Start(t, exec.Command(binary, append([]string{library}, script...)...))}
	line := c.Line()
	if _, err := fmt.Sscanf(line, "ready %d %d", &c.pid, &c.zero); err != nil {
		t.Fatalf("the caller did not start: %q", line)
	}
	return c
}

// answer is what the caller did with one function.
type answer struct {
	count  int
	result int32
}

// run runs the script and returns what was done, as the caller says it.
func (c *caller) run(t *testing.T) map[string]answer {
	t.Helper()
	fmt.Fprintln(c.In)
	done := make(map[string]answer)
	for line := c.Line(); line != "done"; line = c.Line() {
		var name string
		var a answer
		if _, err := fmt.Sscan(line, &name, &a.count, &a.result); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		done[name] = a
	}
	return done
}

// observe probes pid's copy of l and returns what the probes see while f runs.
func observe(t *testing.T, l library, pid uint32, f func()) []cuda.Call {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("attaching probes needs root")
	}
	rings, err := ring.New(ring.Options{Bytes: 8 << 20})
	must.NoError(t, err)
	t.Cleanup(func() { rings.Close() })
	attacher, err := uprobe.NewAttacher(uprobe.Options{Maps: rings.Maps()})
	if err != nil {
		t.Skipf("this kernel cannot be used: %v", err)
	}
	t.Cleanup(func() { attacher.Close() })
	selection, points := l.plan(t, cuda.Options{})
	var functions []recording.Function
	var sites []uprobe.Site
	for i := range selection.Points {
		p := &selection.Points[i]
		sites = append(sites, uprobe.Site{
			Offset: l.code[p.Addr].Offset + points[p.Addr].Offset,
			Cookie: p.Row.Cookie(uint16(i)),
			Timed:  p.Row.Timed,
		})
		functions = append(functions, p.Function())
	}
	file, err := os.Open(l.path)
	must.NoError(t, err)
	defer file.Close()
	attachment, err := attacher.Attach(file, pid, sites)
	must.NoError(t, err)
	if failed := attachment.Failed(); len(failed) > 0 {
		t.Errorf("%d of %d sites could not be probed: %v", len(failed), len(sites), failed[0])
	}
	f()
	if err := attachment.Close(); err != nil {
		t.Error(err)
	}
	var calls []cuda.Call
	decoder := cuda.NewDecoder(functions)
	rings.Drain(func(batch []event.Event) {
		for i := range batch {
			calls = append(calls, decoder.Decode(&batch[i]))
		}
	})
	if lost, err := rings.Losses(); err != nil || len(lost) > 0 {
		t.Errorf("lost %v, %v", lost, err)
	}
	return calls
}

// TestCounts: what the probes see on real drivers is exactly what was called, with
// its arguments and results. Without a GPU, cuInit answers 100 and the rest 3.
func TestCounts(t *testing.T) {
	for _, part := range nvlibs.Drivers() {
		t.Run(string(part), func(t *testing.T) {
			l := open(t, part)
			script := []string{
				"cuInit=2",
				"cuDeviceGetCount=3:@out",
				"cuLaunchKernel=5000:@zero,7,6,5,128,2,1,4096,2",
				"cuLaunchKernel_ptsz=11:@zero,7,6,5,128,2,1,4096,0",
				"cuMemcpyHtoDAsync_v2=500:0x7f0000000000,0x1000,65536,2",
				"cuMemcpyDtoH_v2=17:0x1000,0x7f0000000000,12",
				"cuMemcpyDtoH=13:0x1000,0x7f0000000000,12",
				"cuMemsetD2D32Async=19:0x7f0000000000,64,0,16,4,2",
				"cuMemAlloc_v2=23:@out,1048576",
				"cuStreamSynchronize=29:2",
				"cuEventRecord=31:@zero,2",
				"cuCtxGetCurrent=1000:@out", // hot: left out
			}
			if part != nvlibs.Driver470 { // CUDA 11.8 brought it
				script = append(script, "cuLaunchKernelEx=7:@launch,0")
			}
			c := startCaller(t, l.path, script...)
			var done map[string]answer
			calls := observe(t, l, c.pid, func() { done = c.run(t) })
			if done["cuInit"].result != 100 {
				t.Skipf("cuInit answers %d: there is a GPU here, and the script's arguments are none of its",
					done["cuInit"].result)
			}
			delete(done, "cuCtxGetCurrent")
			demandExact(t, calls, done)
			for _, call := range calls {
				if diff := cmp.Diff(expected(call.Name, c.zero), arguments(call)); diff != "" {
					t.Fatalf("%s (-want +got):\n%s", call.Name, diff)
				}
			}
		})
	}
}

// demandExact demands that probes saw each call that the caller made, with its result, and no other.
func demandExact(t *testing.T, calls []cuda.Call, done map[string]answer) {
	t.Helper()
	seen := make(map[string]int)
	for _, call := range calls {
		seen[call.Name]++
		if want := done[call.Name].result; call.Timed && call.Result != want {
			t.Fatalf("%s returned %d, seen as %d", call.Name, want, call.Result)
		}
	}
	for name, a := range done {
		if seen[name] != a.count {
			t.Errorf("%s was called %d times and seen %d times", name, a.count, seen[name])
		}
		delete(seen, name)
	}
	if len(seen) > 0 {
		t.Errorf("seen but never called: %v", seen)
	}
	t.Logf("%d calls of %d functions were seen", len(calls), len(done))
}

// arguments leaves of a call what the script determines.
func arguments(c cuda.Call) cuda.Call {
	c.Func, c.Result, c.Timed = nil, 0, false
	return c
}

// expected is what the script of TestCounts gives each function.
func expected(name string, zero uint64) cuda.Call {
	const device, host = 0x7f00_0000_0000, 0x1000
	switch name {
	case "cuLaunchKernel", "cuLaunchKernel_ptsz":
		return cuda.Call{
			Handle:    zero,
			Grid:      [3]uint32{7, 6, 5},
			Block:     [3]uint32{128, 2, 1},
			Shared:    4096,
			Stream:    cuda.PerThreadStream,
			HasStream: true,
		}
	case "cuLaunchKernelEx":
		return cuda.Call{
			Grid:      [3]uint32{3, 2, 1},
			Block:     [3]uint32{64, 2, 1},
			Shared:    256,
			Stream:    cuda.LegacyStream,
			HasStream: true,
		}
	case "cuMemcpyHtoDAsync_v2":
		return cuda.Call{
			Direction: cuda.H2D,
			Dst:       device,
			Src:       host,
			Bytes:     65536,
			HasBytes:  true,
			Stream:    cuda.PerThreadStream,
			HasStream: true,
		}
	case "cuMemcpyDtoH_v2":
		return cuda.Call{Direction: cuda.D2H, Dst: host, Src: device, Bytes: 12, HasBytes: true, HasStream: true}
	case "cuMemcpyDtoH":
		return cuda.Call{Direction: cuda.D2H, Bytes: 12, HasBytes: true, HasStream: true}
	case "cuMemsetD2D32Async":
		return cuda.Call{Dst: device, Bytes: 256, HasBytes: true, Stream: cuda.PerThreadStream, HasStream: true}
	case "cuMemAlloc_v2":
		return cuda.Call{Bytes: 1 << 20, HasBytes: true} // it fails: no pointer
	case "cuStreamSynchronize":
		return cuda.Call{Stream: cuda.PerThreadStream, HasStream: true}
	case "cuEventRecord":
		return cuda.Call{Handle: zero, Stream: cuda.PerThreadStream, HasStream: true}
	}
	return cuda.Call{}
}
