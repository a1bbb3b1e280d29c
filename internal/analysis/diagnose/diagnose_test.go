package diagnose_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/gap"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// loop lets the GPU work for the first part of each 100 ms, and c be the cause of the rest.
func loop(s *scene, busy uint64, c cause.ID, change ...func(*gap.Step)) {
	for i := range uint64(10) {
		s.kernel(i*100, i*100+busy)
		s.step(i*100+busy, i*100+100, c, change...)
	}
}

// TestVerdicts holds the class of the bottleneck and the findings where a GPU waits.
func TestVerdicts(t *testing.T) {
	judgeAll(t, []judged{
		{"busy", func(s *scene) { loop(s, 98, cause.HostSync) }, diagnose.Healthy, ""},
		{"a little idle", func(s *scene) { loop(s, 95, cause.HostSync) }, diagnose.Healthy, "host-sync"},
		{"a little more", func(s *scene) { loop(s, 89, cause.HostSync) }, diagnose.Balanced, "host-sync"},
		{"python", func(s *scene) { loop(s, 50, cause.PythonWork) }, diagnose.CPUBound, "python-work"},
		{"between", func(s *scene) { loop(s, 80, cause.PythonWork) }, diagnose.Balanced, "python-work"},
		{"idle server", func(s *scene) { loop(s, 20, cause.NoWork) }, diagnose.Idle, "no-work"},
		{"server with some load", func(s *scene) { loop(s, 55, cause.NoWork) }, diagnose.Healthy, "no-work"},
		{"not known", func(s *scene) { loop(s, 50, cause.Unknown) }, diagnose.NotEnough, ""},
		{"not known, and of no importance", func(s *scene) { loop(s, 95, cause.Unknown) }, diagnose.Healthy, ""},
		{"guessed", func(s *scene) {
			loop(s, 50, cause.PythonWork, func(x *gap.Step) { x.Sure = gap.Guessed })
		}, diagnose.NotEnough, "python-work"},
	})
}

// TestCopyEngines: the finding says how many copies carried out collectives, and how long they took.
func TestCopyEngines(t *testing.T) {
	s := newScene(t)
	for i := range uint64(10) {
		s.kernel(i*100, i*100+50)
		s.Do("ncclAllGather", int64((i*100+50)*ms-20*us), 15*us, 1<<18, 0xc0, 0, 7<<56)
		s.copy(d2d, i*100+50, i*100+100)
	}
	d := s.diagnose()
	if len(d.Findings) != 1 || !slices.ContainsFunc(d.Findings[0].Evidence, func(e diagnose.Evidence) bool {
		return e.Text == "Copy engines: 10 copies for NCCL, 500 ms in all."
	}) {
		t.Errorf("%+v", d.Findings)
	}
}

