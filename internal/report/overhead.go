package report

import (
	"fmt"
	"strings"

	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/report/document"
)

// OverheadFact says what watching cost in one sentence: the share with its interval, how it is known, and the budget.
func OverheadFact(o *recording.Overhead) string {
	text := costInterval(o.Total)
	if o.Total.Basis == recording.CostMeasured && o.Progress != "" {
		text += fmt.Sprintf(" by its %s (%s of time slices)",
			format.Clean(o.Progress), format.Plural(uint64(max(0, o.Pairs)), "pair", "pairs"))
	}
	text += fmt.Sprintf("; the budget is %s", format.Percent(o.Budget))
	if o.State != "" {
		text += ": " + format.Clean(o.State)
	}
	return text
}

// costInterval writes a cost with its interval.
func costInterval(c recording.Cost) string {
	if c.Basis == "" {
		return "not known yet"
	}
	return fmt.Sprintf("%s (%s to %s), %s",
		percentSigned(c.Share), percentSigned(c.Low), percentSigned(c.High), format.Clean(c.Basis))
}

// percentSigned writes a share that may lie below 0, as bounds of what is measured do.
func percentSigned(share float64) string {
	if share < 0 {
		return fmt.Sprintf("%.1f%%", 100*share)
	}
	return format.Percent(share)
}

// OverheadTable shows what each source cost, and at which level it was.
func OverheadTable(o *recording.Overhead) *document.Table {
	t := &document.Table{
		Columns: []document.Column{
			document.Left("Source", 0),
			document.Left("Level", 0),
			document.Left("Cost", 0),
			document.Sentences("Time at each level, what is missing, and why"),
		},
	}
	for i := range o.Sources {
		s := &o.Sources[i]
		level := format.Clean(s.Level)
		if s.Pinned {
			level += " (fixed)"
		}
		t.Row(format.Clean(s.Name), level, costInterval(s.Cost), sourceText(s))
	}
	return t
}

func sourceText(s *recording.OverheadSource) string {
	var parts []string
	if len(s.Shares) > 1 || len(s.Shares) == 1 && s.Shares[0].Level != s.Level {
		var shares []string
		for _, l := range s.Shares {
			shares = append(shares, format.Clean(l.Level)+" "+format.Percent(l.Share))
		}
		parts = append(parts, strings.Join(shares, ", "))
	}
	if s.Loses != "" {
		parts = append(parts, "missing: "+format.Clean(s.Loses))
	}
	if s.Reason != "" {
		parts = append(parts, format.Clean(s.Reason))
	}
	return strings.Join(parts, "; ")
}

// reduced reports whether any source was not at its first level for all of the window.
func reduced(o *recording.Overhead) bool {
	for i := range o.Sources {
		if s := &o.Sources[i]; s.Index > 0 || len(s.Shares) > 1 {
			return true
		}
	}
	return false
}

// addOverhead shows the levels of the sources where one of them was reduced: then something is missing.
func addOverhead(d *document.Document, m *Model) {
	if m.Overhead != nil && reduced(m.Overhead) {
		d.AddTable("What watching cost", OverheadTable(m.Overhead))
	}
}
