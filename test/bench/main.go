// Command bench measures what watching costs, on this machine, and holds it
// against the goals of the project. It needs root.
//
//	sudo go run ./test/bench          (or: sudo make bench)
//
// It prints one table on standard output. A goal that is missed is printed and
// does not fail the run: timings are not tests. The exit code is 1 where something
// could not be measured, or where what was seen is not what was done.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/profile"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == profile.HelperArgument {
		if err := profile.RunHelper(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	testing.Init() // nvlibs asks for -short
	rounds := flag.Int("rounds", 9, "rounds of each measurement of calls")
	daemon := flag.String("daemon", "", "the inferscoped to measure; it is built where none is named")
	cost := flag.String(
		"cost",
		"",
		"print instead what each source adds to programs that make steps, of those whose name matches (. for all)",
	)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := start(ctx, *rounds, *daemon, *cost)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// start runs the measurement that was asked for.
func start(ctx context.Context, rounds int, daemon, cost string) error {
	if rounds < 1 || rounds > 1000 {
		return fmt.Errorf("-rounds %d: choose 1 to 1000", rounds)
	}
	if cost == "" {
		return run(ctx, os.Stdout, os.Stderr, rounds, daemon)
	}
	only, err := regexp.Compile(cost)
	if err != nil {
		return fmt.Errorf("-cost: %w", err)
	}
	return costTable(ctx, os.Stdout, os.Stderr, rounds, only)
}

// lab is what all measurements share.
type lab struct {
	rounds int
	dir    string // for what is built here
	driver string // the program that makes the calls
	daemon string // the inferscoped that is measured; "": one that is built
	sim    cudasim.Paths
	cpu    int // where the driver runs; -1: anywhere, because there is but one
	said   io.Writer
}

func (l *lab) say(format string, args ...any) { fmt.Fprintf(l.said, format+"\n", args...) }

func run(ctx context.Context, out, said io.Writer, rounds int, daemon string) error {
	if os.Geteuid() != 0 {
		return errors.New("attaching probes needs root: run it with sudo")
	}
	l, err := prepare(ctx, said, rounds)
	if err != nil {
		return err
	}
	defer os.RemoveAll(l.dir)
	l.daemon = daemon
	start := time.Now()
	var t table
	var errs []error
	for _, part := range []func(context.Context, *lab, *table) error{
		callCosts, daemonCost, sampleCosts, attachCosts, drainCosts,
	} {
		if err := part(ctx, l, &t); err != nil {
			errs = append(errs, err)
		}
		if ctx.Err() != nil {
			return errors.Join(append(errs, ctx.Err())...)
		}
	}
	fmt.Fprintf(out, "What probes cost: kernel %s, %s, %d CPUs, %s, load %s, %d rounds, %.0f s\n\n",
		kernel(), runtime.GOARCH, runtime.NumCPU(), model(), load(), rounds, time.Since(start).Seconds())
	t.print(out)
	return errors.Join(errs...)
}

// prepare builds what makes the calls.
func prepare(ctx context.Context, said io.Writer, rounds int) (*lab, error) {
	l := &lab{rounds: rounds, said: said, cpu: -1}
	if n := runtime.NumCPU(); n > 1 {
		l.cpu = n - 1
	}
	if err := attempt(func(tb testing.TB) { l.sim = cudasim.Build(tb) }); err != nil {
		return nil, fmt.Errorf("build the simulated CUDA: %w", err)
	}
	var err error
	if l.dir, err = os.MkdirTemp("", "inferscope-bench-"); err != nil {
		return nil, fmt.Errorf("make a folder to build in: %w", err)
	}
	if l.driver, err = buildDriver(ctx, l.sim.Root, l.dir); err != nil {
		os.RemoveAll(l.dir)
		return nil, err
	}
	return l, nil
}
