package report

import (
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
	"github.com/inferscope/inferscope/internal/testkit/timelinetest"
)

func gpuScenarios() []scenario {
	return []scenario{
		{"gpu_windows", gpuWindows().Run(), 0},
		{"gpu_graphs", gpuGraphs(timelinetest.Config{Agent: true, Both: true}).Run(), 0},
		{"gpu_dropped", gpuDropped(), 0},
		{"gpu_order", gpuOrder().Run(), 0},
		{"gpu_refused", gpuRefused(), 0},
		{"gpu_waiting", gpuWaiting(), 0},
		{"gpu_two_processes", gpuTwoProcesses(), 0},
		{"gpu_clock", gpuGraphs(timelinetest.Config{Agent: true, Skew: 2_500_000}).Run(), 0},
	}
}

// programOf begins a program whose libraries are probed.
func programOf(c timelinetest.Config) *timelinetest.Sim {
	s := timelinetest.New(c)
	libraries(s.Builder, recordtest.PID)
	return s
}

// gpuWindows is an eager decode of two threads, recorded in three windows of two seconds.
func gpuWindows() *timelinetest.Sim {
	s := programOf(timelinetest.Config{
		Agent: true, Both: true, Length: 2 * calltest.Second,
		Windows: []timelinetest.Span{
			timelinetest.Between(100*ms, 160*ms),
			timelinetest.Between(900*ms, 960*ms),
			timelinetest.Between(1_700*ms, 1_760*ms),
		},
	})
	s.Thread(recordtest.PID, recordtest.PID+1, "worker")
	for i := range uint64(2) {
		st := s.Stream(0x5500*i, uint32(7+6*i))
		s.Spawn(uint32(recordtest.PID+i)).Decode(st, 1000, timelinetest.Layers(3), 6*us, 400*us)
	}
	return s
}

// gpuGraphs replays one graph for each token, with a memset before it.
func gpuGraphs(c timelinetest.Config) *timelinetest.Sim {
	c.Length = 200 * ms
	s := programOf(c)
	st := s.Stream(0x7100, 13)
	t := s.Spawn(recordtest.PID)
	nodes := timelinetest.Layers(8)
	for range 500 {
		t.Then(func(t *timelinetest.Thread) {
			t.Fill(st, 4096, 4*us)
			t.Graph(st, 0x9900, nodes, 30*us)
			t.Sync(st)
			t.Pause(150 * us)
		})
	}
	return s
}

// gpuDropped lost records.
func gpuDropped() *recording.Recording {
	s := gpuGraphs(timelinetest.Config{Agent: true, LoseRecords: 0.1, Burst: 300, Seed: 3})
	rec := s.Run()
	rec.Meta.GPU.Agents[0].Dropped = uint64(s.RecordsLost)
	return rec
}

// gpuOrder has calls from probes, without ids.
func gpuOrder() *timelinetest.Sim {
	s := programOf(timelinetest.Config{Length: 100 * ms})
	st := s.Stream(0, 7)
	s.Spawn(recordtest.PID).Decode(st, 500, timelinetest.Layers(2), 6*us, 300*us)
	return s
}

func gpuRefused() *recording.Recording {
	rec := decode().Recording()
	rec.Meta.GPU = &recording.GPU{
		Mode: "windows",
		Agents: []recording.Agent{{
			PID: recordtest.PID, State: "refused",
			Detail: "another profiler holds CUPTI (error 39): end it, or run the daemon with --no-inject",
		}},
		Windows: []recording.GPUWindow{
			{
				PID:   recordtest.PID,
				From:  calltest.Start + 100*ms,
				To:    calltest.Start + 300*ms,
				Calls: true,
				End:   "detached",
			},
		},
	}
	return rec
}

func gpuWaiting() *recording.Recording {
	rec := noCalls().Recording()
	rec.Meta.GPU = &recording.GPU{
		Mode: "windows",
		Agents: []recording.Agent{
			{
				PID:    recordtest.PID,
				State:  "waiting",
				Detail: "the process made no CUDA call for 12 s; it is loaded at the next one",
			},
		},
	}
	return rec
}

// gpuTwoProcesses share a GPU, are recorded at times that overlap in part, and one of them uses a second GPU.
func gpuTwoProcesses() *recording.Recording {
	const other = 2001
	s := gpuGraphs(timelinetest.Config{Agent: true})
	libraries(s.Builder, other)
	s.Process(recording.Process{
		PID:     other,
		Parent:  recordtest.PID,
		Comm:    "worker",
		Cmdline: "worker 1",
		Born:    50_000_000,
		Probed:  90_000_000,
	})
	g := s.Meta.GPU
	g.Agents = append(g.Agents, recording.Agent{
		PID:     other,
		State:   "running",
		Stopped: 180_000,
		Slower:  "graphs that ran while recorded stay 6% slower until they are instantiated anew",
	})
	g.Devices = append(g.Devices,
		recording.Device{PID: other, ID: 0, Name: "NVIDIA H200", UUID: "GPU-0a1b"},
		recording.Device{PID: other, ID: 1, Name: "NVIDIA H200", UUID: "GPU-0a1c"})
	g.Ranges = []string{"prefill", "decode"}
	for i := range uint64(40) {
		at := calltest.Start + 50*ms + i*2*ms
		s.Event(event.Event{
			TS:    at,
			Dur:   500 * us,
			PID:   other,
			TID:   20,
			Func:  1<<8 | uint16(i%2),
			Kind:  event.Kernel,
			Flags: event.Timed,
			Args:  [4]uint64{i, 0, 1 | 1<<32 | 1<<48, 64 | 1<<11 | 1<<22},
		})
		s.Event(event.Event{
			TS:    at,
			Dur:   ms,
			PID:   other,
			TID:   other,
			Kind:  event.Range,
			Flags: event.Timed,
			Ret:   int32(1 + i%2),
		})
	}
	s.Event(event.Event{
		TS:    calltest.Start + 60*ms,
		Dur:   2 * ms,
		PID:   other,
		Kind:  event.Overhead,
		Flags: event.Timed,
		Ret:   1,
	})
	rec := s.Run()
	rec.Meta.GPU.Windows = append(rec.Meta.GPU.Windows, recording.GPUWindow{
		PID:      other,
		From:     calltest.Start + 50*ms,
		To:       calltest.Start + 130*ms,
		Activity: true,
		Calls:    true,
		End:      "open",
	})
	return rec
}
