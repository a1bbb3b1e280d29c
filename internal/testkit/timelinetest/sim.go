// Package timelinetest makes recordings of programs that use a GPU, for the tests of
// whatever reads them: threads launch kernels, copies and graphs into streams, a device
// runs them, and what a daemon would record of it comes out, with the truth beside it.
package timelinetest

import (
	"math/rand/v2"
	"slices"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// Start is the beginning of a recording's window, ns.
const Start = calltest.Start

// Config describes how a program is recorded.
type Config struct {
	Seed        uint64
	Agent       bool    // calls come from the agent, with correlation ids; else from probes
	Both        bool    // graph launches, copies and sets come from probes too, as in a daemon
	Length      uint64  // of the recording, ns; 0: one second
	Windows     []Span  // in which GPU records are taken, ns after Start; nil: all the time
	CallsLate   uint64  // ns from the beginning of a window to the first call that is seen
	LoseCalls   float64 // share of launches, copies and sets that were not recorded
	LoseRecords float64 // share of activities that were not recorded
	Burst       int     // so many are lost at a time; 0: one
	Skew        int64   // ns by which the GPU's clock is ahead
	NoSyncs     bool    // synchronizations are not recorded by CUPTI, only their calls
}

// Span is a stretch of time, ns.
type Span struct{ From, To uint64 }

// Between returns a Span.
func Between(from, to uint64) Span { return Span{From: from, To: to} }

// Truth is the call that asked for an activity.
type Truth struct {
	TID   uint32
	Start uint64 // ns: when the call began
	Seen  bool   // the recording has it
}

// truthKey is a correlation id in the window it was given out in.
type truthKey struct {
	window int
	id     uint32
}

// Sim is a program under way.
type Sim struct {
	*calltest.Builder
	Config Config
	truth  map[truthKey]Truth
	// Launched and Ran are how many calls started something and how many activities
	// there were; CallsLost and RecordsLost how many of them a window should have but lost.
	Launched, Ran, CallsLost, RecordsLost int

	rng       *rand.Rand
	id        uint32
	was       int // window of the last call
	threads   []*Thread
	streams   []*Stream
	kernels   map[string]int32
	burstCall int
	burstWork int
}

// New begins a program of process recordtest.PID on one device.
func New(c Config) *Sim {
	if c.Length == 0 {
		c.Length = calltest.Second
	}
	s := &Sim{
		Builder: calltest.New(),
		Config:  c,
		truth:   map[truthKey]Truth{},
		rng:     rand.New(rand.NewPCG(c.Seed, 7)),
		kernels: map[string]int32{},
		id:      1000,
	}
	s.Window(Start, Start+c.Length)
	s.Meta.GPU = &recording.GPU{
		Mode: "continuous",
		Agents: []recording.Agent{
			{
				PID:     recordtest.PID,
				State:   "running",
				CUPTI:   "/usr/local/cuda/lib64/libcupti.so.13",
				Version: 130001,
				Stopped: 210_000,
				Joined:  Start - 500*calltest.Millisecond,
			},
		},
		Devices: []recording.Device{
			{
				PID:      recordtest.PID,
				ID:       0,
				Name:     "NVIDIA H200",
				UUID:     "GPU-0a1b",
				SMs:      132,
				Memory:   150_754_820_096,
				PeakRate: 4_814_000_000_000,
				Major:    9,
			},
		},
	}
	if c.Windows == nil {
		s.Config.Windows = []Span{{0, c.Length}}
	} else {
		s.Meta.GPU.Mode = "windows"
	}
	return s
}

// Stream is a CUDA stream; the zero Handle is the default one.
type Stream struct {
	Handle  uint64
	ID      uint32
	Device  uint8
	Context uint8
	free    uint64 // ns: when all that is in it will have ended
}

// Stream adds a stream.
func (s *Sim) Stream(handle uint64, id uint32) *Stream {
	st := &Stream{Handle: handle, ID: id, Context: 1}
	s.streams = append(s.streams, st)
	s.Meta.GPU.Streams = append(s.Meta.GPU.Streams, recording.Stream{PID: recordtest.PID, ID: id, Context: 1})
	return st
}

// Kernel is a kernel as a program launches it.
type Kernel struct {
	Name        string
	Handle      uint64
	Grid, Block [3]uint32
	Dur         uint64 // ns
}

// Thread is a thread of the program.
type Thread struct {
	s     *Sim
	TID   uint32
	Now   uint64 // ns
	steps []func(*Thread)
}

// Spawn adds a thread; what it does is added with Then.
func (s *Sim) Spawn(tid uint32) *Thread {
	t := &Thread{s: s, TID: tid, Now: Start}
	s.threads = append(s.threads, t)
	return t
}

// Then adds a step. Steps of different threads run in the order of their times.
func (t *Thread) Then(step func(*Thread)) { t.steps = append(t.steps, step) }

// Run runs the steps of all threads, until they or the recording end, and returns the recording.
func (s *Sim) Run() *recording.Recording {
	for {
		var next *Thread
		for _, t := range s.threads {
			if len(t.steps) > 0 && (next == nil || t.Now < next.Now) {
				next = t
			}
		}
		if next == nil || next.Now >= Start+s.Config.Length {
			break
		}
		step := next.steps[0]
		next.steps = next.steps[1:]
		step(next)
	}
	s.windows()
	return s.Recording()
}

// windows writes down when GPU records were taken, and what was lost, as a daemon does.
func (s *Sim) windows() {
	if s.CallsLost > 0 {
		s.Loss(loss.Loss{Reason: loss.RingFull, Count: uint64(s.CallsLost), Where: "cpu 0"})
	}
	for _, w := range s.Config.Windows {
		s.Meta.GPU.Windows = append(s.Meta.GPU.Windows, recording.GPUWindow{
			PID: recordtest.PID, From: Start + w.From, To: Start + w.To, Activity: true, Calls: true, End: "finalized",
			Dropped: uint64(s.RecordsLost / len(s.Config.Windows)),
		})
	}
}

// in returns the index of the window that holds a time, -1 for none.
func (s *Sim) in(at uint64) int {
	return slices.IndexFunc(s.Config.Windows, func(w Span) bool { return at >= Start+w.From && at < Start+w.To })
}

// window returns the window that holds a time, nil for none.
func (s *Sim) window(at uint64) *Span {
	if i := s.in(at); i >= 0 {
		return &s.Config.Windows[i]
	}
	return nil
}

// Asked returns the call that asked for the activity of an event.
func (s *Sim) Asked(e *event.Event) Truth {
	return s.truth[truthKey{s.in(uint64(int64(e.TS) - s.Config.Skew)), uint32(e.Args[0])}]
}

// lost throws the dice; losses come in bursts.
func (s *Sim) lost(share float64, left *int) bool {
	burst := max(1, s.Config.Burst)
	if *left == 0 && s.rng.Float64() < share/float64(burst) {
		*left = burst
	}
	if *left == 0 {
		return false
	}
	*left--
	return true
}

// call records a call of the program that starts something, and returns its correlation id and whether GPU records are
// taken of it.
func (t *Thread) call(name string, cost uint64, args ...uint64) (id uint32, on bool) {
	s := t.s
	s.id += 1 + uint32(s.rng.IntN(2))
	s.Launched++
	at := s.in(t.Now)
	if at != s.was && at >= 0 { // a subscription of its own
		s.id = 7
	}
	s.was = at
	w := s.window(t.Now)
	seen := w != nil && t.Now >= Start+w.From+s.Config.CallsLate
	if seen && s.lost(s.Config.LoseCalls, &s.burstCall) {
		seen, s.CallsLost = false, s.CallsLost+1
	}
	s.truth[truthKey{at, s.id}] = Truth{t.TID, t.Now, seen}
	s.As(recordtest.PID, t.TID)
	always := s.Config.Both && name != "cuLaunchKernel"
	if always {
		s.Do(name, int64(t.Now-Start), cost, args...)
	}
	if seen && s.Config.Agent {
		e := event.Event{
			TS:    t.Now,
			Dur:   cost,
			PID:   recordtest.PID,
			TID:   t.TID,
			Func:  s.Fn(name),
			Kind:  event.Call,
			Flags: event.Timed | event.Correlated,
			Ret:   int32(s.id),
		}
		if always {
			e.TS, e.Dur = e.TS+100, cost-200
			s.truth[truthKey{at, s.id}] = Truth{t.TID, e.TS, seen}
		}
		copy(e.Args[:], args)
		s.Event(e)
	} else if seen && !always {
		s.Do(name, int64(t.Now-Start), cost, args...)
	}
	t.Now += cost
	return s.id, w != nil
}

// Launch launches a kernel; the call takes cost ns.
func (t *Thread) Launch(st *Stream, k Kernel, cost uint64) {
	grid := uint64(k.Grid[0]) | uint64(k.Grid[1])<<32 | uint64(k.Grid[2])<<48
	block := uint64(k.Block[0]) | uint64(k.Block[1])<<11 | uint64(k.Block[2])<<22
	start := t.Now
	id, on := t.call("cuLaunchKernel", cost, k.Handle, st.Handle, grid, block)
	e := event.Event{Kind: event.Kernel, Ret: t.s.kernel(k.Name), Args: [4]uint64{uint64(id), 0, grid, block}}
	t.s.run(st, start, k.Dur, e, on)
}

// kernel returns what Ret of a kernel's events is.
func (s *Sim) kernel(name string) int32 {
	if i, ok := s.kernels[name]; ok {
		return i
	}
	s.Meta.GPU.Kernels = append(s.Meta.GPU.Kernels, recording.Kernel{Name: name, Registers: 40})
	s.kernels[name] = int32(len(s.Meta.GPU.Kernels))
	return s.kernels[name]
}

// Latency is the least time from a launch to the beginning of its kernel, ns; up to 5 µs are added.
const Latency = 6_500

// run lets the device run something after all that is in the stream.
func (s *Sim) run(st *Stream, asked, dur uint64, e event.Event, on bool) {
	start := max(asked+Latency+s.rng.Uint64N(2000), st.free+800+s.rng.Uint64N(400))
	if s.rng.IntN(50) == 0 {
		start += s.rng.Uint64N(5000)
	}
	st.free = start + dur
	s.record(st, start, dur, e, on)
}

// record writes an activity down, unless no record was taken of it, or it came too late for its window.
func (s *Sim) record(st *Stream, start, dur uint64, e event.Event, on bool) {
	s.Ran++
	w := s.window(start)
	if !on || w == nil || start+dur > Start+w.To {
		return
	}
	if s.lost(s.Config.LoseRecords, &s.burstWork) {
		s.RecordsLost++
		return
	}
	e.TS, e.Dur, e.Flags = uint64(int64(start)+s.Config.Skew), dur, event.Timed
	e.PID, e.TID, e.Func = recordtest.PID, st.ID, uint16(st.Device)|uint16(st.Context)<<8
	s.Event(e)
}
