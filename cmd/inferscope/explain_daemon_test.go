package main

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestTemporaryDaemonIsExplained holds that nobody is sent to the log of a temporary daemon, which is removed with it.
func TestTemporaryDaemonIsExplained(t *testing.T) {
	mute := clierror.New(clierror.NoDaemon, "look into the daemon's log", errors.New("the daemon does not answer"))
	var running *watcher
	if got := running.explain(mute); !errors.Is(got, mute) || clierror.HintOf(got) != mute.Hint {
		t.Errorf("of a running daemon: %v", got)
	}
	w := &watcher{own: &exec.Cmd{}, dir: t.TempDir()}
	must.NoError(t, os.WriteFile(w.log(), []byte("it waits for a lock\n"), 0o600))
	if other := errors.New("no such process"); w.explain(other).Error() != other.Error() || w.explain(nil) != nil {
		t.Error("an answer of the daemon is explained")
	}
	got := w.explain(mute)
	if clierror.CodeOf(got) != clierror.NoDaemon || strings.Contains(clierror.HintOf(got), "log") ||
		!strings.Contains(got.Error(), "it waits for a lock") {
		t.Errorf("%v; %s", got, clierror.HintOf(got))
	}
}
