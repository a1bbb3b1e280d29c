// Command samplerbench prints what share of the samples of a Python thread carry its
// Python stack, for code that stack unwinders lose: one row for each workload of
// workloads.py, and the time from the start of the sampler until stacks come. It
// needs root, and a Python with the packages of packages, which it makes with pip
// where it is not given one:
//
//	go run ./test/samplerbench [-venv DIR | -python FILE] [-hz 199] [-seconds 10] [-nice -10] [-json FILE] [row ...]
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/profile"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == profile.HelperArgument {
		if err := profile.RunHelper(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "samplerbench:", err)
			os.Exit(1)
		}
		return
	}
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
	python  string
	json    string
	hz      int
	seconds int
	warmup  int
	nice    int
	own     bool
	rows    []string
}

func run(ctx context.Context, args []string, out, log io.Writer) error {
	var o options
	set := flag.NewFlagSet("samplerbench", flag.ContinueOnError)
	set.StringVar(&o.venv, "venv", "",
		"virtual environment with the packages; made in the user's cache where it is not given")
	set.StringVar(&o.python, "python", "",
		"interpreter that has the packages of the rows asked for, in place of a virtual environment")
	set.StringVar(&o.json, "json", "", "file to write the rows to, too")
	set.IntVar(&o.hz, "hz", 199, "samples a second")
	set.IntVar(&o.seconds, "seconds", 10, "how long each row is measured")
	set.IntVar(&o.warmup, "warmup", 5, "seconds before that, from the first native stack on")
	set.IntVar(&o.nice, "nice", daemonNice, "priority of the sampler; the workload has 0")
	set.BoolVar(&o.own, "own-only", false, "without the native unwinder")
	if err := set.Parse(args); err != nil {
		return err
	}
	if o.rows = set.Args(); len(o.rows) == 0 {
		o.rows = workloads()
	}
	if err := inFront(os.Getpid(), o.nice); err != nil {
		return err
	}
	if o.python == "" {
		python, err := environment(ctx, o.venv, log)
		if err != nil {
			return err
		}
		o.python = python
	}
	return table(ctx, &o, out, log)
}

// header names the columns of row.String.
const header = "workload\tsamples\twith Python\twhole\tspliced\tPython+leaf\tleaf\tfirst Python\tunwinder\tfirst " +
	"native\tfirst whole\tdepth\tµs/sample\tRSS MiB\t"

// table measures the rows one after the other. A row that cannot run, for want of a
// package say, is noted and left out; it is an error if none could.
func table(ctx context.Context, o *options, out, log io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, header)
	var rows []result
	for _, name := range o.rows {
		r, err := measure(ctx, o.python, name, o)
		if err != nil {
			fmt.Fprintf(log, "samplerbench: no row %s: %v\n", name, err)
			continue
		}
		rows = append(rows, r.result())
		fmt.Fprintln(w, r)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(rows) == 0 {
		return fmt.Errorf("no row of %v could be measured with %s: the lines above say why", o.rows, o.python)
	}
	return save(o.json, rows)
}

// save writes the rows as JSON to path, where there is one.
func save(path string, rows []result) error {
	if path == "" {
		return nil
	}
	text, err := json.MarshalIndent(rows, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// daemonNice is the priority of inferscoped's threads, and at first of the unwinder's process.
const daemonNice = -10

// inFront sets the priority of all threads of a process; those that come inherit it.
func inFront(pid, nice int) error {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return err
	}
	for _, task := range tasks {
		if tid, err := strconv.Atoi(task.Name()); err == nil {
			if err := unix.Setpriority(unix.PRIO_PROCESS, tid, nice); err != nil {
				return fmt.Errorf("set the priority of thread %d to %d: %w", tid, nice, err)
			}
		}
	}
	return nil
}

// newSource makes the source as the daemon does, with the unwinder in a process of its own.
func newSource(o *options) (*profile.Source, error) {
	return profile.New(profile.Options{Hz: o.hz, OwnOnly: o.own, Helper: []string{"/proc/self/exe"}})
}

func ago(t, since time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.Sub(since).Round(time.Millisecond).String()
}
