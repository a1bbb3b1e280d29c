package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/event"
	"github.com/inferscope/inferscope/internal/record"
	"github.com/inferscope/inferscope/internal/sampler"
	"github.com/inferscope/inferscope/internal/target"
)

// row is one line of the table.
type row struct {
	name        string
	samples     int
	python      int // samples with Python frames
	origins     [4]int
	depth       int
	attached    time.Time
	unwinder    time.Time // runs, or will not
	firstPython time.Time
	firstWhole  time.Time     // or spliced: with native frames
	cost        time.Duration // of the programs, each sample
	rss         int           // MiB, of this process
}

func (r *row) String() string {
	share := func(n int) string { return fmt.Sprintf("%.2f%%", 100*float64(n)/float64(max(1, r.samples))) }
	return fmt.Sprintf("%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.0f\t%.1f\t%d\t", r.name, r.samples, share(r.python),
		share(r.origins[event.Whole]), share(r.origins[event.Spliced]), share(r.origins[event.Python]), share(r.origins[event.Leaf]),
		ago(r.firstPython, r.attached), ago(r.unwinder, r.attached), ago(r.firstWhole, r.attached),
		float64(r.depth)/float64(max(1, r.samples)), float64(r.cost.Nanoseconds())/1e3, r.rss)
}

// measure runs one workload under the sampler.
func measure(ctx context.Context, python, name string, o *options) (*row, error) {
	cmd, err := begin(ctx, python, name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		return nil, err
	}
	defer stats.Close()
	process, err := target.Describe(cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	defer func() { _ = process.Close() }()
	r := &row{name: name, attached: time.Now()}
	source, err := newSource(o)
	if err != nil {
		return nil, err
	}
	err = source.Follow(process)
	if err == nil {
		r.collect(ctx, source, uint32(cmd.Process.Pid), o)
		r.rss = rssMiB()
		r.cost = cost()
		fmt.Fprintln(os.Stderr, name, source.State().Detail)
		if os.Getenv("SAMPLERBENCH_STACKS") != "" {
			fmt.Fprintln(os.Stderr, source.Losses())
		}
	}
	return r, errors.Join(err, source.Close())
}

// begin starts a workload and waits until it is in its loop.
func begin(ctx context.Context, python, name string) (*exec.Cmd, error) {
	cmd := exec.CommandContext(ctx, python, "-", name)
	cmd.Stdin = bytes.NewReader(script)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the workload: %w", err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		return nil, errors.Join(fmt.Errorf("the workload did not begin: %q: %w", line, err), cmd.Wait())
	}
	return cmd, nil
}

// collect takes the samples of the main thread. Until the native unwinder has
// understood the program and the warm-up is over, they count for the times only.
func (r *row) collect(ctx context.Context, source *sampler.Source, tid uint32, o *options) {
	var warm, end time.Time
	known := map[uint64]stackInfo{}
	for ctx.Err() == nil && (end.IsZero() || time.Now().Before(end)) {
		time.Sleep(20 * time.Millisecond)
		if r.unwinder.IsZero() && settled(source) {
			r.unwinder = time.Now()
		}
		if warm.IsZero() && r.warm(o) {
			warm = time.Now().Add(time.Duration(o.warmup) * time.Second)
			end = warm.Add(time.Duration(o.seconds) * time.Second)
		}
		source.Feed(0, func(batch []event.Event) {
			look(source, batch, known)
			for i := range batch {
				if e := &batch[i]; e.TID == tid && e.Func == uint16(event.Clock) {
					r.count(e, known[e.Args[0]], !warm.IsZero() && time.Now().After(warm))
				}
			}
		})
	}
	if os.Getenv("SAMPLERBENCH_STACKS") != "" {
		show(source, known)
	}
}

// patience is how long the unwinder may take to understand a program.
const patience = 90 * time.Second

// warm says whether the unwinder understands the program, or never will.
func (r *row) warm(o *options) bool {
	return !r.firstWhole.IsZero() || o.own && !r.firstPython.IsZero() || time.Since(r.attached) > patience
}

// settled says whether the native unwinder runs, or will not.
func settled(source *sampler.Source) bool {
	return !strings.HasSuffix(source.State().Detail, "starting")
}

type stackInfo struct{ depth, python int }

// look finds out about the stacks that are new.
func look(source *sampler.Source, batch []event.Event, known map[uint64]stackInfo) {
	var fresh []uint64
	for i := range batch {
		if _, ok := known[batch[i].Args[0]]; !ok {
			fresh = append(fresh, batch[i].Args[0])
		}
	}
	frames, nodes, at := source.Stacks(fresh)
	for _, number := range fresh {
		var s stackInfo
		for n := int32(at[number]) - 1; n >= 0; n = nodes[n].Parent {
			s.depth++
			if frames[nodes[n].Frame].Kind == record.PythonFrame {
				s.python++
			}
		}
		known[number] = s
	}
}

func (r *row) count(e *event.Event, s stackInfo, warm bool) {
	if s.python > 0 && r.firstPython.IsZero() {
		r.firstPython = time.Now()
	}
	if event.StackOrigin(e.Args[1]) <= event.Spliced && s.python > 0 && r.firstWhole.IsZero() {
		r.firstWhole = time.Now()
	}
	if !warm {
		return
	}
	r.samples++
	r.origins[e.Args[1]]++
	r.depth += s.depth
	if s.python > 0 {
		r.python++
	}
}

// show prints some stacks.
func show(source *sampler.Source, known map[uint64]stackInfo) {
	shown := 0
	for number, s := range known {
		if shown++; shown > 3 {
			return
		}
		frames, nodes, at := source.Stacks([]uint64{number})
		fmt.Fprintln(os.Stderr, "--", s)
		for n := int32(at[number]) - 1; n >= 0; n = nodes[n].Parent {
			f := frames[nodes[n].Frame]
			fmt.Fprintf(os.Stderr, "   %-6s %s %s:%d\n", f.Kind, f.Name, f.File, f.Line)
		}
	}
}

// cost returns the mean time of the program that runs on a sample, the unwinder in its tail call included.
func cost() time.Duration {
	var runs uint64
	var total time.Duration
	for id := ebpf.ProgramID(0); ; {
		next, err := ebpf.ProgramGetNextID(id)
		if err != nil {
			break
		}
		id = next
		program, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue
		}
		info, err := program.Info()
		if err == nil && info.Name == "sample_clock" {
			if s, err := program.Stats(); err == nil {
				runs += s.RunCount
				total += s.Runtime
			}
		}
		_ = program.Close()
	}
	if runs == 0 {
		return 0
	}
	return total / time.Duration(runs)
}

func rssMiB() int {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		var kib int
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &kib); n == 1 {
			return kib >> 10
		}
	}
	return 0
}
