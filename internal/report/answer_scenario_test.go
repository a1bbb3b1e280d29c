package report

import (
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
	"github.com/inferscope/inferscope/internal/testkit/timelinetest"
)

// System calls of the recordings' machine (amd64).
const sysEpollWait = 232

func answerScenarios() []scenario {
	return []scenario{
		{"answer_python_work", pythonWork(), 0},
		{"answer_host_sync", hostSync(), 0},
		{"answer_worker", workerWait(), 0},
		{"answer_idle_server", idleServer(), 0},
		{"answer_healthy", healthy(), 0},
		{"answer_left", leftToGain(), 0},
		{"answer_not_enough", notEnough(), 0},
		{"answer_cpu_only", cpuOnly(), 0},
		{"answer_two_gpus", twoGPUs(), 0},
	}
}

// sampled is a program with all sources on, whose threads are sampled 99 times a second.
type sampled struct {
	*timelinetest.Sim
	leader *timelinetest.Thread
	st     *timelinetest.Stream
	launch uint64 // stack of the thread that launches
}

func sampledProgram(c timelinetest.Config) *sampled {
	c.Agent, c.Both = true, true
	s := &sampled{Sim: programOf(c)}
	s.Meta.Sources = append(s.Meta.Sources, recording.Source{Name: "cpu samples", State: "running"},
		recording.Source{Name: "scheduling", State: "running"})
	for i := range uint32(4) {
		s.Thread(recordtest.PID, pool+i, "pt_pool")
		s.Off(recordtest.Off{
			TID:   pool + i,
			TS:    calltest.Start - 900*ms,
			Dur:   s.Config.Length + 900*ms,
			Call:  sysFutex,
			Arg:   0x7f00_1000 + uint64(i),
			Flags: event.Open,
		})
	}
	for i := range uint64(2) {
		s.Meta.Pressure = append(s.Meta.Pressure,
			recording.Pressure{TS: calltest.Start + i*s.Config.Length, GPUNode: -1})
	}
	s.Runs(leader, calltest.Start)
	s.launch = s.Stack(native("cuLaunchKernel", "libcuda.so.1"),
		native("cudaLaunchKernel", "libcudart.so.13"), native("at::native::add_kernel", "libtorch_cuda.so"),
		python("forward", torch+"nn/modules/linear.py", 114), infer(31),
		python("<module>", "/app/infer.py", 60))
	s.st, s.leader = s.Stream(0, 7), s.Spawn(leader)
	return s
}

// every is the time between samples: 99 in a second.
const every = s / 99

// runs lets a thread run for dur with one stack, and samples it.
func (p *sampled) runs(t *timelinetest.Thread, dur, stack uint64) {
	p.samples(t.TID, t.Now, t.Now+dur, stack)
	t.Pause(dur)
}

func (p *sampled) samples(tid uint32, from, to, stack uint64) {
	for at := calltest.Start + (from-calltest.Start)/every*every; at < to; at += every {
		if at >= from {
			p.Sample(tid, at, stack, event.Whole)
		}
	}
}

// burst launches kernels one after the other, 8 µs each.
func (p *sampled) burst(t *timelinetest.Thread, kernels []timelinetest.Kernel) {
	from := t.Now
	for _, k := range kernels {
		t.Launch(p.st, k, 8*us)
	}
	p.samples(t.TID, from, t.Now, p.launch)
}

// sync waits for the stream, spinning as CUDA does by default.
func (p *sampled) sync(t *timelinetest.Thread, stack uint64) {
	from := t.Now
	t.Sync(p.st)
	p.samples(t.TID, from, t.Now, stack)
}

func (p *sampled) item() uint64 {
	return p.Stack(
		native("cuStreamSynchronize", "libcuda.so.1"),
		native("cudaStreamSynchronize", "libcudart.so.13"),
		native("at::native::item", "libtorch_cuda.so"),
		infer(35),
		python("<module>", "/app/infer.py", 60),
	)
}

// pythonWork is a decode whose next token is chosen in Python, while the GPU has nothing to do.
func pythonWork() *recording.Recording {
	p := sampledProgram(timelinetest.Config{})
	item := p.item()
	choose := p.Stack(native("_PyEval_EvalFrameDefault", "python3.12"),
		python("top_p", "/app/sampling.py", 48), infer(36), python("<module>", "/app/infer.py", 60))
	for range 220 {
		p.leader.Then(func(t *timelinetest.Thread) {
			p.burst(t, timelinetest.Layers(8))
			p.sync(t, item)
			p.runs(t, 4*ms, choose)
		})
	}
	return p.Run()
}

