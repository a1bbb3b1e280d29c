package ring

import (
	"fmt"

	"github.com/inferscope/inferscope/internal/recording/loss"
)

// reasons maps enum loss_reason of bpf/event.h to the registry.
func reasons() []loss.Reason {
	return []loss.Reason{loss.RingFull, loss.CallDepth, loss.ThreadStorage, loss.ReturnOnly, loss.CallsSkipped}
}

// Losses returns what was lost since the rings were made, by reason and then by
// CPU (Where is "cpu 3"); what did not happen is left out. An error means that the
// counters could not be read, so that nothing is known about losses.
func (r *Rings) Losses() ([]loss.Loss, error) {
	var all []loss.Loss
	for i, reason := range reasons() {
		var perCPU []uint64
		if err := r.losses.Lookup(uint32(i), &perCPU); err != nil {
			return nil, fmt.Errorf("read the loss counters for %s: %w", reason, err)
		}
		for cpu, n := range perCPU {
			if n > 0 {
				all = append(all, loss.Loss{Reason: reason, Count: n, CPU: loss.CPUOf(cpu), Where: cpuName(cpu)})
			}
		}
	}
	if n := r.malformed.Load(); n > 0 {
		all = append(all, loss.Loss{Reason: loss.Malformed, Count: n})
	}
	return all, nil
}

func cpuName(cpu int) string { return fmt.Sprintf("cpu %d", cpu) }
