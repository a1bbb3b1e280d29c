// Package child starts the programs that tests watch and talk to.
package child

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

// Child is a running program, which ends with its test at the latest.
type Child struct {
	PID int
	In  io.WriteCloser
	Out *bufio.Scanner
	tb  testing.TB
	cmd *exec.Cmd
}

// Start starts a program. Its standard error is the test's unless it has one of its own.
func Start(tb testing.TB, cmd *exec.Cmd) *Child {
	tb.Helper()
	if cmd.Stderr == nil {
		cmd.Stderr = os.Stderr
	}
	in, err := cmd.StdinPipe()
	must.NoError(tb, err)
	out, err := cmd.StdoutPipe()
	must.NoError(tb, err)
	must.NoError(tb, cmd.Start())
	c := &Child{PID: cmd.Process.Pid, In: in, Out: bufio.NewScanner(out), tb: tb, cmd: cmd}
	tb.Cleanup(c.Kill)
	return c
}

// Line returns the next line that it writes.
func (c *Child) Line() string {
	c.tb.Helper()
	if !c.Out.Scan() {
		c.tb.Fatalf("%s ended, or says nothing: %v", c.cmd.Path, c.Out.Err())
	}
	return c.Out.Text()
}

// Wait closes its standard input and returns how it ended.
func (c *Child) Wait() error {
	_ = c.In.Close()
	return c.cmd.Wait()
}

// Kill ends it at once, where it has not ended.
func (c *Child) Kill() {
	_ = c.cmd.Process.Kill()
	_ = c.Wait()
}

// NoticesHangup lets programs that the test starts notice SIGHUP, also where the test itself runs under nohup.
func NoticesHangup(tb testing.TB) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	tb.Cleanup(func() { signal.Stop(hangups) })
}