// hostSync asks after every kernel for its result.
func hostSync() *recording.Recording {
	p := sampledProgram(timelinetest.Config{Length: 150 * ms})
	item := p.item()
	k := timelinetest.Kernel{
		Name:   "void at::native::reduce_kernel<512, 1>(int)",
		Handle: 0x20,
		Grid:   [3]uint32{132, 1, 1},
		Block:  [3]uint32{512, 1, 1},
		Dur:    14 * us,
	}
	for range 20_000 {
		p.leader.Then(func(t *timelinetest.Thread) {
			p.burst(t, []timelinetest.Kernel{k})
			p.sync(t, item)
			p.runs(t, 12*us, p.launch)
		})
	}
	return p.Run()
}

// workerWait takes batches out of a pipe that a worker fills too slowly.
func workerWait() *recording.Recording {
	p := sampledProgram(timelinetest.Config{})
	p.Meta.Host.CPUs = 16 // more loaders need CPUs
	p.Thread(recordtest.PID, worker, "loader")
	p.Meta.Objects = []recording.Object{{PID: recordtest.PID, Inode: 123, Name: "pipe:[123]"}}
	get := p.Stack(queueGet()...)
	tokenize := p.Stack(native("tokenizers::tokenizer::encode", "tokenizers.abi3.so"),
		python("tokenize", "/app/tok.py", 12), python("run", "/app/loader.py", 80))
	item := p.item()
	for range 40 {
		p.leader.Then(func(t *timelinetest.Thread) {
			p.Off(recordtest.Off{
				TID:     leader,
				TS:      t.Now,
				Dur:     30 * ms,
				Blocked: 30*ms - 50*us,
				Call:    sysRead,
				By:      [2]uint32{recordtest.PID, worker},
				Arg:     7,
				Inode:   123,
				Type:    1,
				Stack:   get,
			})
			p.samples(worker, t.Now, t.Now+30*ms, tokenize)
			p.Off(recordtest.Off{
				TID:     worker,
				TS:      t.Now + 30*ms,
				Dur:     5 * ms,
				Blocked: 5*ms - 20*us,
				Call:    sysFutex,
				By:      [2]uint32{recordtest.PID, leader},
				Arg:     0x7f00_2000,
			})
			t.Pause(30 * ms)
			p.burst(t, timelinetest.Layers(24))
			p.sync(t, item)
		})
	}
	return p.Run()
}

// idleServer answers a request now and then, and waits for the next one.
func idleServer() *recording.Recording {
	p := sampledProgram(timelinetest.Config{Length: 2 * s})
	p.Meta.Objects = []recording.Object{{PID: recordtest.PID, Inode: 55, Name: "socket:[55]", Role: recording.Accepted}}
	wait := p.Stack(recordtest.Kernel("ep_poll"), native("epoll_wait", "libc.so.6"),
		python("select", "/usr/lib/python3.12/selectors.py", 468), python("serve", "/app/server.py", 20))
	item := p.item()
	for range 8 {
		p.leader.Then(func(t *timelinetest.Thread) {
			p.Off(recordtest.Off{
				TID:     leader,
				TS:      t.Now,
				Dur:     240 * ms,
				Blocked: 240*ms - 20*us,
				Call:    sysEpollWait,
				Flags:   event.FromIRQ,
				Arg:     5,
				Inode:   55,
				Type:    12,
				Stack:   wait,
			})
			t.Pause(240 * ms)
			for range 5 {
				p.burst(t, timelinetest.Layers(24))
				p.sync(t, item)
			}
		})
	}
	return p.Run()
}

// healthy launches each step before the one before has ended.
func healthy() *recording.Recording {
	p := sampledProgram(timelinetest.Config{})
	k := timelinetest.Kernel{
		Name:   "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
		Handle: 0x30,
		Grid:   [3]uint32{528, 1, 1},
		Block:  [3]uint32{384, 1, 1},
		Dur:    400 * us,
	}
	poll := p.Stack(native("cuEventSynchronize", "libcuda.so.1"),
		native("cudaEventSynchronize", "libcudart.so.13"), infer(40), python("<module>", "/app/infer.py", 60))
	events := [2]timelinetest.Event{{Handle: 0x70}, {Handle: 0x71}}
	for i := range 400 {
		p.leader.Then(func(t *timelinetest.Thread) {
			p.burst(t, []timelinetest.Kernel{k, k, k, k, k, k, k, k})
			t.Record(&events[i%2], p.st)
			from := t.Now
			if i > 0 {
				t.SyncEvent(&events[(i+1)%2])
			}
			p.samples(leader, from, t.Now, poll)
		})
	}
	return p.Run()
}

