package browser_test

import (
	"fmt"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
	"github.com/inferscope/inferscope/internal/testkit/timelinetest"
)

// Units of time, ns.
const (
	us = calltest.Microsecond
	ms = calltest.Millisecond
	s  = calltest.Second
)

// Threads of the programs.
const (
	leader = recordtest.PID
	worker = recordtest.PID + 7
)

// Numbers of Linux on amd64.
const (
	sysRead  = 0
	sysFutex = 202
)

// nasty is a name that would be markup where it were taken for any.
const nasty = `</script><script>window.owned=1</script><img src=x onerror="window.owned=1">`

// served is a server with requests that overlap.
func served() *recording.Recording {
	rec := timelinetest.Eager.Make(1000)
	m := &rec.Meta
	for i := range uint64(8) {
		at, end := m.From+i*ms/4, m.From+i*ms/4+ms*(i%3+1)/2
		m.Requests = append(m.Requests, recording.Request{
			Number: i + 1, PID: m.Target, Received: at, Asked: at + 10*us, FirstToken: (at + end) / 2,
			LastToken: end - 20*us,
			End:       end, Method: "POST", Route: "/v1/completions", Model: nasty, ID: fmt.Sprint("cmpl-", i),
			Status: 200, Outcome: "complete", Streamed: true, OutputTokens: 5, TokenSource: "usage",
		})
	}
	return rec
}

// program is a program under way, with samples.
type program struct {
	*timelinetest.Sim
	st     *timelinetest.Stream
	leader *timelinetest.Thread
}

func newProgram(c timelinetest.Config) *program {
	c.Agent, c.Both = true, true
	p := &program{Sim: timelinetest.New(c)}
	p.Meta.Sources = append(p.Meta.Sources, recording.Source{Name: "cpu samples", State: "running"},
		recording.Source{Name: "scheduling", State: "running"})
	p.Meta.Processes[0].Cmdline = "python infer.py " + nasty
	p.Meta.Objects = []recording.Object{{PID: recordtest.PID, Inode: 123, Name: "pipe:[123]"}}
	p.Thread(recordtest.PID, worker, "loader")
	p.Runs(leader, calltest.Start)
	p.Runs(worker, calltest.Start)
	p.st, p.leader = p.Stream(0, 7), p.Spawn(leader)
	return p
}

// samples takes one every 10 ms of a stretch.
func (p *program) samples(tid uint32, from, to, stack uint64) {
	const every = 10_101_010
	for at := calltest.Start + (from-calltest.Start)/every*every; at < to; at += every {
		if at >= from {
			p.Sample(tid, at, stack, event.Whole)
		}
	}
}

func layers(n int) []timelinetest.Kernel {
	var list []timelinetest.Kernel
	for i := range n {
		list = append(
			list,
			timelinetest.Kernel{
				Name:   "nvjet_tst_64x8_64x16_4x1_v_bz_splitK_TNT",
				Handle: 0x10,
				Grid:   [3]uint32{264, 1, 1},
				Block:  [3]uint32{384, 1, 1},
				Dur:    21 * us,
			},
			timelinetest.Kernel{
				Name: fmt.Sprintf(
					"void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_%d<float>, "+
						"std::array<char*, 2>>(int, CUDAFunctor, std::array)",
					i%5,
				),
				Handle: uint64(0x20 + i%5),
				Grid:   [3]uint32{96, 1, 1},
				Block:  [3]uint32{128, 1, 1},
				Dur:    6 * us,
			},
			timelinetest.Kernel{
				Name:   "flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<64, 64, 256>>",
				Handle: 0x11,
				Grid:   [3]uint32{4, 12, 1},
				Block:  [3]uint32{128, 1, 1},
				Dur:    14 * us,
			},
		)
	}
	return append(list, timelinetest.Kernel{
		Name:   nasty,
		Handle: 0x99,
		Grid:   [3]uint32{1, 1, 1},
		Block:  [3]uint32{32, 1, 1},
		Dur:    4 * us,
	})
}

// pipeline takes batches from a loader that is too slow, computes, and chooses the next token in Python: some causes at
// once.
func pipeline(length uint64, spans []timelinetest.Span) *recording.Recording {
	p := newProgram(timelinetest.Config{Length: length, Windows: spans})
	top := recordtest.Python("<module>", "/app/infer.py", 60)
	get := p.Stack(recordtest.Kernel("pipe_read"), recordtest.Native("read", "libc.so.6"),
		recordtest.Python("Connection._recv", "/usr/lib/python3.12/multiprocessing/connection.py", 395),
		recordtest.Python("next_batch", "/app/loader.py", 41), top)
	tokenize := p.Stack(recordtest.Native("tokenizers::tokenizer::encode", "tokenizers.abi3.so"),
		recordtest.Python("tokenize", "/app/tok.py", 12), recordtest.Python("run", "/app/loader.py", 80))
	launch := p.Stack(recordtest.Native("cuLaunchKernel", "libcuda.so.1"),
		recordtest.Native("at::native::add_kernel", "libtorch_cuda.so"),
		recordtest.Python("forward", "/usr/lib/python3.12/site-packages/torch/nn/modules/linear.py", 114),
		recordtest.Python("decode", "/app/infer.py", 31), top)
	item := p.Stack(recordtest.Native("cuStreamSynchronize", "libcuda.so.1"),
		recordtest.Native("at::native::item", "libtorch_cuda.so"),
		recordtest.Python("decode", "/app/infer.py", 35), top)
	choose := p.Stack(recordtest.Native("_PyEval_EvalFrameDefault", "python3.12"),
		recordtest.Python("top_p", "/app/sampling.py", 48), recordtest.Python(nasty, "/app/infer.py", 36),
		top)
	idle := p.Stack(recordtest.Kernel("futex_wait_queue"),
		recordtest.Native("pthread_cond_wait", "libc.so.6"), recordtest.Python("run", "/app/loader.py", 70))
	for range length / (16_500 * us) {
		p.leader.Then(func(t *timelinetest.Thread) {
			p.Off(recordtest.Off{
				TID:     leader,
				TS:      t.Now,
				Dur:     7 * ms,
				Blocked: 7*ms - 50*us,
				Call:    sysRead,
				By:      [2]uint32{recordtest.PID, worker},
				Arg:     7,
				Inode:   123,
				Type:    1,
				Stack:   get,
			})
			p.samples(worker, t.Now, t.Now+7*ms, tokenize)
			p.Off(recordtest.Off{
				TID:     worker,
				TS:      t.Now + 7*ms,
				Dur:     9 * ms,
				Blocked: 9*ms - 20*us,
				Call:    sysFutex,
				By:      [2]uint32{recordtest.PID, leader},
				Arg:     0x7f00_2000,
				Stack:   idle,
			})
			t.Pause(7 * ms)
			t.Copy(p.st, 4<<20, timelinetest.Pageable, 30*us)
			for range 3 {
				from := t.Now
				for _, k := range layers(24) {
					t.Launch(p.st, k, 8*us)
				}
				p.samples(leader, from, t.Now, launch)
				from = t.Now
				t.Sync(p.st)
				p.samples(leader, from, t.Now, item)
				p.samples(leader, t.Now, t.Now+2*ms, choose)
				t.Pause(2 * ms)
			}
		})
	}
	return p.Run()
}

// minute is what a daemon with its default settings keeps of a minute: GPU activity in windows of 200 ms every 2 s.
func minute() *recording.Recording {
	var spans []timelinetest.Span
	for i := range uint64(30) {
		spans = append(spans, timelinetest.Between(i*2*s+s, i*2*s+s+200*ms))
	}
	return pipeline(60*s, spans)
}
