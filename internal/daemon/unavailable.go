package daemon

import (
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// Unavailable is a source that records nothing; State returns the error that kept the source of this name from being
// created.
func Unavailable(name string, why error) *NoSource { return &NoSource{name, why} }

// NoSource implements Source and does nothing.
type NoSource struct {
	name string
	why  error
}

// Name returns what the source is called in status and reports.
func (n *NoSource) Name() string { return n.name }

// Follow does nothing.
func (*NoSource) Follow(*proc.Process) error { return nil }

// Forget does nothing.
func (*NoSource) Forget(*proc.Process) {}

// State returns why nothing is recorded.
func (n *NoSource) State() recording.Source {
	return recording.Source{Name: n.name, State: "unavailable", Detail: n.why.Error()}
}

// Losses returns none: State has the reason.
func (*NoSource) Losses() []loss.Loss { return nil }

// Close does nothing.
func (*NoSource) Close() error { return nil }