// TestVerdictsOfCopies is TestVerdicts of programs that copy.
func TestVerdictsOfCopies(t *testing.T) {
	judgeAll(t, []judged{
		{"sync copies", func(s *scene) {
			for i := range uint64(10) {
				s.kernel(i*100, i*100+20)
				s.copy(h2dPageable, i*100+30, i*100+80)
				s.step(i*100+20, i*100+30, cause.SyncCopy)
				s.step(i*100+80, i*100+100, cause.SyncCopy)
			}
		}, diagnose.CopyBound, "sync-copy"},
		{"copies that could overlap", func(s *scene) {
			for i := range uint64(10) {
				s.kernel(i*100, i*100+70)
				s.copy(h2dPinned, i*100+70, i*100+100)
			}
		}, diagnose.GPUBound, "copy-not-overlapped"},
		{"copies that nothing could hide", func(s *scene) {
			for i := range uint64(10) {
				s.kernel(i*100, i*100+30)
				s.copy(h2dPinned, i*100+10, i*100+100)
			}
		}, diagnose.CopyBound, "copy-bound"},
		{"copies of collectives", func(s *scene) {
			for i := range uint64(10) {
				s.kernel(i*100, i*100+50)
				s.Do("ncclAllGather", int64((i*100+50)*ms-20*us), 15*us, 1<<18, 0xc0, 0, 7<<56)
				s.copy(d2d, i*100+50, i*100+100)
			}
		}, diagnose.CommunicationBound, "exposed-communication"},
		{"waits of copy engines for other ranks", func(s *scene) {
			for i := range uint64(10) {
				s.kernel(i*100, i*100+50)
				s.Do("ncclAllGather", int64((i*100+50)*ms-20*us), 49*ms, 1<<18, 0xc0, 0, 7<<56)
				s.copy(d2d, i*100+50, i*100+51)
				s.copy(d2d, i*100+98, i*100+100)
			}
		}, diagnose.CommunicationBound, "exposed-communication"},
		{"copies beside collectives", func(s *scene) {
			for i := range uint64(10) {
				s.kernel(i*100, i*100+50)
				s.Do("ncclAllGather", int64((i*100+50)*ms-20*us), 5*us, 1<<18, 0xc0, 0, 7<<56)
				s.copy(d2d, i*100+50, i*100+100)
			}
		}, diagnose.Healthy, ""},
		{"hidden copies", func(s *scene) {
			for i := range uint64(10) {
				s.kernel(i*100, i*100+100)
				s.copy(h2dPinned, i*100+10, i*100+50)
				s.copy(d2hPinned, i*100+50, i*100+90)
			}
		}, diagnose.Healthy, ""},
	})
}

// TestVerdictsOfKernels is TestVerdicts of programs whose kernels are poor.
func TestVerdictsOfKernels(t *testing.T) {
	judgeAll(t, []judged{
		{"small kernels", func(s *scene) {
			for i := range uint64(10) {
				s.work(event.Kernel, 1, i*100, i*100+100, grid(40), 256)
			}
		}, diagnose.GPUBound, "small-batch"},
		{"some small kernels", func(s *scene) {
			for i := range uint64(10) {
				s.work(event.Kernel, 1, i*100, i*100+45, grid(40), 256)
				s.kernel(i*100+45, i*100+100)
			}
		}, diagnose.Healthy, ""},
		{"half filled", func(s *scene) {
			for i := range uint64(10) {
				s.work(event.Kernel, 1, i*100, i*100+100, grid(50), 256)
			}
		}, diagnose.Healthy, ""},
		{"small kernels beside a large one", func(s *scene) {
			for i := range uint64(10) {
				s.work(event.Kernel, 1, i*100, i*100+100, grid(10), 256)
				s.kernel(i*100, i*100+100)
			}
		}, diagnose.Healthy, ""},
		{"vectors", func(s *scene) {
			for i := range uint64(10) {
				s.work(event.Kernel, 2, i*100, i*100+100, grid(4000), 256)
			}
		}, diagnose.GPUBound, "bandwidth-bound"},
		{"conversions", func(s *scene) {
			s.Meta.GPU.Kernels = append(s.Meta.GPU.Kernels, recording.Kernel{
				Name: "void at::native::vectorized_elementwise_kernel<4, at::native::float16_copy_kernel_cuda" +
					"(at::TensorIteratorBase&)::{lambda(float)#1}, std::array<char*, 2ul> >(int)",
			})
			for i := range uint64(10) {
				s.work(event.Kernel, 3, i*100, i*100+60, grid(4000), 256)
				s.kernel(i*100+60, i*100+95)
			}
		}, diagnose.GPUBound, "bandwidth-bound"},
		{"some conversions", func(s *scene) {
			name := "at::native::direct_copy_kernel_cuda"
			s.Meta.GPU.Kernels = append(s.Meta.GPU.Kernels, recording.Kernel{Name: name})
			for i := range uint64(10) {
				s.work(event.Kernel, 3, i*100, i*100+40, grid(4000), 256)
				s.kernel(i*100+40, i*100+95)
			}
		}, diagnose.Healthy, ""},
		{"small kernels of a program that waits come after why it waits", func(s *scene) {
			for i := range uint64(10) {
				s.work(event.Kernel, 1, i*100, i*100+60, grid(40), 256)
				s.step(i*100+60, i*100+100, cause.PythonWork)
			}
		}, diagnose.CPUBound, "python-work small-batch"},
	})
}

