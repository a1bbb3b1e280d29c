package uprobe

import (
	"fmt"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// perWindow is how many of the windows in which the rate of calls is looked at are in a second (SKIP_WINDOW).
const perWindow = 10

// SetFrequent sets how many calls a second of one frequent function a thread may make that
// each have an event.
func (a *Attacher) SetFrequent(calls uint64) error {
	if err := a.coll.Variables[bpf.CallsVarCallsInWindow].Set(max(1, calls/perWindow)); err != nil {
		return fmt.Errorf("tell the programs for CUDA calls which are frequent: %w", err)
	}
	return nil
}

// Skipped returns an event for the calls that have been counted and are in none yet, with event.Open.
func (a *Attacher) Skipped(to uint64) []event.Event {
	var out []event.Event
	var key uint64
	var s bpf.CallsSkips
	for all := a.coll.Maps[bpf.CallsMapSkippedCalls].Iterate(); all.Next(&key, &s); {
		if s.Outer|s.Inner == 0 || s.From >= to {
			continue
		}
		out = append(out, event.Event{
			TS: s.From, Dur: to - s.From, PID: s.Pid, TID: uint32(key), Func: uint16(key >> 32), Kind: event.Skipped,
			Flags: event.Timed | event.Open, Ret: int32(s.Every), Args: [4]uint64{uint64(s.Outer), uint64(s.Inner)},
		})
	}
	return out
}
