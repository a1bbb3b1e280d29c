package profile

import (
	"fmt"
	"strings"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// State says at what rate threads are sampled, which share of the stacks came which
// way, and what has become of the native unwinder.
func (s *Source) State() recording.Source {
	state := recording.Source{Name: sourceName, State: "running"}
	s.mu.Lock()
	if len(s.procs) == 0 {
		state.State = "waiting"
	}
	s.mu.Unlock()
	by := "the CPU clock"
	switch {
	case s.clock.cycles:
		by = "hardware cycles"
	case s.opts.Cycles:
		by += " (this CPU counts no cycles for us)"
	}
	if s.cpus == nil {
		by += fmt.Sprintf(
			", each thread by an event of its own, which its switches pay for (events of CPUs are refused: %v)",
			s.noCPUs,
		)
	}
	state.Detail = fmt.Sprintf("%s by %s; %s; native unwinder: %s",
		s.Levels()[s.Level()].Name, by, s.tally.shares(), s.unwinderState())
	return state
}

// Helpers returns the process ids of the processes that work for the source.
func (s *Source) Helpers() []int {
	if r, ok := s.library.Load().unwinder.(*remote); ok && r.err() == nil {
		return []int{r.pid()}
	}
	return nil
}

func (s *Source) unwinderState() string {
	l := s.library.Load()
	switch {
	case l.unwinder == nil && l.err == nil:
		return "starting"
	case l.err != nil:
		return "none: " + l.err.Error()
	case l.unwinder.err() != nil:
		return l.unwinder.err().Error()
	}
	return "running"
}

// Losses reports what of the samples is missing or doubtful.
func (s *Source) Losses() []loss.Loss {
	var out []loss.Loss
	add := func(r loss.Reason, n uint64, where, detail string) {
		if n > 0 {
			out = append(out, loss.Loss{Reason: r, Count: n, Where: where, Detail: detail})
		}
	}
	add(loss.SampleLost, s.programs.counts(bpf.SampleSampleCountSAMPLE_COUNT_LOST)+s.tally.malformed.Load(), "", "")
	add(loss.SwitchesShed, s.programs.counts(bpf.SampleSampleCountSAMPLE_COUNT_SHED), "", "")
	add(loss.StackSpliced, s.tally.origins[event.Spliced].Load(), "", strings.Trim(s.tally.mostCut(), " ()"))
	add(loss.StackPython, s.tally.origins[event.Python].Load(), "", "")
	add(loss.StackLeaf, s.tally.origins[event.Leaf].Load(), "", "")
	if s.cpus != nil {
		add(loss.SwitchesShed, s.cpus.skipped(), "",
			fmt.Sprintf("on CPUs that switch more than %d times a second", maxSwitchRate))
		if left, why := s.cpus.unsampled(); len(left) > 0 {
			add(loss.ThreadUnsampled, uint64(len(left)), "the CPUs "+strings.Join(left, ", "), why.Error())
		}
	}
	for pid, n := range s.modules.unnamed() {
		add(loss.StackUnnamed, n, fmt.Sprintf("pid %d", pid), fmt.Sprintf("more than %d files", maxModules))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for pid, q := range s.procs {
		if q.left.threads > 0 {
			add(loss.ThreadUnsampled, uint64(q.left.threads), fmt.Sprintf("pid %d", pid), q.left.why.Error())
		}
		if n := q.storm.pauses; n > 0 {
			add(loss.SamplesPaused, n, fmt.Sprintf("pid %d", pid), q.storm.String())
		}
		if q.refused != nil {
			add(loss.PythonRefused, 1, fmt.Sprintf("pid %d", pid), q.refused.Error())
		}
	}
	return out
}
