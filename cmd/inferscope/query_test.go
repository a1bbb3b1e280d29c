package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/testkit/exporttest"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestQueryTable: a table has what was asked for, shows nothing that a terminal obeys, and says what it leaves out.
func TestQueryTable(t *testing.T) {
	tools, err := filepath.Abs("../../bin/tools")
	must.NoError(t, err)
	t.Setenv("PATH", os.Getenv("PATH")+":"+tools)
	if _, err := exec.LookPath("duckdb"); err != nil {
		t.Skip("needs duckdb: scripts/tools.sh pytools installs it")
	}
	folder := filepath.Join(t.TempDir(), "a.isc")
	must.NoError(t, archive.Write(folder, exporttest.Hostile(nil, "k\x1b[31m\nx"), nil))
	r := at(t, socketPath(t), "query",
		"SELECT * FROM (VALUES (1, 'a' || chr(27)), (20, 'b'), (3, NULL)) v(n, s)", folder, "--rows", "2")
	want(t, r, clierror.OK)
	for _, text := range []string{"n  s", " 1  a", "20  b", "1 more rows"} {
		if !strings.Contains(r.stdout, text) {
			t.Errorf("it lacks %q:\n%s", text, r.stdout)
		}
	}
	names := at(t, socketPath(t), "query", "SELECT DISTINCT name FROM kernels", folder)
	want(t, names, clierror.OK)
	if strings.Contains(r.stdout+names.stdout, "\x1b") {
		t.Errorf("it shows an escape: %q", names.stdout)
	}
	want(t, at(t, socketPath(t), "query", "SELECT 1 WHERE false", folder), clierror.OK)
	r = at(t, socketPath(t), "query", "SELECT 1 AS a, 'x,\"y' AS b", folder, "--csv")
	want(t, r, clierror.OK)
	if r.stdout != "a,b\n1,\"x,\"\"y\"\n" {
		t.Errorf("CSV %q", r.stdout)
	}
	want(t, at(t, socketPath(t), "query", "SELECT nope FROM kernels", folder), clierror.Usage, "nope",
		"--help lists the views")
}

// TestQueryFlags: what cannot be meant is refused with advice, before anything is read or asked.
func TestQueryFlags(t *testing.T) {
	for _, c := range []struct {
		args []string
		text string
	}{
		{[]string{"SELECT 1", "s3://"}, "s3://BUCKET/PREFIX"},
		{[]string{"SELECT 1", "s3://b/p", "--since", "yesterday"}, "2026-11-25"},
		{[]string{"SELECT 1", "s3://b/p", "--max-download", "much"}, "--max-download 4GB"},
		{[]string{"SELECT 1", ".", "--since", "1h"}, "view recordings"},
		{[]string{"SELECT 1", ".", "--json", "--csv"}, "choose one"},
		{[]string{"SELECT 1", ".", "--rows", "0"}, "--rows"},
		{nil, "--help"},
	} {
		want(t, at(t, socketPath(t), append([]string{"query"}, c.args...)...), clierror.Usage, c.text)
	}
	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"": {}, "2h": now.Add(-2 * time.Hour), "2026-11-24": now.Add(-36 * time.Hour),
		"2026-11-25T11:00:00Z": now.Add(-time.Hour),
	} {
		if got, err := moment("--since", text, now); err != nil || !got.Equal(want) {
			t.Errorf("%q is %v, want %v: %v", text, got, want, err)
		}
	}
}
