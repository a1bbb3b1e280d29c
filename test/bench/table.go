package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// table is the one that is printed.
type table struct{ rows []row }

// row is one figure.
type row struct {
	title   bool
	what    string
	figure  string
	remark  string
	goal    string
	verdict string
}

// title begins a group of figures.
func (t *table) title(format string, args ...any) {
	t.rows = append(t.rows, row{title: true, what: fmt.Sprintf(format, args...)})
}

// add adds a figure that no goal is set for.
func (t *table) add(what, figure, remark string) {
	t.rows = append(t.rows, row{what: what, figure: figure, remark: remark})
}

// held adds a figure with its goal.
func (t *table) held(what, figure, remark, goal string, met bool) {
	verdict := "MISS"
	if met {
		verdict = "pass"
	}
	t.rows = append(t.rows, row{what: what, figure: figure, remark: remark, goal: goal, verdict: verdict})
}

// print writes the table, one group after the other.
func (t *table) print(out io.Writer) {
	var w bytes.Buffer
	tw := tabwriter.NewWriter(&w, 0, 0, 2, ' ', 0)
	missed := 0
	for i, r := range t.rows {
		if r.title {
			if i > 0 {
				fmt.Fprintln(tw)
			}
			// Cells of a title end here, so that its length widens no column.
			_ = tw.Flush() // a buffer takes everything
			fmt.Fprintln(&w, r.what)
			continue
		}
		if r.verdict == "MISS" {
			missed++
		}
		fmt.Fprintf(tw, "  %s\t%s\t%s\t%s\t%s\n", r.what, r.figure, r.remark, r.goal, r.verdict)
	}
	_ = tw.Flush()
	for line := range strings.Lines(w.String()) {
		fmt.Fprintln(out, strings.TrimRight(line, " \n")) // empty cells at the end are padded
	}
	fmt.Fprintf(out, "\ngoals missed: %d\n", missed)
}
