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
	"syscall"

	"github.com/inferscope/inferscope/internal/config"
	"github.com/inferscope/inferscope/internal/fault"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == gateArgument {
		os.Exit(gate(os.Args[2:], os.Environ()))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal asks to stop; from then on the second one kills.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, process{
		args: os.Args[1:], environ: os.Environ(), stdout: os.Stdout, stderr: os.Stderr,
	}))
}

// process is what the operating system gives a program. What a command found goes
// to stdout; stderr is for people.
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
	cmd := rootCommand(p)
	cmd.SetArgs(p.args)
	cmd.SetOut(p.stdout)
	cmd.SetErr(p.stderr)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return int(fault.OK)
	}
	if code := exitCode(0); errors.As(err, &code) {
		return int(code)
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = errInterrupted
	}
	fmt.Fprintf(p.stderr, "inferscope: %v\n", err)
	if hint := fault.HintOf(err); hint != "" {
		fmt.Fprintln(p.stderr, hint)
	}
	return int(fault.CodeOf(err))
}

var errInterrupted = errors.New("interrupted: nothing was written")
