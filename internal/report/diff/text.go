package diff

import (
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/format"
)

// Text writes a comparison for people: what is more than noise is marked with *.
func (c *Comparison) Text(w io.Writer) error {
	var b strings.Builder
	for _, s := range []struct {
		name string
		*sideModel
	}{{"A", &c.A}, {"B", &c.B}} {
		fmt.Fprintf(&b, "%s  %s: %s, %s\n", s.name, format.Clean(s.Name), format.Clean(s.Target), s.Verdict)
		if s.Iterations > 0 {
			fmt.Fprintf(&b, "   %s iterations (%s), median %s, p99 %s\n",
				format.Count(s.Iterations), format.Clean(s.Source), format.Span(s.P50), format.Span(s.P99))
		}
	}
	b.WriteString("\n" + c.sentence() + "\n")
	inTime := c.Scale == perIteration
	why := "Why the GPU is idle"
	if c.A.Verdict == string(diagnose.CPUOnly) && c.B.Verdict == c.A.Verdict {
		why = "What takes the main thread's time"
	}
	for _, t := range []struct {
		title string
		rows  []Change
		time  bool
	}{
		{"Where the time goes", c.Parts, inTime},
		{why, c.Causes, inTime},
		{"Kernels", c.Kernels, inTime},
		{"CPU samples by function", c.Stacks, false},
	} {
		if t.time {
			t.title += ", per iteration"
		}
		table(&b, t.title, t.rows, t.time)
	}
	for _, n := range c.Notes {
		b.WriteString("\nNote: " + format.CleanText(n))
	}
	b.WriteString(
		"\n* more than noise: p < 0.001 and at least 1%. Kernels: by the durations of their runs; idle causes: by 24 " +
			"blocks of time; functions: by numbers of samples.\n",
	)
	_, err := io.WriteString(w, b.String())
	return err
}

// sentence is the answer.
func (c *Comparison) sentence() string {
	l := c.Latency
	switch {
	case c.Differ != "":
		return "Latencies cannot be compared: an iteration is not the same in both; the tables show shares of the time."
	case l == nil:
		return "There is no latency in both to compare; the tables show shares of the time."
	case l.P < 0:
		return fmt.Sprintf("B takes %s an iteration instead of %s (%s), from too few iterations to be sure.",
			span(l.B), span(l.A), percent(l.Relative))
	case !l.Sure:
		return fmt.Sprintf(
			"No difference in latency that is more than noise: %s and %s an iteration (p = %.2g).",
			span(l.A),
			span(l.B),
			l.P,
		)
	case l.Relative > 0:
		return fmt.Sprintf("B is slower: %s an iteration instead of %s (%s, p = %.1g).",
			span(l.B), span(l.A), percent(l.Relative), l.P)
	}
	return fmt.Sprintf("B is faster: %s an iteration instead of %s (%s, p = %.1g).",
		span(l.B), span(l.A), percent(l.Relative), l.P)
}

// shown is the share of the largest value below which a row is not worth a line.
const shown = 0.002

func table(b *strings.Builder, title string, rows []Change, inTime bool) {
	largest := 0.0
	for _, r := range rows {
		largest = max(largest, r.A, r.B)
	}
	if largest == 0 {
		return
	}
	fmt.Fprintf(b, "\n%-52s %12s %12s %9s\n", title, "A", "B", "change")
	for _, r := range rows {
		if max(r.A, r.B) < shown*largest {
			continue
		}
		mark := " "
		if r.Sure {
			mark = "*"
		}
		fmt.Fprintf(b, "%-52s %12s %12s %8s%s\n",
			format.Shorten(format.Clean(r.Name), 52), cell(r.A, inTime), cell(r.B, inTime), relative(&r),
			mark)
	}
}

func cell(v float64, inTime bool) string {
	if inTime {
		return span(v)
	}
	return fmt.Sprintf("%.1f%%", 100*v)
}

func relative(c *Change) string {
	switch {
	case c.A == 0 && c.B > 0:
		return "new"
	case c.B == 0 && c.A > 0:
		return "gone"
	}
	return percent(c.Relative)
}

func percent(f float64) string { return fmt.Sprintf("%+.1f%%", 100*f) }

func span(ns float64) string { return format.Span(uint64(math.Max(0, ns))) }
