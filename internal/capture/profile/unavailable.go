package profile

import (
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// Unavailable is a source that takes no samples, and says why: New's error.
func Unavailable(why error) *NoSource { return &NoSource{why} }

// NoSource implements daemon.Source and does nothing.
type NoSource struct{ why error }

// Name returns what the source is called in status and reports.
func (*NoSource) Name() string { return sourceName }

// Follow does nothing.
func (*NoSource) Follow(*proc.Process) error { return nil }

// Forget does nothing.
func (*NoSource) Forget(*proc.Process) {}

// State says why there are no samples.
func (n *NoSource) State() recording.Source {
	return recording.Source{Name: sourceName, State: "unavailable", Detail: n.why.Error()}
}

// Losses returns nothing: State says it.
func (*NoSource) Losses() []loss.Loss { return nil }

// Close does nothing.
func (*NoSource) Close() error { return nil }
