package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/report/document"
)

func lsCommand(g *global) *cobra.Command {
	var asJSON, columns bool
	cmd := &cobra.Command{
		Use:   "ls FILE | ls --columns",
		Short: "List the tables of a recording: rows and bytes",
		Args: func(cmd *cobra.Command, args []string) error {
			if columns && len(args) == 0 {
				return nil
			}
			if columns {
				return clierror.New(clierror.Usage, "leave the file out: columns are those of the format",
					fmt.Errorf("%s --columns takes no file", cmd.CommandPath()))
			}
			return oneFile(cmd, args)
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if columns {
				_, err := io.WriteString(g.stdout, archive.Document())
				return err
			}
			return g.ls(args[0], asJSON)
		},
	}
	jsonFlag(cmd, &asJSON)
	cmd.Flags().BoolVar(&columns, "columns", false, "Describe every column of every table of the format, in Markdown")
	cmd.MarkFlagsMutuallyExclusive("columns", "json")
	return cmd
}

func (g *global) ls(path string, asJSON bool) error {
	in, err := archive.Inspect(path, false)
	if err != nil {
		return recordingFault(err)
	}
	if asJSON {
		return writeJSON(g.stdout, in.Tables)
	}
	d := &document.Document{Title: "Tables of " + format.Clean(path)}
	t := &document.Table{Columns: []document.Column{
		document.Left("Table", 0),
		document.Right("Rows", 0),
		document.Right("Bytes", 0),
		document.Right("Bytes/row", 0),
		document.Right("Files", 1),
		document.Left("What", 2),
	}}
	for _, table := range in.Tables {
		t.Rows = append(t.Rows, lsRow(&table))
	}
	d.AddTable("", t)
	return document.Text(g.stdout, d, styleOf(g.stdout, g.environ))
}

func lsRow(t *archive.TableInfo) []string {
	each, what := "", format.Clean(t.Doc)
	if t.Rows > 0 {
		each = fmt.Sprintf("%.1f", float64(t.Bytes)/float64(t.Rows))
	}
	if !t.Known {
		what = "not known to this version; kept"
	}
	return []string{t.Name, fmt.Sprint(t.Rows), fmt.Sprint(t.Bytes), each, fmt.Sprint(t.Files), what}
}
