package sampler

import (
	"github.com/inferscope/inferscope/internal/loss"
	"github.com/inferscope/inferscope/internal/record"
	"github.com/inferscope/inferscope/internal/target"
)

// Unavailable is a source that takes no samples, and says why: New's error.
func Unavailable(why error) *NoSource { return &NoSource{why} }

// NoSource implements daemon.Source and does nothing.
type NoSource struct{ why error }

// Name returns what the source is called in status and reports.
func (*NoSource) Name() string { return Name }

// Follow does nothing.
func (*NoSource) Follow(*target.Process) error { return nil }

// Forget does nothing.
func (*NoSource) Forget(*target.Process) {}

// State says why there are no samples.
func (n *NoSource) State() record.Source {
	return record.Source{Name: Name, State: "unavailable", Detail: n.why.Error()}
}

// Losses returns nothing: State says it.
func (*NoSource) Losses() []loss.Loss { return nil }

// Close does nothing.
func (*NoSource) Close() error { return nil }
