package query

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/format/clierror"
)

// Source is where recordings are: Local or Remote.
type Source interface {
	add(ctx context.Context, l *layout, words map[string]bool) error
}

// Query is a statement about recordings.
type Query struct {
	SQL       string
	From      Source
	JSON      bool  // the output is JSON, else CSV with a header
	MaxMemory int64 // bytes that DuckDB may take
	// Warn is called with what the answer lacks; nil for nobody.
	Warn func(string)
}

const (
	program = "duckdb"
	maxSQL  = 64 << 10 // bytes
	// maxError bounds what is kept of what duckdb says, in bytes.
	maxError = 64 << 10

	hintProgram = "install it: pip install duckdb-cli, or from duckdb.org; the recordings' files are Parquet, and " +
		"any other program that reads Parquet can query them too"
	hintSQL = "inferscope query --help lists the views with their columns"
)

// Run writes the answer of a query to out.
func Run(ctx context.Context, q Query, out io.Writer) error {
	words, err := check(q.SQL)
	if err != nil {
		return err
	}
	duckdb, err := exec.LookPath(program)
	if err != nil {
		return clierror.New(clierror.Unsupported, hintProgram,
			fmt.Errorf("queries need the program duckdb, 1.2 or later, on PATH: %w", err))
	}
	dir, err := os.MkdirTemp("", "inferscope-query-")
	if err != nil {
		return clierror.New(clierror.General, "name a directory with room in TMPDIR", err)
	}
	defer os.RemoveAll(dir)
	l, err := newLayout(dir, words)
	if err != nil {
		return err
	}
	if err := q.From.add(ctx, l, words); err != nil {
		return err
	}
	if err := l.finish(); err != nil {
		return err
	}
	for _, table := range slices.Sorted(maps.Keys(l.without)) {
		if q.Warn != nil {
			q.Warn(fmt.Sprintf(
				"%d of %d recordings were uploaded without table %s: the answer lacks what is in it",
				l.without[table], len(l.rows), table,
			))
		}
	}
	for _, d := range l.damaged {
		if q.Warn != nil {
			q.Warn("left out: " + d)
		}
	}
	begin := filepath.Join(dir, "begin.sql")
	if err := os.WriteFile(begin, []byte(l.prelude(q.MaxMemory)), 0o600); err != nil {
		return err
	}
	return q.ask(ctx, duckdb, begin, out)
}

// check refuses what is no single statement, and returns its words.
func check(sql string) (map[string]bool, error) {
	usage := func(format string, args ...any) error {
		return clierror.New(clierror.Usage, hintSQL, fmt.Errorf(format, args...))
	}
	text := strings.TrimSpace(sql)
	switch {
	case text == "":
		return nil, usage("the query is empty")
	case len(sql) > maxSQL:
		return nil, usage("the query has more than %d bytes", maxSQL)
	case strings.ContainsRune(sql, 0):
		return nil, usage("the query holds a zero byte")
	case strings.HasPrefix(text, "."):
		return nil, usage("%.20q is a command of the duckdb program, and no SQL", text)
	}
	words, err := scan(sql)
	if err != nil {
		return nil, usage("the query: %w", err)
	}
	return words, nil
}

// ask runs duckdb.
func (q *Query) ask(ctx context.Context, duckdb, begin string, out io.Writer) error {
	mode := "-csv"
	if q.JSON {
		mode = "-json"
	}
	// A leading space keeps a text that begins with a minus or a point from being taken for something else.
	cmd := exec.CommandContext(ctx, duckdb, "-init", os.DevNull,
		"-bail", mode, ":memory:", "-f", begin, "-c", " "+q.SQL)
	cmd.WaitDelay = time.Second
	cmd.Stdin = nil
	cmd.Stdout = out
	said := &bounded{left: maxError}
	cmd.Stderr = said
	err := cmd.Run()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var exit *exec.ExitError
	switch {
	case err == nil && !strings.Contains(said.String(), "Error"):
		return nil
	case err == nil || errors.As(err, &exit):
		return clierror.New(clierror.Usage, hintSQL, fmt.Errorf("duckdb: %s", message(said.String())))
	}
	return fmt.Errorf("running duckdb: %w", err)
}

// message returns in one line what duckdb says of an error.
func message(said string) string {
	var lines []string
	for line := range strings.Lines(said) {
		if line = strings.TrimSpace(line); line != "" && line != "^" {
			lines = append(lines, strings.TrimPrefix(line, "LINE 1: "))
		}
	}
	if len(lines) == 0 {
		return "it failed without a word"
	}
	return format.Clean(strings.Join(lines, " | "))
}

// bounded keeps the beginning of what is written to it.
type bounded struct {
	bytes.Buffer
	left int
}

// Write keeps what there is room for.
func (b *bounded) Write(p []byte) (int, error) {
	n := min(b.left, len(p))
	b.left -= n
	b.Buffer.Write(p[:n])
	return len(p), nil
}
