package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/profile"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
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

// String is the row as the table prints it, its columns apart by tabs: times in s, costs in µs, memory in MiB.
func (r *row) String() string {
	share := func(n int) string { return fmt.Sprintf("%.2f%%", 100*float64(n)/float64(max(1, r.samples))) }
	return fmt.Sprintf("%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.0f\t%.1f\t%d\t",
		r.name, r.samples, share(r.python), share(r.origins[event.Whole]), share(r.origins[event.Spliced]),
		share(r.origins[event.Python]), share(r.origins[event.Leaf]), ago(r.firstPython, r.attached),
		ago(r.unwinder, r.attached), ago(r.firstNative, r.attached), ago(r.firstWhole, r.attached),
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
		Name: r.name, Samples: r.samples, Python: share(r.python), Whole: share(r.origins[event.Whole]),
		Spliced:     share(r.origins[event.Spliced]),
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
	process, err := proc.Describe(cmd.Process.Pid)
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
	if err := inFront(cmd.Process.Pid, 0); err != nil { // before it starts threads
		return nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		return nil, errors.Join(fmt.Errorf("the workload did not begin: %q: %w", line, err), cmd.Wait())
	}
	return cmd, nil
}

// collect takes the samples of the main thread. Until the native unwinder has
// understood the program and the warm-up is over, they count for the times only. What the stacks
// are is looked up afterwards, as a daemon does it when it is asked: naming them reads the kernel's
// symbols each time, beside the unwinder that is being waited for.
func (r *row) collect(ctx context.Context, source *profile.Source, tid uint32, o *options) {
	var warm, end time.Time
	var taken []sample
	for ctx.Err() == nil && (end.IsZero() || time.Now().Before(end)) {
		time.Sleep(20 * time.Millisecond)
		if r.unwinder.IsZero() && settled(source) {
			r.unwinder = time.Now()
		}
		if warm.IsZero() && r.warm(o, taken) {
			warm = time.Now().Add(time.Duration(o.warmup) * time.Second)
			end = warm.Add(time.Duration(o.seconds) * time.Second)
		}
		now := time.Now()
		source.Feed(0, func(batch []event.Event) {
			for i := range batch {
				if e := &batch[i]; e.TID == tid && e.Func == uint16(event.Clock) {
					taken = append(
						taken,
						sample{now, e.Args[0], event.StackOrigin(e.Args[1]), !warm.IsZero() && now.After(warm)},
					)
				}
			}
		})
	}
	known := look(source, taken)
	for i := range taken {
		r.count(&taken[i], known[taken[i].stack])
	}
	if os.Getenv("SAMPLERBENCH_STACKS") != "" {
		show(source, known)
	}
}

// sample is one of the main thread's.
type sample struct {
	seen   time.Time
	stack  uint64 // number
	origin event.StackOrigin
	warm   bool // counts
}

// testTimeout is how long the unwinder may take to understand a program.
const testTimeout = 90 * time.Second

// warm reports whether the unwinder understands the program, or never will.
func (r *row) warm(o *options, taken []sample) bool {
	native := slices.ContainsFunc(taken, func(s sample) bool { return s.origin <= event.Spliced })
	return native || o.own && len(taken) > 0 || time.Since(r.attached) > testTimeout
}

// settled reports whether the native unwinder runs, or will not.
func settled(source *profile.Source) bool {
	return !strings.HasSuffix(source.State().Detail, "starting")
}

type stackInfo struct{ depth, python int }

// look finds out about the stacks.
func look(source *profile.Source, taken []sample) map[uint64]stackInfo {
	known := map[uint64]stackInfo{}
	for i := range taken {
		known[taken[i].stack] = stackInfo{}
	}
	frames, nodes, at := source.Stacks(slices.Collect(maps.Keys(known)))
	for number := range known {
		var s stackInfo
		for n := int32(at[number]) - 1; n >= 0; n = nodes[n].Parent {
			s.depth++
			if frames[nodes[n].Frame].Kind == recording.PythonFrame {
				s.python++
			}
		}
		known[number] = s
	}
	return known
}

func (r *row) count(c *sample, s stackInfo) {
	first := func(at *time.Time, is bool) {
		if is && s.python > 0 && at.IsZero() {
			*at = c.seen
		}
	}
	first(&r.firstPython, true)
	first(&r.firstNative, c.origin <= event.Spliced)
	first(&r.firstWhole, c.origin == event.Whole)
	if !c.warm {
		return
	}
	r.samples++
	r.origins[c.origin]++
	r.depth += s.depth
	if s.python > 0 {
		r.python++
	}
}

// show prints some stacks.
func show(source *profile.Source, known map[uint64]stackInfo) {
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
