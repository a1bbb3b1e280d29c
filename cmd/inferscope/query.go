package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/fleet"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/query"
	"github.com/inferscope/inferscope/internal/recording/memlimit"
	"github.com/inferscope/inferscope/internal/report/document"
)

// queryFlags are the flags of query as they were typed.
type queryFlags struct {
	asJSON, asCSV bool
	rows          int

	endpoint, region string
	since, until     string
	node             string
	download         string
}

const queryHelp = `Answer SQL about recordings with DuckDB: those in PATH, which is a .isc folder, a .isc.zip or
a folder of them (the current one if it is left out), or those that inferscoped --upload put into s3://BUCKET/PREFIX.
It needs the program duckdb on PATH (pip install duckdb-cli).

    inferscope query 'SELECT cause, sum(idle_ns) / 1e9 AS s FROM idle GROUP BY ALL ORDER BY s DESC' /var/lib/inferscope
    inferscope query 'SELECT node, title, share FROM findings ORDER BY share DESC LIMIT 10' s3://bucket/prefix --since 1h

raw.TABLE is a table of docs/recordings.md with the recording's name, e.g. raw.copies. The query can read nothing but
the recordings, and write nothing. Views; from_ns, to_ns, start_ns, received_ns and step_ns are ns since 1970:

`

func queryCommand(g *global) *cobra.Command {
	f := queryFlags{}
	help := strings.Builder{}
	help.WriteString(queryHelp)
	for _, v := range query.Views() {
		fmt.Fprintf(&help, "%s: %s\n  %s\n", v.Name, v.Doc, strings.Join(v.Columns, " "))
	}
	cmd := &cobra.Command{
		Use:   "query SQL [PATH | s3://BUCKET/PREFIX]",
		Short: "Query recordings with SQL, on disk or uploaded",
		Long:  help.String(),
		Args:  cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			place := "."
			if len(args) > 1 {
				place = args[1]
			}
			return g.query(cmd.Context(), args[0], place, &f)
		},
	}
	jsonFlag(cmd, &f.asJSON)
	cmd.Flags().BoolVar(&f.asCSV, "csv", false, "write CSV with a header to standard output")
	cmd.Flags().IntVar(&f.rows, "rows", 1000, "maximum number of rows; --json and --csv write all")
	cmd.Flags().
		StringVar(&f.endpoint, "endpoint", "", "address of the store, https://HOST[:PORT]; also AWS_ENDPOINT_URL; AWS if it is left out")
	cmd.Flags().StringVar(&f.region, "region", "", "region of the bucket; also AWS_REGION")
	cmd.Flags().
		StringVar(&f.since, "since", "", "uploaded recordings that began after this: 2h (ago), 2026-11-25, or 2026-11-25T05:00:00Z")
	cmd.Flags().StringVar(&f.until, "until", "", "uploaded recordings that began before this")
	cmd.Flags().StringVar(&f.node, "node", "", "uploaded recordings of this machine")
	cmd.Flags().StringVar(&f.download, "max-download", "4GB", "maximum bytes to download from a store")
	return cmd
}

func (g *global) query(ctx context.Context, sql, place string, f *queryFlags) error {
	if f.asJSON && f.asCSV || f.rows < 1 {
		return clierror.New(clierror.Usage, "choose one of --json and --csv, and --rows 1 or more",
			errors.New("the output is unclear"))
	}
	from, err := g.recordings(place, f)
	if err != nil {
		return err
	}
	q := query.Query{SQL: sql, From: from, JSON: f.asJSON, MaxMemory: g.maxMemory, Warn: func(text string) {
		fmt.Fprintf(g.stderr, "inferscope: %s\n", text)
	}}
	if f.asJSON || f.asCSV {
		if _, ok := terminal(g.stdout); ok {
			return query.Run(ctx, q, cleaner{g.stdout}) // names come from targets
		}
		defer g.progress(ctx, progressAfter, doing("asking", place))()
		return query.Run(ctx, q, g.stdout)
	}
	read, write := io.Pipe()
	t := &queryTable{most: f.rows}
	done := make(chan error, 1)
	go func() {
		err := t.read(read)
		_ = read.CloseWithError(err)
		done <- err
	}()
	shown := g.progress(ctx, progressAfter, doing("asking", place))
	err = query.Run(ctx, q, write)
	_ = write.Close()
	shown()
	if err := errors.Join(err, <-done); err != nil {
		return err
	}
	return document.Text(g.stdout, t.document(), styleOf(g.stdout, g.environ))
}

