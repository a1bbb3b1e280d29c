// Command benchpaired runs the Go benchmarks that two commits have in common, in turns, and prints how much CPU time an
// operation takes at the second against the first:
//
//	benchpaired -before COMMIT [-after COMMIT] [-rounds N] [-bench PATTERN] [-packages OLD=NEW,...] [-wall]
//
// A round runs each benchmark of both commits with N operations and with 3 N, and takes the difference of the CPU time
// of these processes: what a benchmark prepares cancels out, and what else runs on the machine counts little. The order
// changes with each round. With -wall a round runs all benchmarks of a package in one process of each commit, and takes
// what they say themselves: for an idle machine, where it is a tenth of the work, and for benchmarks that prepare much
// more than they measure. The table has the median of the ratios and the interval that holds the true median with a
// probability of 95% or more (from the smallest to the largest up to 8 rounds, 97% of 6). "WORSE" is one that is above
// 1.05 as a whole, "unclear" one that holds 1.05.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// hot are the packages of the first commit that events pass through, and where they are since the redesign.
const hot = "internal/record=internal/recording,internal/isc=internal/recording/archive,internal/ring=internal/capture/ring," +
	"internal/export=internal/report/export,internal/cuda=internal/cuda,internal/daemon=internal/daemon," +
	"internal/timeline=internal/analysis/timeline,internal/analyze/gpu=internal/analysis/summary/gpu," +
	"internal/analyze/cpu=internal/analysis/summary/cpu,internal/gap=internal/analysis/gap," +
	"internal/diagnose=internal/analysis/diagnose,internal/replay=internal/analysis/whatif/replay," +
	"internal/importer=internal/recording/importer"

const (
	limit     = 1.05 // above it is worse
	processes = "2"  // GOMAXPROCS; names of benchmarks end with it
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchpaired:", err)
		os.Exit(1)
	}
}

// pair is a benchmark that both commits have.
type pair struct {
	name string
	side [2]side
	took [2][]time.Duration // an operation, in each round
}

// side is the test binary of one commit.
type side struct{ binary, folder string }

func run(ctx context.Context, args []string, out, said io.Writer) error {
	flags := flag.NewFlagSet("benchpaired", flag.ContinueOnError)
	before := flags.String("before", "", "the commit that is compared with")
	after := flags.String("after", "HEAD", "the commit that is compared")
	rounds := flags.Int("rounds", 6, "of each benchmark")
	bench := flags.String("bench", ".", "benchmarks, as go test takes them")
	packages := flags.String("packages", hot, "folders of packages, OLD=NEW or one for both, with commas")
	wall := flags.Bool("wall", false, "take the time that benchmarks say, on an idle machine, in place of CPU time")
	least := flags.Duration("time", 200*time.Millisecond, "of the shorter run, about")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *before == "" {
		return errors.New("-before is missing: name the commit to compare with")
	}
	folder, err := os.MkdirTemp("", "benchpaired-")
	if err != nil {
		return fmt.Errorf("make a folder for the two trees: %w", err)
	}
	defer os.RemoveAll(folder)
	trees := [2]string{filepath.Join(folder, "before"), filepath.Join(folder, "after")}
	for i, commit := range []string{*before, *after} {
		if err := checkOut(ctx, trees[i], commit); err != nil {
			return err
		}
		defer remove(trees[i])
	}
	what, measure := "CPU time", cpuTimes
	if *wall {
		what, measure = "time", wallTimes
	}
	fmt.Fprintf(out, "| %s of an operation | %s | %s | ratio | 95%% | |\n", what, *before, *after)
	fmt.Fprintln(out, "|---|---|---|---|---|---|")
	for p := range strings.SplitSeq(*packages, ",") {
		began := time.Now()
		pairs, err := build(ctx, folder, trees, p, *bench)
		if err != nil {
			fmt.Fprintf(said, "%s is left out: %v\n", p, err)
			continue
		}
		if err := measure(ctx, pairs, *bench, *rounds, *least); err != nil {
			fmt.Fprintf(said, "%s: %v\n", p, err)
		}
		for i := range pairs {
			if err := pairs[i].print(out); err != nil {
				fmt.Fprintf(said, "%s is left out: %v\n", pairs[i].name, err)
			}
		}
		fmt.Fprintf(said, "%s took %v\n", p, time.Since(began).Round(time.Second))
	}
	return ctx.Err()
}

