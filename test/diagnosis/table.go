package diagnosis

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// tables prints all that is known of so many scenarios as were asked for.
func tables(all []*verdict, asked int) string {
	return table(all) + "\n" + confusion(all) + "\n" + scoreOf(all).String() + "\n" + missing(len(all), asked)
}

// missing reports that a table is not of all that was asked for; nothing where it is.
func missing(done, asked int) string {
	if done == asked {
		return ""
	}
	return fmt.Sprintf("\nNot all: %d of %d.\n", done, asked)
}

// table prints a row for each scenario, and what it amounts to.
func table(all []*verdict) string {
	var b strings.Builder
	b.WriteString(
		"| # | program | GPU idle | planted | truth | found | reported | error | |\n" +
			"|--:|---|--:|---|--:|---|--:|--:|---|\n",
	)
	for _, v := range all {
		truly, says, off := "", "", ""
		if v.Planted != "" {
			truly, says = ms(v.True), ms(v.Cost)
			if v.Right {
				off = fmt.Sprintf("%+.1f%%", 100*(v.Cost/v.True-1))
			}
		}
		fmt.Fprintf(&b, "| %d | %s | %.1f%% | %s | %s | %s | %s | %s | %s |\n",
			v.number, v.scenario.name, 100*v.Idle/max(1, v.Covered), or(v.Planted, "none"), truly,
			or(v.Found, string(v.Class)), says, off, v.mark())
	}
	return b.String()
}

// mark is the last column.
func (v *verdict) mark() string {
	switch {
	case !v.Right:
		return "wrong"
	case !v.Near:
		return "cost"
	}
	return ""
}

func or(a, b string) string {
	if a == "" {
		return b
	}
	return a
}

func ms(ns float64) string { return fmt.Sprintf("%.0f ms", ns/1e6) }

// confusion prints how often each planted cause was found as which.
func confusion(all []*verdict) string {
	counts, planted, found := map[[2]string]int{}, map[string]bool{}, map[string]bool{}
	for _, v := range all {
		p, f := or(v.Planted, "none"), or(v.Found, "none")
		counts[[2]string{p, f}]++
		planted[p], found[f] = true, true
	}
	columns := slices.Sorted(maps.Keys(found))
	var b strings.Builder
	b.WriteString(
		"| planted \\ found | " + strings.Join(columns,
			" | ") + " |\n|---|" + strings.Repeat("--:|", len(columns)) + "\n",
	)
	for _, p := range slices.Sorted(maps.Keys(planted)) {
		b.WriteString("| " + p)
		for _, f := range columns {
			if n := counts[[2]string{p, f}]; n > 0 {
				fmt.Fprintf(&b, " | %d", n)
			} else {
				b.WriteString(" | ")
			}
		}
		b.WriteString(" |\n")
	}
	return b.String()
}

// score is what all scenarios amount to.
type score struct {
	right, near, all int
	accused, healthy int
	median, worst    float64 // of the errors of the costs where the cause is right
}

func scoreOf(all []*verdict) score {
	var s score
	var errs []float64
	for _, v := range all {
		s.all++
		if v.scenario.want == "" {
			s.healthy++
			if !v.Right {
				s.accused++
			}
		}
		if v.Right {
			s.right++
			if v.Planted != "" {
				errs = append(errs, math.Abs(v.Cost/v.True-1))
			}
		}
		if v.Near {
			s.near++
		}
	}
	slices.Sort(errs)
	if n := len(errs); n > 0 {
		s.median, s.worst = errs[n/2], errs[n-1]
	}
	return s
}

func (s score) String() string {
	return fmt.Sprintf(
		"The cause is right in %d of %d programs (%.1f%%); %d of %d healthy programs have a false finding; "+
			"the cost is within %.0f%% in %d of the %d with the right cause (median error %.1f%%, worst %.1f%%).",
		s.right,
		s.all,
		100*float64(s.right)/float64(max(1, s.all)),
		s.accused,
		s.healthy,
		100*costError,
		s.near,
		s.right,
		100*s.median,
		100*s.worst,
	)
}
