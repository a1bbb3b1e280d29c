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
	"github.com/inferscope/inferscope/test/watch"
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
	firstNative time.Time     // with native frames: whole or spliced
	firstWhole  time.Time     // unwound to the thread's start
	cost        time.Duration // of the programs, each sample
	rss         int           // MiB, of this process and the unwinder's
}

func (r *row) String() string {
	share := func(n int) string { return fmt.Sprintf("%.2f%%", 100*float64(n)/float64(max(1, r.samples))) }
	return fmt.Sprintf("%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.0f\t%.1f\t%d\t", r.name, r.samples, share(r.python),
		share(r.origins[event.Whole]), share(r.origins[event.Spliced]), share(r.origins[event.Python]), share(r.origins[event.Leaf]),
		ago(r.firstPython, r.attached), ago(r.unwinder, r.attached), ago(r.firstNative, r.attached), ago(r.firstWhole, r.attached),
		float64(r.depth)/float64(max(1, r.samples)), float64(r.cost.Nanoseconds())/1e3, r.rss)
}

// result is a row as JSON. Shares are fractions, times seconds from the start of the
// sampler, -1 for never.
type result struct {
	Name        string  `json:"name"`
	Samples     int     `json:"samples"`
	Python      float64 `json:"with_python"`
	Whole       float64 `json:"whole"`
	Spliced     float64 `json:"spliced"`
	FirstPython float64 `json:"first_python_s"`
	FirstNative float64 `json:"first_native_s"`
	FirstWhole  float64 `json:"first_whole_s"`
	CostNS      int64   `json:"cost_ns"` // mean of a sample
	RSSMiB      int     `json:"rss_mib"`
}

func (r *row) result() result {
	share := func(n int) float64 { return float64(n) / float64(max(1, r.samples)) }
	since := func(t time.Time) float64 {
		if t.IsZero() {
			return -1
		}
		return t.Sub(r.attached).Seconds()
	}
	return result{
		Name: r.name, Samples: r.samples, Python: share(r.python), Whole: share(r.origins[event.Whole]), Spliced: share(r.origins[event.Spliced]),
		FirstPython: since(r.firstPython), FirstNative: since(r.firstNative), FirstWhole: since(r.firstWhole),
		CostNS: r.cost.Nanoseconds(), RSSMiB: r.rss,
	}
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
	others := programs() // of other daemons on this machine
	r := &row{name: name, attached: time.Now()}
	source, err := newSource(o)
	if err != nil {
		return nil, err
	}
	err = source.Follow(process)
	if err == nil {
		r.collect(ctx, source, uint32(cmd.Process.Pid), o)
		r.rss = int(watch.Resident(os.Getpid(), cmd.Process.Pid) >> 20)
		r.cost = cost(others)
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
	return !r.firstNative.IsZero() || o.own && !r.firstPython.IsZero() || time.Since(r.attached) > patience
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
	origin := event.StackOrigin(e.Args[1])
	if origin <= event.Spliced && s.python > 0 && r.firstNative.IsZero() {
		r.firstNative = time.Now()
	}
	if origin == event.Whole && s.python > 0 && r.firstWhole.IsZero() {
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

// cost returns the mean time of the program that runs on a sample, the unwinder in its
// tail call included; of all that are loaded but others.
func cost(others map[ebpf.ProgramID]bool) time.Duration {
	var runs uint64
	var total time.Duration
	for id := range programs() {
		if others[id] {
			continue
		}
		program, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue
		}
		if s, err := program.Stats(); err == nil {
			runs += s.RunCount
			total += s.Runtime
		}
		_ = program.Close()
	}
	if runs == 0 {
		return 0
	}
	return total / time.Duration(runs)
}

// entryName is the name of the program that runs on a sample (bpf/sample.bpf.c).
const entryName = "sample_clock"

// programs returns the entry programs that are loaded.
func programs() map[ebpf.ProgramID]bool {
	found := map[ebpf.ProgramID]bool{}
	for id := ebpf.ProgramID(0); ; {
		next, err := ebpf.ProgramGetNextID(id)
		if err != nil {
			return found
		}
		id = next
		program, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue
		}
		if info, err := program.Info(); err == nil && info.Name == entryName {
			found[id] = true
		}
		_ = program.Close()
	}
}