// checkOut puts a commit into a folder of its own.
func checkOut(ctx context.Context, folder, commit string) error {
	text, err := exec.CommandContext(ctx, "git", "worktree", "add", "-q", "--detach", folder, commit).CombinedOutput()
	if err != nil {
		return fmt.Errorf("check %s out (is it a commit of this repository?): %w\n%s", commit, err, text)
	}
	return nil
}

func remove(folder string) {
	// It is no use to anybody: what is left of it, git worktree prune forgets.
	_ = exec.CommandContext(context.Background(), "git", "worktree", "remove", "--force", folder).Run()
}

// build compiles the tests of a package at both commits, and returns the benchmarks that both have.
func build(ctx context.Context, folder string, trees [2]string, folders, bench string) ([]pair, error) {
	older, newer, moved := strings.Cut(folders, "=")
	if !moved {
		newer = older
	}
	var sides [2]side
	var names [2][]string
	for i := range sides {
		f := where(trees[i], older, newer)
		sides[i] = side{
			binary: filepath.Join(folder, fmt.Sprintf("%s-%d.test", strings.ReplaceAll(newer, "/", "-"), i)),
			folder: filepath.Join(trees[i], f),
		}
		cmd := exec.CommandContext(ctx, "go", "test", "-c", "-o", sides[i].binary, ".")
		cmd.Dir = sides[i].folder
		if text, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("compile the tests of %s: %w\n%s", f, err, text)
		}
		text, _, err := sides[i].run(ctx, bench, "1x")
		if err != nil && len(benchmarks(text)) == 0 {
			return nil, fmt.Errorf("run the benchmarks of %s: %w", f, err)
		}
		for name := range benchmarks(text) {
			names[i] = append(names[i], name)
		}
	}
	var pairs []pair
	slices.Sort(names[1])
	for _, name := range names[1] {
		if slices.Contains(names[0], name) {
			pairs = append(pairs, pair{name: newer + " " + name, side: sides})
		}
	}
	if len(pairs) == 0 {
		return nil, fmt.Errorf("no benchmark of both matches %q", bench)
	}
	return pairs, nil
}

// where returns the folder of a package that was moved, in a tree from before that or after.
func where(tree, older, newer string) string {
	if _, err := os.Stat(filepath.Join(tree, newer)); err != nil {
		return older
	}
	return newer
}

var line = regexp.MustCompile(`(?m)^Benchmark(\S+)-` + processes + `\s+(\d+)\s+(\S+) ns/op`)

// result is what a benchmark says.
type result struct {
	n    int // operations
	each time.Duration
}

// benchmarks returns what each of the benchmarks said.
func benchmarks(text string) map[string]result {
	found := map[string]result{}
	for _, m := range line.FindAllStringSubmatch(text, -1) {
		n, _ := strconv.Atoi(m[2])
		ns, _ := strconv.ParseFloat(m[3], 64)
		found[m[1]] = result{n, time.Duration(ns)}
	}
	return found
}