// recordings returns the location of the recordings to query.
func (g *global) recordings(place string, f *queryFlags) (query.Source, error) {
	if !strings.HasPrefix(place, "s3://") {
		if f.since+f.until+f.node+f.endpoint+f.region != "" {
			return nil, clierror.New(clierror.Usage,
				"of recordings on the disk choose in SQL: view recordings has from_ns",
				errors.New("--since, --until, --node, --endpoint and --region are about uploaded recordings"))
		}
		return query.Local{Path: place, MaxMemory: g.maxMemory}, nil
	}
	bucket, prefix, err := fleet.ParseDestination(place)
	if err != nil {
		return nil, clierror.New(clierror.Usage,
			"write it as s3://BUCKET/PREFIX; name another store than AWS with --endpoint",
			fmt.Errorf("%.128q is not a place in an object store", place))
	}
	r := query.Remote{
		Store: fleet.UploadConfig{
			Bucket: bucket, Prefix: prefix,
			Endpoint: g.first(f.endpoint, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
			Region:   g.first(f.region, "AWS_REGION", "AWS_DEFAULT_REGION"),
		},
		Selection: fleet.Selection{Node: f.node},
	}
	if r.Selection.MaxBytes, err = memlimit.Parse(f.download); err != nil {
		return nil, clierror.New(clierror.Usage, "write it like --max-download 4GB",
			fmt.Errorf("--max-download: %w", err))
	}
	now := time.Now()
	if r.Selection.Since, err = moment("--since", f.since, now); err != nil {
		return nil, err
	}
	r.Selection.Until, err = moment("--until", f.until, now)
	return r, err
}

// first returns the flag's value if it is set, else the first of these environment variables that is set.
func (g *global) first(typed string, names ...string) string {
	for _, name := range names {
		if v, ok := g.environ.Get(name); ok && typed == "" {
			typed = v
		}
	}
	return typed
}

// moment parses a time or an age such as 2h; "" is the zero time.
func moment(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if at, err := time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	return time.Time{}, clierror.New(clierror.Usage, "write it like 2h (ago), 2026-11-25, or 2026-11-25T05:00:00Z",
		fmt.Errorf("%s: %.64q is no time", flag, text))
}

// cleaner replaces control characters in what it writes.
type cleaner struct{ to io.Writer }

// Write replaces each control character except newline by one character.
func (c cleaner) Write(p []byte) (int, error) {
	clean := make([]byte, len(p))
	for i, b := range p {
		if b < ' ' && b != '\n' && b != '\t' || b == 0x7f {
			b = '?'
		}
		clean[i] = b
	}
	if _, err := c.to.Write(clean); err != nil {
		return 0, err
	}
	return len(p), nil
}

// queryTable collects the first rows of an answer for display.
type queryTable struct {
	most    int
	columns []string
	rows    [][]string
	more    int
}

// maxCell is how many bytes of a value a table shows.
const maxCell = 200

func (t *queryTable) read(r io.Reader) error {
	in := csv.NewReader(r)
	in.ReuseRecord, in.FieldsPerRecord = true, -1
	for {
		record, err := in.Read()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("the answer of duckdb: %w", err)
		}
		row := make([]string, len(record))
		for i, v := range record {
			row[i] = format.Clean(strings.Clone(v[:min(len(v), maxCell)]))
		}
		switch {
		case t.columns == nil:
			t.columns = row
		case len(t.rows) < t.most:
			t.rows = append(t.rows, row)
		default:
			t.more++
		}
	}
}

func (t *queryTable) document() *document.Document {
	d := &document.Document{}
	if len(t.rows) == 0 {
		d.Add(document.Paragraph("no rows"))
		return d
	}
	table := &document.Table{Rows: t.rows}
	for i, title := range t.columns {
		c := document.Right(title, 0)
		for _, row := range t.rows {
			if _, err := strconv.ParseFloat(row[min(i, len(row)-1)], 64); err != nil && row[i] != "" {
				c.Left = true
			}
		}
		table.Columns = append(table.Columns, c)
	}
	d.AddTable("", table)
	if t.more > 0 {
		d.Add(document.Paragraph(fmt.Sprintf("%d more rows: --rows %d shows them, --csv and --json write all",
			t.more, len(t.rows)+t.more)))
	}
	return d
}
