package main

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/report/diff"
)

const diffHelp = `diff compares two recordings of the same program: latency, where the time goes, why the GPU
is idle, kernels and CPU functions, and marks significant differences.

    inferscope diff before.isc after.isc
    inferscope diff before.isc after.isc --fail-over 5%

With --fail-over the exit code is 8 if an iteration became slower by more than the limit and the change is significant
(p < 0.001), 1 if a recording has too few iterations to compare, and 2 if an iteration is not the same in both: waits
for the GPU in one and kernels in the other, or eight waits and one. A and B are recordings, traces of torch.profiler or SQLite exports of Nsight Systems.`

// diffFlags are the flags of diff as they were typed.
type diffFlags struct {
	failOver string
	asJSON   bool
}

func diffCommand(g *global) *cobra.Command {
	var f diffFlags
	cmd := &cobra.Command{
		Use:   "diff A B",
		Short: "Compare two recordings and mark significant changes",
		Long:  diffHelp,
		Args:  cobra.ExactArgs(2),
		RunE:  func(cmd *cobra.Command, args []string) error { return g.diff(cmd.Context(), &f, args[0], args[1]) },
	}
	cmd.Flags().
		StringVar(&f.failOver, "fail-over", "", "exit with code 8 if an iteration became slower by more than this, e.g. 5%")
	jsonFlag(cmd, &f.asJSON)
	return cmd
}

func (g *global) diff(ctx context.Context, f *diffFlags, a, b string) error {
	limit, err := fraction(f.failOver)
	if err != nil {
		return clierror.New(clierror.Usage, "write it like 5% or 0.05", err)
	}
	var both [2]*recording.Recording
	for i, path := range []string{a, b} {
		if both[i], err = g.open(ctx, path); err != nil {
			return err
		}
	}
	done := g.progress(ctx, progressAfter, thinking)
	c := diff.New(a, b, both[0], both[1])
	done()
	if f.asJSON {
		err = writeJSON(g.stdout, c)
	} else {
		err = c.Text(g.stdout)
	}
	if err != nil || f.failOver == "" {
		return err
	}
	return judge(c, limit)
}

// judge returns an error if a latency grew by more than a fraction.
func judge(c *diff.Comparison, limit float64) error {
	worse, ok := c.Worse(limit)
	switch {
	case c.Differ != "":
		return clierror.New(
			clierror.Usage,
			"name what you mean in both programs, with scope(\"request\"): ... or NVTX, and record both again",
			fmt.Errorf("--fail-over: an iteration is not the same in both recordings: %s", c.Differ),
		)
	case !ok:
		return clierror.New(clierror.General,
			"record at least 8 iterations in both, and name them with a scope",
			fmt.Errorf("--fail-over: there is no latency in both recordings to judge by"))
	case worse:
		return clierror.New(
			clierror.Regression,
			"the tables above say what changed",
			fmt.Errorf("an iteration takes %.1f%% longer, over the limit of %.1f%%", 100*c.Latency.Relative, 100*limit),
		)
	}
	return nil
}

// fraction parses "5%" or "0.05"; "" is 0.
func fraction(s string) (float64, error) {
	if s == "" {
		return 0, nil
	}
	number, percent := strings.CutSuffix(strings.TrimSpace(s), "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if percent {
		v /= 100
	}
	if err != nil || math.IsNaN(v) || v < 0 || v > 1000 {
		return 0, fmt.Errorf("--fail-over: %q is not a share of at least 0", s)
	}
	if !percent && v > 1 { // 5 would let everything pass below six times the time
		return 0, fmt.Errorf("--fail-over: is %q percent?", s)
	}
	return v, nil
}