// leftToGain asks for the result after each step of a millisecond.
func leftToGain() *recording.Recording {
	p := sampledProgram(timelinetest.Config{})
	item := p.item()
	k := timelinetest.Kernel{
		Name:   "void at::native::reduce_kernel<512, 1>(int)",
		Handle: 0x20,
		Grid:   [3]uint32{528, 1, 1},
		Block:  [3]uint32{512, 1, 1},
		Dur:    500 * us,
	}
	other := p.Stack(native("_PyEval_EvalFrameDefault", "python3.12"), python("step", "/app/infer.py", 36),
		python("<module>", "/app/infer.py", 60))
	for range 1000 {
		p.leader.Then(func(t *timelinetest.Thread) {
			p.burst(t, []timelinetest.Kernel{k, k})
			p.sync(t, item)
			p.runs(t, 80*us, other)
		})
	}
	return p.Run()
}

// notEnough lost most of the GPU's records.
func notEnough() *recording.Recording {
	p := sampledProgram(timelinetest.Config{Length: 150 * ms, LoseRecords: 0.4, Burst: 200})
	item := p.item()
	for range 300 {
		p.leader.Then(func(t *timelinetest.Thread) {
			p.burst(t, timelinetest.Layers(16))
			p.sync(t, item)
		})
	}
	return p.Run()
}

// cpuOnly is a program without a GPU that tokenizes.
func cpuOnly() *recording.Recording {
	b := watched()
	b.Meta.Libraries = nil
	b.Meta.Processes[0].Probed = 0
	b.Runs(leader, calltest.Start)
	tokenize := b.Stack(native("tokenizers::tokenizer::encode", "tokenizers.abi3.so"),
		python("encode", "/app/embed.py", 18), python("<module>", "/app/embed.py", 60))
	matmul := b.Stack(
		native("mkl_blas_avx512_sgemm_kernel", "libmkl_avx512.so.2"),
		python("forward", torch+"nn/modules/linear.py", 114),
		python("embed", "/app/embed.py", 31),
		python("<module>", "/app/embed.py", 60),
	)
	load := b.Stack(recordtest.Kernel("filemap_read"), native("read", "libc.so.6"),
		python("next_text", "/app/embed.py", 9), python("<module>", "/app/embed.py", 58))
	b.Meta.Objects = []recording.Object{{PID: recordtest.PID, Inode: 777, Name: "/data/texts.jsonl"}}
	for i := range uint64(10) {
		at := calltest.Start + i*100*ms
		b.Samples(leader, at, at+60*ms, 6, tokenize, event.Whole)
		b.Samples(leader, at+60*ms, at+90*ms, 3, matmul, event.Whole)
		b.Off(recordtest.Off{
			TID:     leader,
			TS:      at + 90*ms,
			Dur:     10 * ms,
			Blocked: 10*ms - 20*us,
			Call:    sysRead,
			Flags:   event.Uninterruptible | event.FromIRQ,
			Arg:     4,
			Inode:   777,
			Type:    8,
			Stack:   load,
		})
	}
	return b.Recording()
}

// twoGPUs does half of the layers on one GPU and half on another, one after the other.
func twoGPUs() *recording.Recording {
	p := sampledProgram(timelinetest.Config{Length: 500 * ms})
	p.Meta.GPU.Devices = append(p.Meta.GPU.Devices, recording.Device{
		PID:      recordtest.PID,
		ID:       1,
		Name:     "NVIDIA H200",
		UUID:     "GPU-0a1c",
		SMs:      132,
		Memory:   150_754_820_096,
		PeakRate: 4_814_000_000_000,
		Major:    9,
	})
	second := p.Stream(0x66e0, 9)
	second.Device, second.Context = 1, 2
	item := p.item()
	k := timelinetest.Kernel{
		Name:   "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT",
		Handle: 0x31,
		Grid:   [3]uint32{264, 1, 1},
		Block:  [3]uint32{384, 1, 1},
		Dur:    300 * us,
	}
	for range 200 {
		p.leader.Then(func(t *timelinetest.Thread) {
			for _, st := range []*timelinetest.Stream{p.st, second} {
				from := t.Now
				for range 10 {
					t.Launch(st, k, 8*us)
				}
				t.Sync(st)
				p.samples(leader, from, t.Now, item)
			}
		})
	}
	return p.Run()
}
