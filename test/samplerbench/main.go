// Command samplerbench prints what share of the samples of a Python thread carry its
// Python stack, for code that stack unwinders lose: one row for each workload of
// workloads.py. It needs root, and a Python with the packages of packages, which it
// makes with pip where it is not given one:
//
//	go run ./test/samplerbench [-venv DIR] [-hz 199] [-seconds 10] [row ...]
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"text/tabwriter"
	"time"

	"github.com/inferscope/inferscope/internal/sampler"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "samplerbench:", err)
		os.Exit(1)
	}
}

type options struct {
	venv    string
	hz      int
	seconds int
	warmup  int
	own     bool
	rows    []string
}

func run(ctx context.Context, args []string, out, log io.Writer) error {
	var o options
	set := flag.NewFlagSet("samplerbench", flag.ContinueOnError)
	set.StringVar(&o.venv, "venv", "", "virtual environment with the packages; made in the user's cache where it is not given")
	set.IntVar(&o.hz, "hz", 199, "samples a second")
	set.IntVar(&o.seconds, "seconds", 10, "how long each row is measured")
	set.IntVar(&o.warmup, "warmup", 5, "seconds before that, from the first native stack on")
	set.BoolVar(&o.own, "own-only", false, "without the native unwinder")
	if err := set.Parse(args); err != nil {
		return err
	}
	if o.rows = set.Args(); len(o.rows) == 0 {
		o.rows = workloads()
	}
	python, err := environment(ctx, o.venv, log)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "workload\tsamples\twith Python\twhole\tspliced\tPython+leaf\tleaf\tfirst Python\tunwinder\tfirst native\tdepth\tµs/sample\tRSS MiB\t")
	for _, name := range o.rows {
		r, err := measure(ctx, python, name, &o)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		fmt.Fprintln(w, r)
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return nil
}

func newSource(o *options) (*sampler.Source, error) {
	return sampler.New(sampler.Options{Hz: o.hz, OwnOnly: o.own})
}

func ago(t, since time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.Sub(since).Round(time.Millisecond).String()
}
