package report

import (
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// System calls of the recordings' machine (amd64).
const (
	sysRead, sysPoll, sysIoctl, sysPread, sysFutex, sysSleep = 0, 7, 16, 17, 202, 230
)

// The threads of the recordings, beside the main one.
const (
	leader = recordtest.PID
	worker = recordtest.PID + 10
	pinner = recordtest.PID + 11
	pool   = recordtest.PID + 20
)

func cpuScenarios() []scenario {
	return []scenario{
		{"cpu_gpu_wait", gpuWait().Recording(), 0},
		{"cpu_starved_loader", starvedLoader().Recording(), 0},
		{"cpu_gil_fight", gilFight().Recording(), 0},
		{"cpu_throttled", throttled().Recording(), 0},
		{"cpu_disk", diskRead().Recording(), 0},
		{"cpu_fine", allFine().Recording(), 0},
		{"cpu_no_cuda", noCUDA().Recording(), 0},
	}
}

// watched is a recording with the sources of CPU evidence, and a pool of idle threads
// as every PyTorch process has.
func watched() *calltest.Builder {
	b := libraries(calltest.New(), recordtest.PID)
	b.Meta.Sources = append(b.Meta.Sources, recording.Source{Name: "cpu samples", State: "running"},
		recording.Source{Name: "scheduling", State: "running"})
	for i := range uint32(6) {
		b.Thread(recordtest.PID, pool+i, "pt_pool")
		b.Off(recordtest.Off{
			TID:   pool + i,
			TS:    calltest.Start - 900*ms,
			Dur:   s + 900*ms,
			Call:  sysFutex,
			Arg:   0x7f00_1000 + uint64(i),
			Flags: event.Open,
		})
	}
	for i := range uint64(2) {
		b.Meta.Pressure = append(b.Meta.Pressure, recording.Pressure{TS: calltest.Start + i*s, GPUNode: -1})
	}
	return b
}

func python(name, file string, line uint32) recording.Frame {
	return recordtest.Python(name, file, line)
}
func native(name, file string) recording.Frame { return recordtest.Native(name, file) }

const torch = "/usr/lib/python3/dist-packages/torch/"

func infer(line uint32) recording.Frame { return python("generate", "/app/infer.py", line) }

// queueGet returns the frames of a thread that waits for a batch of a loader process.
func queueGet() []recording.Frame {
	return []recording.Frame{
		recordtest.Kernel("pipe_read"),
		native("read", "libc.so.6"),
		python("Connection._recv", "/usr/lib/python3.12/multiprocessing/connection.py", 395),
		python("Queue.get", "/usr/lib/python3.12/multiprocessing/queues.py", 103),
		python("next_batch", "/app/loader.py", 41),
		infer(12),
	}
}

// gpuWait is a decode loop that waits for the GPU by polling, and computes little.
func gpuWait() *calltest.Builder {
	b := watched()
	forward := b.Stack(native("at::native::add", "libtorch_cpu.so"),
		python("forward", torch+"nn/modules/linear.py", 114), infer(31),
		python("<module>", "/app/infer.py", 60))
	launch := b.Stack(native("cuLaunchKernel", "libcuda.so.1"), native("cudaLaunchKernel", "libcudart.so.13"),
		python("forward", torch+"nn/modules/linear.py", 114), infer(31),
		python("<module>", "/app/infer.py", 60))
	poll := b.Stack(native("libcuda.so.1+0x28f112", "libcuda.so.1"),
		native("cudaStreamSynchronize", "libcudart.so.13"), infer(35),
		python("<module>", "/app/infer.py", 60))
	sleep := b.Stack(recordtest.Kernel("schedule"), recordtest.Kernel("nvidia_poll"),
		native("poll", "libc.so.6"), native("cudaStreamSynchronize", "libcudart.so.13"), infer(35),
		python("<module>", "/app/infer.py", 60))
	for token := range int64(50) {
		at := token * 20_000_000
		for k := range int64(20) {
			b.Launch("cuLaunchKernel", at+k*200_000, 0x10+uint64(k%5),
				0x55d0, [3]uint32{8, 1, 1}, [3]uint32{64, 1, 1}, 0)
		}
		b.Do("cudaStreamSynchronize", at+5_000_000, 14*ms, 0x55d0)
		start := uint64(calltest.Start + at)
		b.Samples(leader, start, start+5*ms, 1, []uint64{forward, launch}[token%2], event.Whole)
		b.Samples(leader, start+5*ms, start+17*ms, 1, poll, event.StackOrigin(token%10/9)) // one in ten is spliced
		b.Off(recordtest.Off{
			TID:     leader,
			TS:      start + 17*ms,
			Dur:     2 * ms,
			Blocked: 2*ms - 20*us,
			Call:    sysPoll,
			Flags:   event.FromIRQ,
			Stack:   sleep,
		})
	}
	return b
}

// starvedLoader is a main thread that waits on a pipe that a worker fills too slowly.
func starvedLoader() *calltest.Builder {
	b := watched()
	b.Thread(recordtest.PID, worker, "loader")
	b.Meta.Objects = []recording.Object{{PID: recordtest.PID, Inode: 123, Name: "pipe:[123]"}}
	get := b.Stack(queueGet()...)
	tokenize := b.Stack(native("PyUnicode_Join", "python3.12"), python("tokenize", "/app/tok.py", 12),
		python("run", "/app/loader.py", 80))
	dumps := b.Stack(native("_pickle_dumps", "_pickle.so"),
		python("ForkingPickler.dumps", "/usr/lib/python3.12/multiprocessing/reduction.py", 51),
		python("run", "/app/loader.py", 82))
	compute := b.Stack(native("cuLaunchKernel", "libcuda.so.1"), infer(31))
	for batch := range int64(10) {
		at := batch * 100_000_000
		start := uint64(calltest.Start + at)
		b.Off(recordtest.Off{
			TID: leader, TS: start, Dur: 90 * ms, Blocked: 90*ms - 50*us, Call: sysRead,
			By: [2]uint32{recordtest.PID, worker}, Arg: 7, Inode: 123, Type: 1, Stack: get,
		})
		b.Samples(worker, start, start+80*ms, 8, tokenize, event.Whole)
		b.Samples(worker, start+80*ms, start+90*ms, 1, dumps, event.Whole)
		b.Off(recordtest.Off{
			TID:     worker,
			TS:      start + 91*ms,
			Dur:     9 * ms,
			Blocked: 9 * ms,
			Call:    sysFutex,
			By:      [2]uint32{recordtest.PID, leader},
			Arg:     0x7f00_2000,
		})
		b.Samples(leader, start+90*ms, start+100*ms, 1, compute, event.Whole)
		b.Launch("cuLaunchKernel", at+92_000_000, 0x10, 0, [3]uint32{8, 1, 1}, [3]uint32{64, 1, 1}, 0)
		b.Do("cudaStreamSynchronize", at+95_000_000, 2*ms, 0)
	}
	return b
}

// gilFight is two threads that share the GIL: each runs half of the time.
func gilFight() *calltest.Builder {
	b := watched()
	b.Thread(recordtest.PID, worker, "metrics")
	encode := b.Stack(native("_PyEval_EvalFrameDefault", "python3.12"),
		python("encode", "/app/metrics.py", 77),
		python("Thread.run", "/usr/lib/python3.12/threading.py", 1010))
	step := b.Stack(native("_PyEval_EvalFrameDefault", "python3.12"),
		python("sample_token", "/app/infer.py", 48), infer(36))
	take := func(f ...recording.Frame) uint64 {
		return b.Stack(append([]recording.Frame{
			recordtest.Kernel("futex_wait"),
			native("pthread_cond_timedwait", "libc.so.6"),
			native("take_gil", "python3.12"),
			native("_PyEval_EvalFrameDefault", "python3.12"),
		}, f...)...)
	}
	mine, other := take(infer(36)), take(python("encode", "/app/metrics.py", 77))
	for i := range uint64(100) {
		start := calltest.Start + i*10*ms
		b.Off(recordtest.Off{
			TID:     leader,
			TS:      start,
			Dur:     5 * ms,
			Blocked: 5*ms - 10*us,
			Call:    sysFutex,
			Arg:     0x5590_0010,
			By:      [2]uint32{recordtest.PID, worker},
			Stack:   mine * (1 - i%2),
		})
		b.Sample(worker, start+2*ms, encode, event.Whole)
		b.Off(recordtest.Off{
			TID:     worker,
			TS:      start + 5*ms,
			Dur:     5 * ms,
			Blocked: 5*ms - 10*us,
			Call:    sysFutex,
			Arg:     0x5590_0014,
			By:      [2]uint32{recordtest.PID, leader},
			Stack:   other * (1 - i%2),
		})
		b.Sample(leader, start+7*ms, step, event.Spliced)
		b.Launch("cuLaunchKernel", int64(i)*10_000_000+8_000_000, 0x10, 0, [3]uint32{8, 1, 1}, [3]uint32{64, 1, 1}, 0)
	}
	return b
}

// throttled is a thread whose cgroup may use half a CPU, and that shares it with a hog.
func throttled() *calltest.Builder {
	b := watched()
	b.Meta.OtherThreads = []recording.Thread{{PID: 99, TID: 99, Name: "stress"}}
	b.Meta.Pressure[1].Throttled, b.Meta.Pressure[1].Periods, b.Meta.Pressure[1].MajorFaults = 400*ms, 10, 3
	b.Meta.Pressure[1].GPUNode = 1
	b.Meta.Host.NodeOf = []int{0, 1}
	b.Meta.Pressure[1].RemotePages = map[string]uint64{"0": 750_000, "1": 250_000}
	work := b.Stack(native("cblas_sgemm", "libmkl_rt.so"), python("preprocess", "/app/infer.py", 22), infer(12))
	for i := range uint64(10) {
		start := calltest.Start + i*100*ms
		b.Samples(leader, start, start+40*ms, 4, work, event.Python)
		b.Off(
			recordtest.Off{TID: leader, TS: start + 40*ms, Dur: 40 * ms, Call: event.NoSyscall, Flags: event.Preempted},
		)
		b.Samples(leader, start+80*ms, start+90*ms, 1, work, event.Leaf)
		b.Off(recordtest.Off{
			TID:   leader,
			TS:    start + 90*ms,
			Dur:   10 * ms,
			Call:  event.NoSyscall,
			Flags: event.Preempted,
			By:    [2]uint32{99, 99},
			CPUs:  [2]uint16{0, 1},
		})
		b.Launch("cuLaunchKernel", int64(i)*100_000_000, 0x10, 0, [3]uint32{8, 1, 1}, [3]uint32{64, 1, 1}, 0)
	}
	return b
}

// diskRead is a thread that reads its weights from a cold file.
func diskRead() *calltest.Builder {
	b := watched()
	b.Meta.Objects = []recording.Object{{PID: recordtest.PID, Inode: 777, Name: "/models/weights.safetensors"}}
	load := b.Stack(recordtest.Kernel("filemap_read"), native("pread64", "libc.so.6"),
		python("load_shard", "/usr/lib/python3/dist-packages/safetensors/torch.py", 315),
		python("load", "/app/infer.py", 8))
	for i := range uint64(40) {
		start := calltest.Start + i*25*ms
		b.Off(recordtest.Off{
			TID: leader, TS: start, Dur: 20 * ms, Blocked: 20*ms - 30*us, Call: sysPread,
			Flags: event.Uninterruptible | event.FromIRQ, Arg: 5, Inode: 777, Type: 8, Stack: load,
		})
		b.Sample(
			leader,
			start+22*ms,
			b.Stack(native("memcpy", "libc.so.6"),
				python("load_shard", "/usr/lib/python3/dist-packages/safetensors/torch.py", 315),
				python("load", "/app/infer.py", 8)),
			event.Whole,
		)
		b.Do("cudaMemcpy", int64(i)*25_000_000+21_000_000, 3*ms, 1, 2, 50_000_000,
			calltest.Kind(calltest.HostToDevice, 0))
	}
	return b
}

// allFine is a thread that computes and is never kept from it.
func allFine() *calltest.Builder {
	b := watched()
	b.Runs(leader, calltest.Start)
	work := b.Stack(native("at::native::gelu", "libtorch_cpu.so"),
		python("forward", torch+"nn/modules/activation.py", 9), infer(31))
	b.Samples(leader, calltest.Start, calltest.Start+s, 99, work, event.Whole)
	b.Off(recordtest.Off{
		TID:     leader,
		TS:      calltest.Start + 500*ms,
		Dur:     us,
		Blocked: us,
		Call:    sysSleep,
		Flags:   event.FromIRQ,
	})
	for i := range int64(100) {
		b.Launch("cuLaunchKernel", i*10_000_000, 0x10, 0, [3]uint32{8, 1, 1}, [3]uint32{64, 1, 1}, 0)
	}
	return b
}

// noCUDA is a process that has not come to CUDA yet: it compiles.
func noCUDA() *calltest.Builder {
	b := watched()
	b.Meta.Libraries = nil
	b.Meta.Processes[0].Probed = 0
	b.Runs(leader, calltest.Start)
	compile := b.Stack(native("llvm::SelectionDAG::combine", "libtriton.so"),
		python("make_cubin", "/usr/lib/python3/dist-packages/triton/compiler/compiler.py", 300),
		python("warm_up", "/app/infer.py", 5))
	b.Samples(leader, calltest.Start, calltest.Start+s, 99, compile, event.Whole)
	b.Off(recordtest.Off{
		TID:   leader,
		TS:    calltest.Start + 900*ms,
		Dur:   100 * ms,
		Call:  sysIoctl,
		Arg:   9,
		Flags: event.Open,
	})
	return b
}
