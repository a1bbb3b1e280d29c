package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/human"
	"github.com/inferscope/inferscope/internal/isc"
	"github.com/inferscope/inferscope/internal/page"
)

func lsCommand(g *global) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls FILE",
		Short: "List the tables of a recording: rows and bytes",
		Args:  oneFile,
		RunE:  func(_ *cobra.Command, args []string) error { return g.ls(args[0], asJSON) },
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (g *global) ls(path string, asJSON bool) error {
	in, err := isc.Inspect(path, false)
	if err != nil {
		return recordingFault(err)
	}
	if asJSON {
		return writeJSON(g.stdout, in.Tables)
	}
	d := &page.Document{Title: "Tables of " + human.Clean(path)}
	t := &page.Table{Columns: []page.Column{
		page.Left("Table", 0), page.Right("Rows", 0), page.Right("Bytes", 0), page.Right("Bytes/row", 0), page.Right("Files", 1), page.Left("What", 2),
	}}
	for _, table := range in.Tables {
		t.Rows = append(t.Rows, lsRow(&table))
	}
	d.AddTable("", t)
	return page.Text(g.stdout, d, styleOf(g.stdout, g.environ))
}

func lsRow(t *isc.TableInfo) []string {
	each, what := "", human.Clean(t.Doc)
	if t.Rows > 0 {
		each = fmt.Sprintf("%.1f", float64(t.Bytes)/float64(t.Rows))
	}
	if !t.Known {
		what = "not known to this version; kept"
	}
	return []string{t.Name, fmt.Sprint(t.Rows), fmt.Sprint(t.Bytes), each, fmt.Sprint(t.Files), what}
}
