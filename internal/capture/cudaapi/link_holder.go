package cudaapi

import "github.com/inferscope/inferscope/internal/recording/loss"

// Helpers returns the process id of the link holder, while there is one. It implements daemon.Helped.
func (s *Source) Helpers() []int {
	if s.opts.LinkHolder == nil || s.opts.LinkHolder.Err() != nil {
		return nil
	}
	return []int{s.opts.LinkHolder.PID()}
}

// lost reports why no call is seen any more, nil where they are: the probes go with the process that holds them.
func (s *Source) lost() error {
	if s.opts.LinkHolder == nil {
		return nil
	}
	return s.opts.LinkHolder.Err()
}

// unprobed is the loss of a library whose probes have gone.
func (l *library) unprobed(where string, why error) loss.Loss {
	return loss.Loss{
		Reason: loss.ProbeFailed,
		Count:  uint64(l.row.Points),
		PID:    l.row.PID,
		Where:  where,
		Detail: why.Error(),
	}
}