// TestConversions: who converts at each step is told to keep the result.
func TestConversions(t *testing.T) {
	for name, want := range map[string]string{
		"at::native::bfloat16_copy_kernel_cuda": "autocast", "gemvx::kernel": "Decode more sequences",
	} {
		s := newScene(t)
		s.Meta.GPU.Kernels[0].Name = name
		for i := range uint64(10) {
			s.kernel(i*100, i*100+95)
		}
		d := s.diagnose()
		if len(d.Findings) != 1 || !strings.Contains(d.Findings[0].Changes[0].Text, want) {
			t.Errorf("%s: %+v", name, d.Findings)
		}
	}
}

// TestSomeConversions: kernels that convert are most of those that wait for memory, and not most of the GPU's time.
func TestSomeConversions(t *testing.T) {
	for _, converting := range []uint64{26, 51} {
		s := newScene(t)
		s.Meta.GPU.Kernels = append(s.Meta.GPU.Kernels, recording.Kernel{Name: "at::native::direct_copy_kernel_cuda"})
		for i := range uint64(10) {
			s.work(event.Kernel, 3, i*100, i*100+converting, grid(4000), 256)
			s.work(event.Kernel, 2, i*100+converting, i*100+converting+25, grid(4000), 256)
			s.kernel(i*100+converting+25, i*100+100)
		}
		d := s.diagnose()
		if causes(d) != "bandwidth-bound" || strings.Contains(d.Findings[0].Title, "convert") != (converting > 50) {
			t.Errorf("%d%% converts: %s, %q", converting, causes(d), d.Headline)
		}
	}
}

// TestBreakdown holds the order in which things at one time count, to the ns.
func TestBreakdown(t *testing.T) {
	s := newScene(t)
	s.kernel(0, 100)
	s.copy(h2dPinned, 50, 200)  // 100 beside the kernel
	s.copy(d2hPinned, 150, 300) // 50 beside the other
	s.work(event.Set, 3, 250, 400)
	s.step(400, 700, cause.Preprocessing)
	s.step(700, 1000, cause.Lock)
	d := s.diagnose()
	want := map[string]uint64{"compute": 100, "h2d": 100, "d2h": 100, "set": 100, "preprocessing": 300, "lock": 300}
	for key, n := range want {
		if got := partOf(d.Breakdown, key); got != n*ms {
			t.Errorf("%s is %d ns, want %d ms", key, got, n)
		}
	}
	threadParts := map[string]uint64{
		"cpu":           300,
		"h2d":           100,
		"compute":       100,
		"d2h":           100,
		"device-memory": 100,
		"waiting":       300,
		"idle":          0,
	}
	for key, n := range threadParts {
		if got := viewOf(d.Breakdown, key); got != n*ms {
			t.Errorf("people's %s is %d ns, want %d ms", key, got, n)
		}
	}
	if len(d.Devices) != 1 || d.Devices[0].Name != "NVIDIA Test" || d.Devices[0].Breakdown.Time != 1000*ms {
		t.Errorf("devices: %+v", d.Devices)
	}
}

// TestCosts holds that the part of copies in which they run is theirs, and that idle time is added.
func TestCosts(t *testing.T) {
	s := newScene(t)
	for i := range uint64(10) {
		s.kernel(i*100, i*100+20)
		s.copy(h2dPageable, i*100+10, i*100+60) // 10 of it hidden
		s.step(i*100+60, i*100+70, cause.SyncCopy)
		s.step(i*100+70, i*100+100, cause.GC)
	}
	d := s.diagnose()
	if causes(d) != "sync-copy gc" || d.Findings[0].Cost != 500*ms || d.Findings[1].Cost != 300*ms {
		t.Fatalf("%q: %+v", causes(d), d.Findings)
	}
	if got := text(&d.Findings[0]); !strings.Contains(
		got,
		"H2D, pageable to device, synchronous: 10 copies of 10.5 MB in all, 500 ms, of which no kernel ran for 400 ms",
	) {
		t.Errorf("evidence: %s", got)
	}
}

