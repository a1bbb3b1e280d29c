// Command inferscope asks a running inferscoped what it recorded, and reports what
// it shows. It needs no privileges: everything that does is in the daemon.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/inferscope/inferscope/internal/daemon/config"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording/outfile"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == gateArgument {
		os.Exit(gate(os.Args[2:], os.Environ()))
	}
	stops := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		stops = append(stops, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), stops...)
	// The first signal asks to stop; from then on the second one kills.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, process{
		args: os.Args[1:], environ: os.Environ(), stdout: os.Stdout, stderr: os.Stderr,
	}))
}

// process is the environment of a program. Results go to stdout; messages for people go to stderr.
type process struct {
	args           []string
	environ        config.Environment
	stdout, stderr io.Writer
}

// run is the whole program; it returns the exit code.
func run(ctx context.Context, p process) int {
	for _, w := range p.environ.Warnings() {
		fmt.Fprintf(p.stderr, "inferscope: warning: %s\n", w)
	}
	err := execute(ctx, p)
	if err == nil {
		return int(clierror.OK)
	}
	if code := exitCode(0); errors.As(err, &code) {
		return int(code)
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = errInterrupted
	}
	complain(p.stderr, err)
	return int(clierror.CodeOf(err))
}

// How long a command may take to end after it was cancelled.
const (
	interruptGrace = 100 * time.Millisecond
	memoryGrace    = 30 * time.Millisecond // it goes on taking memory meanwhile
)

// execute runs the command. A command that reads a recording ends at once when the context or the memory limit ends it:
// its work is abandoned with its unfinished files, because the process exits.
func execute(ctx context.Context, p process) error {
	g := newGlobal(p)
	defer g.leaveAll()
	cmd := rootCommand(g)
	cmd.SetArgs(p.args)
	cmd.SetOut(p.stdout)
	cmd.SetErr(p.stderr)
	ended, begun := make(chan error, 1), make(chan context.Context, 1)
	g.begun = func(ctx context.Context) { begun <- ctx }
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	return g.outcome(ctx, ended, begun)
}

// outcome waits for the end of a command, and of its context or the limit on memory where it begins to read recordings.
func (g *global) outcome(ctx context.Context, ended <-chan error, begun <-chan context.Context) error {
	var bounded context.Context
	select {
	case err := <-ended:
		select {
		case bounded = <-begun: // it was done with the recording before anybody looked
			return g.explained(bounded, err)
		default:
			return err
		}
	case bounded = <-begun:
	}
	select {
	case err := <-ended:
		return g.explained(bounded, err)
	case <-bounded.Done():
	}
	grace := interruptGrace
	if ctx.Err() == nil {
		grace = memoryGrace
	}
	select {
	case err := <-ended:
		return g.explained(bounded, err)
	case <-time.After(grace):
	}
	outfile.DiscardAll()
	return g.explained(bounded, context.Cause(bounded))
}

// complain prints an error and its hint. Parts of the text may come from files and daemons.
func complain(w io.Writer, err error) {
	lines := strings.Split("inferscope: "+err.Error(), "\n")
	if hint := clierror.HintOf(err); hint != "" {
		lines = append(lines, strings.Split(hint, "\n")...)
	}
	for _, l := range lines {
		fmt.Fprintln(w, format.Printable(l))
	}
}

var errInterrupted = errors.New("interrupted")