// run runs the benchmarks that match, and returns what they said and their CPU time.
func (s side) run(ctx context.Context, bench, times string) (string, time.Duration, error) {
	cmd := exec.CommandContext(ctx, s.binary, "-test.run", "^$", "-test.bench", bench, "-test.benchtime", times)
	cmd.Dir, cmd.Env = s.folder, append(os.Environ(), "GOMAXPROCS="+processes)
	text, err := cmd.Output()
	if err != nil {
		return string(text), 0, fmt.Errorf("%s: %w", filepath.Base(s.binary), err)
	}
	return string(text), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

// only returns the pattern of one benchmark, whose parts stand between slashes.
func only(name string) string {
	_, name, _ = strings.Cut(name, " ")
	parts := strings.Split("Benchmark"+name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// operation returns the CPU time of an operation.
func (s side) operation(ctx context.Context, bench string, n int) (time.Duration, error) {
	_, short, err := s.run(ctx, bench, fmt.Sprintf("%dx", n))
	if err != nil {
		return 0, err
	}
	_, long, err := s.run(ctx, bench, fmt.Sprintf("%dx", 3*n))
	return (long - short) / time.Duration(2*n), err
}

// cpuTimes runs each of the benchmarks of a package alone, of both commits in turns.
func cpuTimes(ctx context.Context, pairs []pair, _ string, rounds int, least time.Duration) error {
	for i := range pairs {
		p := &pairs[i]
		bench := only(p.name)
		text, _, err := p.side[0].run(ctx, bench, least.String())
		if err != nil {
			return err
		}
		n := 1
		for _, r := range benchmarks(text) {
			n = max(r.n, 1)
		}
		for round := range rounds {
			var took [2]time.Duration
			for i := range took {
				which := (i + round) % 2
				if took[which], err = p.side[which].operation(ctx, bench, n); err != nil {
					return err
				}
			}
			p.add(took)
		}
	}
	return nil
}

// wallTimes runs the benchmarks of a package together, of both commits in turns.
func wallTimes(ctx context.Context, pairs []pair, bench string, rounds int, least time.Duration) error {
	for round := range rounds {
		var said [2]map[string]result
		for i := range said {
			which := (i + round) % 2
			text, _, err := pairs[0].side[which].run(ctx, bench, least.String())
			if err != nil {
				return err
			}
			said[which] = benchmarks(text)
		}
		for i := range pairs {
			_, name, _ := strings.Cut(pairs[i].name, " ")
			pairs[i].add([2]time.Duration{said[0][name].each, said[1][name].each})
		}
	}
	return nil
}

// add takes what a round measured, but where what was prepared took longer the first time than all operations.
func (p *pair) add(took [2]time.Duration) {
	if took[0] > 0 && took[1] > 0 {
		p.took[0], p.took[1] = append(p.took[0], took[0]), append(p.took[1], took[1])
	}
}

// print writes the row of a pair.
func (p *pair) print(out io.Writer) error {
	var ratios []float64
	for i, before := range p.took[0] {
		ratios = append(ratios, float64(p.took[1][i])/float64(before))
	}
	if len(ratios) < 2 {
		return errors.New("its operations cannot be told from what it prepares: see -wall")
	}
	middle, low, high := interval(ratios)
	fmt.Fprintf(out, "| %s | %v | %v | %.2f | %.2f to %.2f | %s |\n",
		p.name, middleOf(p.took[0]), middleOf(p.took[1]), middle, low, high, verdict(low, high))
	return nil
}

func verdict(low, high float64) string {
	switch {
	case low > limit:
		return "WORSE"
	case high > limit:
		return "unclear"
	}
	return ""
}

func middleOf(times []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[len(sorted)/2]
}

// interval returns the median, and an interval of order statistics that holds the true one with 95% or more where there
// are six values.
func interval(values []float64) (middle, low, high float64) {
	s := slices.Sorted(slices.Values(values))
	n := len(s)
	middle = (s[(n-1)/2] + s[n/2]) / 2
	// The sum of the probabilities of both tails beyond the k-th value from each end.
	k := 0
	tail, chance := 0.0, 1.0
	for range n {
		chance /= 2
	}
	for ; k < n/2; k++ {
		tail += chance
		if 2*tail > 0.05 {
			break
		}
		chance *= float64(n-k) / float64(k+1)
	}
	k = max(k-1, 0)
	return middle, s[k], s[n-1-k]
}