// TestPlaces holds that the user's function is named with the line of most time, whatever called what from there.
func TestPlaces(t *testing.T) {
	s := newScene(t)
	inLibrary := recordtest.Python("encode", "/app/site-packages/tokenizers/__init__.py", 30)
	first := s.Stack(recordtest.Native("tokenizers::encode", "tokenizers.abi3.so"), inLibrary,
		recordtest.Python("prepare", "/srv/app/infer.py", 12),
		recordtest.Python("main", "/srv/app/infer.py", 90))
	second := s.Stack(recordtest.Python("prepare", "/srv/app/infer.py", 14),
		recordtest.Python("main", "/srv/app/infer.py", 90))
	third := s.Stack(recordtest.Python("prepare", "/srv/app/infer.py", 14),
		recordtest.Python("again", "/srv/app/infer.py", 80))
	other := s.Stack(recordtest.Python("finish", "/srv/app/infer.py", 40),
		recordtest.Python("main", "/srv/app/infer.py", 91))
	for i := range uint64(10) {
		s.kernel(i*100, i*100+40)
		at := func(stack uint64) func(*gap.Step) { return func(x *gap.Step) { x.Stack = stack } }
		s.step(i*100+40, i*100+57, cause.Preprocessing, at(first))
		s.step(i*100+57, i*100+69, cause.Preprocessing, at(second))
		s.step(i*100+69, i*100+80, cause.Preprocessing, at(third))
		s.step(i*100+80, i*100+100, cause.Preprocessing, at(other))
	}
	d := s.diagnose()
	f := &d.Findings[0]
	if f.Place != "prepare (infer.py:14)" || f.Cost != 600*ms ||
		f.Title != "Preprocessing in prepare (infer.py:14) holds up the GPU" {
		t.Errorf("%q at %q costs %d", f.Title, f.Place, f.Cost)
	}
	if f.PID != recordtest.PID || f.TID != recordtest.PID || f.Thread != "python" {
		t.Errorf("thread %d %d %q", f.PID, f.TID, f.Thread)
	}
	if got := text(f); !strings.Contains(got, "66.7% of it in prepare (infer.py:14)") ||
		!strings.Contains(got, "33.3% of it in finish (infer.py:40)") {
		t.Errorf("evidence: %s", got)
	}
	if !strings.HasPrefix(f.Changes[0].Text, "In prepare (infer.py:14): ") {
		t.Errorf("change: %q", f.Changes[0].Text)
	}
	if !strings.Contains(d.Headline, "60.0% of the time (600 ms)") {
		t.Errorf("headline: %q", d.Headline)
	}
}

// TestTokenization holds that the user's function is named where a package's runs, and that the package says what it
// does.
func TestTokenization(t *testing.T) {
	s := newScene(t)
	stack := s.Stack(
		recordtest.Native("core::str::find", "lib.abi3.so"),
		recordtest.Python("_load", "_bootstrap.py", 7),
		recordtest.Python("encode", "/app/site-packages/tokenizers/__init__.py", 30),
		recordtest.Python("prepare", "/srv/app/infer.py", 12),
	)
	loop(s, 40, cause.Preprocessing, func(x *gap.Step) { x.Stack = stack })
	if f := s.diagnose().Findings[0]; f.Title != "Tokenization in prepare (infer.py:12) holds up the GPU" {
		t.Errorf("%q", f.Title)
	}
}

// TestWorker holds that both sides of a wait are named, and what the other one did.
func TestWorker(t *testing.T) {
	s := newScene(t)
	s.Process(recording.Process{PID: 77, Parent: recordtest.PID, Comm: "loader"}).Thread(77, 77, "loader")
	stack := s.Stack(recordtest.Python("load", "/srv/app/data.py", 8))
	loop(s, 40, cause.Worker, func(x *gap.Step) {
		x.Inner, x.PID, x.TID, x.Stack = cause.Preprocessing, 77, 77, stack
		x.WaiterPID, x.WaiterTID = recordtest.PID, recordtest.PID
	})
	f := s.diagnose().Findings[0]
	if want := "The GPU waits for loader (77), which is preprocessing in load (data.py:8)"; f.Title != want {
		t.Errorf("title %q, want %q", f.Title, want)
	}
	if strings.HasPrefix(f.Changes[0].Text, "In ") {
		t.Errorf("change: %q", f.Changes[0].Text)
	}
	if got := text(&f); !strings.Contains(got, "python (1234), which launches the work, waited for loader (77)") ||
		!strings.Contains(got, "preprocessing 100.0%") {
		t.Errorf("evidence: %s", got)
	}
}

// TestNotEnough holds which losses stand in the way of a verdict, and which do not.
func TestNotEnough(t *testing.T) {
	for _, c := range []struct {
		name   string
		make   func(s *scene)
		reason string // "": there is a verdict
	}{
		{"nothing lost", func(s *scene) { loop(s, 50, cause.PythonWork) }, ""},
		{"few events lost", func(s *scene) {
			loop(s, 50, cause.PythonWork)
			s.Loss(loss.Loss{Reason: loss.RingFull, Count: 5})
		}, ""},
		{"most events lost", func(s *scene) {
			loop(s, 50, cause.PythonWork)
			s.Loss(loss.Loss{Reason: loss.RingFull, Count: 1000})
		}, "of the events were lost"},
		{"most events lost of a busy GPU", func(s *scene) {
			loop(s, 98, cause.PythonWork)
			s.Loss(loss.Loss{Reason: loss.RingFull, Count: 1000})
		}, ""},
		{"a short window", func(s *scene) {
			loop(s, 50, cause.PythonWork)
			s.Meta.GPU.Windows[0].To = start + 20*ms
		}, "for 20.0 ms only"},
		{"records dropped all the time", func(s *scene) {
			loop(s, 50, cause.PythonWork)
			s.Meta.GPU.Windows[0].Dropped = 7
		}, "records were dropped in each window"},
		{"another process on the GPU", func(s *scene) {
			loop(s, 50, cause.PythonWork)
			s.Process(recording.Process{PID: 77, Comm: "other"})
			s.As(77, 77).Launch("cuLaunchKernel", int64(10*ms), 1, 0, [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, 0)
		}, "process 77 (other) uses the GPU too"},
		{"no agent", func(s *scene) {
			s.Launch("cuLaunchKernel", int64(10*ms), 1, 0, [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, 0)
			s.Meta.GPU = nil
			s.alone = true
			s.step(0, 1000, cause.PythonWork)
		}, "what that did was not recorded"},
		{"refused", func(s *scene) {
			s.Launch("cuLaunchKernel", int64(10*ms), 1, 0, [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, 0)
			s.Meta.GPU.Windows = nil
			s.Meta.GPU.Agents[0] = recording.Agent{PID: recordtest.PID, State: "refused", Detail: "another profiler holds CUPTI"}
		}, "another profiler holds CUPTI"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			c.make(s)
			d := s.diagnose()
			got := strings.Join(d.Reasons, "; ")
			if (c.reason == "") != (got == "") || !strings.Contains(got, c.reason) {
				t.Errorf("%s because of %q, want %q", d.Verdict, got, c.reason)
			}
		})
	}
}

// TestWithoutGPU holds that a program that uses no GPU is answered for its main thread.
func TestWithoutGPU(t *testing.T) {
	s := newScene(t)
	s.Meta.GPU, s.alone = nil, true
	stack := s.Stack(recordtest.Python("crunch", "/srv/app/batch.py", 3))
	s.step(0, 700, cause.PythonWork, func(x *gap.Step) { x.Stack = stack })
	s.step(700, 1000, cause.Disk)
	d := s.diagnose()
	if d.Verdict != diagnose.CPUOnly || causes(d) != "python-work disk" || d.Breakdown.Time != 1000*ms ||
		viewOf(d.Breakdown, "cpu") != 700*ms {
		t.Errorf("%s %q %+v", d.Verdict, causes(d), d.Breakdown)
	}
	if want := "No GPU is used. Python code in crunch (batch.py:3) takes the main thread's time: 70.0% of the time (700 ms)."; d.Headline != want {
		t.Errorf("headline %q, want %q", d.Headline, want)
	}
}

// TestSleepingServer holds that a server that has loaded CUDA and did nothing is not said to use no GPU, nor to work less.
func TestSleepingServer(t *testing.T) {
	s := newScene(t)
	s.Meta.GPU, s.alone = nil, true
	s.Meta.Libraries = []recording.Library{{Path: "/usr/lib/libcuda.so.1", Kind: "driver"}}
	s.step(0, 1000, cause.NoWork)
	d := s.diagnose()
	if want := "No GPU was used in this time. Nobody asks for anything: 100.0% of the time (1.00 s)."; d.Headline != want {
		t.Errorf("headline %q, want %q", d.Headline, want)
	}
	if list := d.Findings[0].Changes; !strings.HasPrefix(list[0].Text, "Nothing is wrong") ||
		!strings.HasPrefix(list[1].Text, "Run fewer replicas") {
		t.Errorf("%+v", list)
	}
}

// TestLibraryOfNoProgram holds that threads of a library are no remedy where the program's own code computes.
func TestLibraryOfNoProgram(t *testing.T) {
	for file, want := range map[string]bool{"server": false, "libopenblas.so.0": true} {
		s := newScene(t)
		s.Meta.GPU, s.alone = nil, true
		stack := s.Stack(recordtest.Native("main.work", file))
		s.step(0, 1000, cause.NativeWork, func(x *gap.Step) { x.Stack = stack })
		list := s.diagnose().Findings[0].Changes
		got := slices.ContainsFunc(list, func(c diagnose.Change) bool { return strings.Contains(c.Text, "Give the library") })
		if got != want || len(list) < 2 {
			t.Errorf("%s: %+v", file, list)
		}
	}
}

// TestNobodyWaitsForWhoLacksACPU holds that threads that lack a CPU in turn are not said to wait for each other.
func TestNobodyWaitsForWhoLacksACPU(t *testing.T) {
	s := newScene(t)
	n := 0
	loop(s, 30, cause.NoCPU, func(x *gap.Step) {
		if n++; n%4 == 0 {
			x.WaiterPID, x.WaiterTID = recordtest.PID, recordtest.PID+1
		}
	})
	d := s.diagnose()
	i := slices.IndexFunc(d.Findings, func(f diagnose.Finding) bool { return f.Cause == "no-cpu" })
	if i < 0 {
		t.Fatalf("found %q", causes(d))
	}
	if got := text(&d.Findings[i]); strings.Contains(got, "waited for") {
		t.Errorf("%s", got)
	}
}

// TestWaitIsForAnotherThread: whom the main thread waited for is another thread, or nobody knows.
func TestWaitIsForAnotherThread(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*gap.Step)
		want   string
	}{
		{"unseen", func(*gap.Step) {}, "The main thread waits for another thread"},
		{"seen", func(x *gap.Step) {
			x.WaiterPID, x.WaiterTID = x.PID, x.TID
			x.TID, x.Inner = recordtest.PID+1, cause.NativeWork
		}, fmt.Sprintf("The main thread waits for thread %d, which is", recordtest.PID+1)},
	} {
		s := newScene(t)
		s.Meta.GPU, s.alone = nil, true
		s.step(0, 900, cause.Worker, c.change)
		s.step(900, 1000, cause.Disk)
		if got := s.diagnose().Findings[0].Title; !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestSilentGPU holds that a GPU that was watched and did nothing is idle, for what its program did.
func TestSilentGPU(t *testing.T) {
	for c, want := range map[cause.ID]diagnose.Verdict{cause.NoWork: diagnose.Idle, cause.Disk: diagnose.CPUBound} {
		s := newScene(t)
		s.alone = true
		s.step(0, 1000, c)
		if d := s.diagnose(); d.Verdict != want || d.Breakdown.Time != 1000*ms {
			t.Errorf("%s, want %s", d.Verdict, want)
		}
	}
}

// TestRemoteMemory holds that memory far away is a hint without a cost, and none where the GPU is busy.
func TestRemoteMemory(t *testing.T) {
	for busy, want := range map[uint64]string{50: "python-work remote-memory", 98: ""} {
		s := newScene(t)
		loop(s, busy, cause.PythonWork)
		s.Meta.Host.NodeOf = []int{0, 1}
		s.Meta.Pressure = []recording.Pressure{
			{TS: start, GPUNode: 1, RemotePages: map[string]uint64{"0": 900, "1": 100}},
		}
		s.Off(recordtest.Off{TID: recordtest.PID, TS: start + 500*ms, Dur: ms})
		d := s.diagnose()
		if causes(d) != want {
			t.Fatalf("%q, want %q", causes(d), want)
		}
		if n := len(d.Findings); n == 2 && (d.Findings[1].Cost != 0 || d.Findings[1].Confidence > 0.3) {
			t.Errorf("%+v", d.Findings[1])
		}
	}
}

// TestCallers holds that the place of a call is found by the samples inside of it, and that of copies as well.
func TestCallers(t *testing.T) {
	s := newScene(t)
	inCall := s.Stack(recordtest.Native("cuStreamSynchronize", "libcuda.so.1"),
		recordtest.Native("cudaStreamSynchronize", "libcudart.so.12"),
		recordtest.Python("item", "/usr/lib/python3/dist-packages/torch/tensor.py", 5),
		recordtest.Python("step", "/srv/app/infer.py", 33))
	s.Samples(recordtest.PID, start, start+1000*ms, 20, inCall, event.Whole)
	for _, cut := range [][]recording.Frame{
		{recordtest.Native("cuStreamSynchronize", "libcuda.so.1")},
		{recordtest.Kernel("find_uprobe"), recordtest.Native("cuStreamSynchronize", "libcuda.so.1")},
	} { // of which nobody knows who called
		s.Samples(recordtest.PID, start, start+1000*ms, 30, s.Stack(cut...), event.Whole)
	}
	s.Do("cuStreamSynchronize", 1000, 10*us, 4)
	fn := timeline.None
	loop(s, 50, cause.HostSync, func(x *gap.Step) { x.Op = fn })
	rec := s.Recording()
	tl := timeline.Build(rec)
	for i := range tl.Ops {
		if rec.Meta.Functions[tl.Ops[i].Func].Base == "cuStreamSynchronize" {
			fn = int32(i)
		}
	}
	for i := range s.steps {
		s.steps[i].Op = fn
	}
	f := s.diagnose().Findings[0]
	if want := "cuStreamSynchronize in step (infer.py:33) lets the GPU's queue run empty"; f.Title != want ||
		f.Place != "step (infer.py:33)" {
		t.Errorf("%q at %q, want %q", f.Title, f.Place, want)
	}
	if got := text(&f); !strings.Contains(
		got,
		"100.0% of 20 samples inside of cuStreamSynchronize in step (infer.py:33), calling item",
	) {
		t.Errorf("evidence: %s", got)
	}
}

// TestResults holds that a few bytes to the host are no copies that anybody should pin memory for.
func TestResults(t *testing.T) {
	s := newScene(t)
	for i := range uint64(10) {
		s.kernel(i*100, i*100+60)
		s.work(event.Copy, 2|3<<8|1<<16, i*100+60, i*100+100, 8)
	}
	if d := s.diagnose(); causes(d) != "" || partOf(d.Breakdown, "d2h") != 400*ms {
		t.Errorf("%q %+v", causes(d), d.Breakdown.Parts)
	}
}

// TestOneBlock holds that one block is not said to be several.
func TestOneBlock(t *testing.T) {
	for blocks, want := range map[uint64]string{1: "(1 block on average", 40: "(40 blocks on average"} {
		s := newScene(t)
		for i := range uint64(10) {
			s.work(event.Kernel, 1, i*100, i*100+100, grid(blocks), 256)
		}
		if d := s.diagnose(); len(d.Findings) == 0 || !strings.Contains(d.Findings[0].Title, want) {
			t.Errorf("findings %+v, want one with %q", d.Findings, want)
		}
	}
}
