package query

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/analysis"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/exporttest"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

const testMemory = 512 << 20

// duckdb puts the program on PATH.
func duckdb(t *testing.T) {
	t.Helper()
	tools, err := filepath.Abs("../../bin/tools")
	must.NoError(t, err)
	t.Setenv("PATH", os.Getenv("PATH")+":"+tools)
	if _, err := exec.LookPath(program); err != nil {
		t.Skip("needs duckdb: scripts/tools.sh pytools installs it")
	}
}

// scene writes three recordings into a folder whose name means something to shells, SQL and file patterns.
func scene(t *testing.T) (dir string, recs map[string]*recording.Recording) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "it's [a] {b} $(c) * ; -- \"d\"")
	recs = map[string]*recording.Recording{}
	for i, name := range []string{"one", "it's two", "three"} {
		rec := exporttest.Decode(40 + 20*i)
		rec.Meta.Steps = []recording.Step{
			{
				TS: rec.Meta.From + 2000, PID: rec.Meta.Target, Requests: 3, Tokens: 4, Firsts: 1, Stats: true,
				Running: 5, Waiting: 2, KVPermille: 250,
			},
			{TS: rec.Meta.From + 3000, PID: rec.Meta.Target, Requests: 3, Tokens: 3, Finished: 1, Preempts: 1},
		}
		rec.Meta.Requests = []recording.Request{
			{
				Number: 1, PID: rec.Meta.Target, Received: rec.Meta.From + 1000, FirstToken: rec.Meta.From + 51_000,
				LastToken: rec.Meta.From + 951_000,
				End:       rec.Meta.From + 1_001_000, Method: "POST", Route: "/v1/chat/completions",
				Model: "m'; DROP TABLE x", Status: 200,
				Outcome: "complete", Streamed: true, OutputTokens: 10,
			},
			{
				Number:   2,
				PID:      rec.Meta.Target,
				Received: rec.Meta.From + 5000,
				Method:   "GET",
				Route:    "/metrics",
				Outcome:  "open",
			},
		}
		recs[name] = rec
		must.NoError(t, archive.Write(filepath.Join(dir, name+archive.Extension), rec, nil))
	}
	// One of them is packed.
	folder := filepath.Join(dir, "three"+archive.Extension)
	must.NoError(t, archive.Pack(folder, filepath.Join(dir, "three"+archive.Packed), false))
	must.NoError(t, os.RemoveAll(folder))
	return dir, recs
}

// ask returns the rows of an answer, without the header.
func ask(t *testing.T, dir, sql string) [][]string {
	t.Helper()
	var out bytes.Buffer
	q := Query{SQL: sql, From: Local{Path: dir, MaxMemory: testMemory}, MaxMemory: testMemory}
	if err := Run(t.Context(), q, &out); err != nil {
		t.Fatalf("%s: %v (%s)", sql, err, clierror.HintOf(err))
	}
	rows, err := csv.NewReader(&out).ReadAll()
	if err != nil || len(rows) == 0 {
		t.Fatalf("%s: %v %v", sql, rows, err)
	}
	return rows[1:]
}

// TestViewsAgreeWithRecordings: what each view says is what a walk through the recordings finds.
func TestViewsAgreeWithRecordings(t *testing.T) {
	duckdb(t)
	dir, recs := scene(t)
	var kernels, idle, threads, findings, list [][]string
	for name, rec := range recs {
		sums := map[string][2]uint64{}
		first := uint64(0)
		for i := range rec.Events {
			if e := &rec.Events[i]; e.Kind == event.Kernel {
				k := rec.Meta.GPU.Kernels[e.Ret-1].Name
				sums[k] = [2]uint64{sums[k][0] + 1, sums[k][1] + e.Dur}
				if first == 0 {
					first = e.TS
				}
			}
		}
		for k, n := range sums {
			kernels = append(kernels, []string{name, k, fmt.Sprint(n[0]), fmt.Sprint(n[1])})
		}
		list = append(list, []string{
			name,
			fmt.Sprint(rec.Meta.Target),
			fmt.Sprint(len(rec.Events)),
			fmt.Sprint(rec.Meta.WallFrom + int64(first-rec.Meta.From)),
		})
		r := analysis.Run(rec)
		for _, d := range r.Diagnosis.Devices {
			sum := uint64(0)
			for _, p := range d.Breakdown.Parts {
				if !p.Busy {
					sum += p.Time
				}
			}
			idle = append(idle, []string{name, d.Name, fmt.Sprint(sum), fmt.Sprint(d.Breakdown.Time)})
		}
		for i := range r.Threads {
			th := &r.Threads[i]
			threads = append(
				threads,
				[]string{name, fmt.Sprint(th.TID), th.Name, fmt.Sprint(th.Totals[0]), fmt.Sprint(th.Totals[2])},
			)
		}
		for _, f := range r.Diagnosis.Findings {
			findings = append(findings,
				[]string{name, string(r.Diagnosis.Verdict), f.Cause, f.Title, fmt.Sprint(f.Cost)})
		}
	}
	if len(kernels) == 0 || len(idle) == 0 || len(threads) == 0 || len(findings) == 0 {
		t.Fatalf("the scene is empty: %d %d %d %d", len(kernels), len(idle), len(threads), len(findings))
	}
	for sql, want := range map[string][][]string{
		"SELECT recording, name, count(*), sum(duration_ns) FROM kernels GROUP BY ALL": kernels,
		"SELECT r.recording, r.pid, any_value(r.events), min(k.start_ns) FROM recordings r JOIN kernels k USING " +
			"(recording) GROUP BY ALL": list,
		"SELECT recording, device_name, sum(idle_ns), any_value(watched_ns) FROM idle GROUP BY ALL": idle,
		"SELECT recording, tid, thread, running_ns, blocked_ns FROM threads":                        threads,
		"SELECT recording, verdict, cause, title, cost_ns FROM findings":                            findings,
		"SELECT DISTINCT latency_ns, ttft_ns, tpot_ns, model, status, output_tokens FROM requests WHERE outcome = " +
			"'complete'": {{"1000000", "50000", "100000", "m'; DROP TABLE x", "200", "10"}},
		"SELECT count(*), count(status), count(latency_ns), count(ttft_ns), count(tpot_ns) FROM requests": {{"6", "3", "3", "3", "3"}},
		"SELECT tokens, any_value(first_tokens), sum(finished), sum(preempted), count(running), sum(waiting), min(kv_usage), " +
			"count(DISTINCT step_ns) FROM steps GROUP BY tokens": {
			{"3", "0", "3", "3", "0", "NULL", "NULL", "1"}, {"4", "1", "0", "0", "3", "6", "0.25", "1"},
		},
		"SELECT recording, count(*) > 0 FROM raw.copies GROUP BY ALL":                       {{"it's two", "true"}, {"one", "true"}, {"three", "true"}},
		"SELECT count(*), count(start_ns) FROM raw.lifecycle -- a table without rows; DROP": {{"0", "0"}},
		"SELECT 'a;''b', $$c'd;$$, E'e\\'f;', \"x;y\" FROM (SELECT 1 AS \"x;y\") /* ; */ ;": {{"a;'b", "c'd;", "e'f;", "1"}},
	} {
		got := ask(t, dir, sql)
		slices.SortFunc(got, slices.Compare)
		slices.SortFunc(want, slices.Compare)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (- recordings, + DuckDB):\n%s", sql, diff)
		}
	}
}

// TestViewsHaveTheirColumns: the documented columns are those of the views, also where no recording has a row.
func TestViewsHaveTheirColumns(t *testing.T) {
	duckdb(t)
	empty := filepath.Join(t.TempDir(), "a.isc")
	rec := exporttest.Decode(1)
	rec.Events, rec.Meta.GPU = rec.Events[:1], nil
	must.NoError(t, archive.Write(empty, rec, nil))
	dir, _ := scene(t)
	page, err := os.ReadFile("../../docs/recordings.md")
	must.NoError(t, err)
	for _, v := range Views() {
		for _, place := range []string{empty, dir} {
			var got []string
			for _, row := range ask(t, place, "DESCRIBE "+v.Name) {
				got = append(got, row[0])
			}
			if !slices.Equal(got, v.Columns) {
				t.Errorf("%s has %v instead of %v", v.Name, got, v.Columns)
			}
		}
		if row := fmt.Sprintf("| %s | %s | %s |", v.Name, v.Doc, strings.Join(v.Columns, ", ")); !strings.Contains(
			string(page),
			row,
		) {
			t.Errorf("docs/recordings.md lacks\n%s", row)
		}
	}
}

// TestJSON: numbers stay numbers, and what a terminal would obey is escaped.
func TestJSON(t *testing.T) {
	duckdb(t)
	dir, _ := scene(t)
	var out bytes.Buffer
	q := Query{
		SQL:       "SELECT 1::BIGINT AS n, chr(27) || '[31m' AS s",
		From:      Local{Path: dir, MaxMemory: testMemory},
		JSON:      true,
		MaxMemory: testMemory,
	}
	must.NoError(t, Run(t.Context(), q, &out))
	var rows []struct {
		N int
		S string
	}
	if err := json.Unmarshal(out.Bytes(), &rows); err != nil || len(rows) != 1 || rows[0].N != 1 ||
		rows[0].S != "\x1b[31m" ||
		strings.Contains(out.String(), "\x1b") {
		t.Errorf("%q: %v", out.String(), err)
	}
}

// TestQueriesStayInside: a query reads nothing but the recordings, writes nothing, and runs no program.
func TestQueriesStayInside(t *testing.T) {
	duckdb(t)
	dir, _ := scene(t)
	outside := filepath.Join(t.TempDir(), "outside.csv")
	must.NoError(t, os.WriteFile(outside, []byte("a\n1\n"), 0o600))
	written := filepath.Join(t.TempDir(), "written")
	for _, sql := range []string{
		"SELECT * FROM " + text(outside), "SELECT * FROM read_csv(" + text(outside) + ")",
		"SELECT * FROM read_text('/etc/hostname')", "SELECT * FROM glob('/etc/*')",
		"COPY (SELECT 1) TO " + text(written), "EXPORT DATABASE " + text(written), "ATTACH " + text(written),
		"INSTALL httpfs", "LOAD httpfs", "SET enable_external_access=true", "SET allowed_directories=['/']",
		"RESET lock_configuration",
		".shell touch " + written, "  .shell touch " + written, "-- x\n.shell touch " + written,
		"/* x */ .shell touch " + written, "SELECT 1; SELECT 2", "SELECT 1;;.shell touch " + written, "", "  ",
		"SELECT 1\x00", strings.Repeat(" ", maxSQL) + "SELECT 1", "SELECT", "SELECT nope FROM kernels",
	} {
		var out bytes.Buffer
		err := Run(t.Context(),
			Query{SQL: sql, From: Local{Path: dir, MaxMemory: testMemory}, MaxMemory: testMemory}, &out)
		if rows := strings.Count(out.String(), "\n"); err == nil && rows > 1 {
			t.Errorf("%.100q is answered: %q", sql, out.String())
		}
		if err != nil &&
			(clierror.CodeOf(err) != clierror.Usage || clierror.HintOf(err) == "" || strings.ContainsAny(
				err.Error(), "\n\x1b",
			)) {
			t.Errorf("%.100q: %q, code %d, hint %q", sql, err, clierror.CodeOf(err), clierror.HintOf(err))
		}
	}
	if _, err := os.Stat(written); err == nil {
		t.Error("a query wrote a file")
	}
}

// TestNoProgram: without duckdb the error says how to get it.
func TestNoProgram(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	err := Run(t.Context(), Query{SQL: "SELECT 1", From: Local{Path: t.TempDir()}}, &bytes.Buffer{})
	if clierror.CodeOf(err) != clierror.Unsupported ||
		!strings.Contains(clierror.HintOf(err), "pip install duckdb-cli") {
		t.Errorf("%v, code %d, hint %q", err, clierror.CodeOf(err), clierror.HintOf(err))
	}
}

// TestHostileFolders: a recording cannot have DuckDB read what lies elsewhere.
func TestHostileFolders(t *testing.T) {
	duckdb(t)
	for name, harm := range map[string]func(folder string) error{
		"link to a file": func(folder string) error {
			file := filepath.Join(folder, "kernels", "000001.parquet")
			return os.Symlink("/etc/passwd", rename(t, file))
		},
		"link to a folder": func(folder string) error {
			return os.Symlink(t.TempDir(), rename(t, filepath.Join(folder, "kernels")))
		},
		"pattern": func(folder string) error {
			manifest := filepath.Join(folder, "manifest.json")
			data, err := os.ReadFile(manifest)
			if err != nil {
				return err
			}
			return os.WriteFile(manifest,
				bytes.ReplaceAll(data, []byte("kernels/000001.parquet"), []byte("kernels/0*0001.parquet")),
				0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			folder := filepath.Join(t.TempDir(), "a.isc")
			must.NoError(t, archive.Write(folder, exporttest.Decode(5), nil))
			must.NoError(t, harm(folder))
			var out bytes.Buffer
			err := Run(
				t.Context(),
				Query{
					SQL:       "SELECT count(*) FROM kernels",
					From:      Local{Path: folder, MaxMemory: testMemory},
					MaxMemory: testMemory,
				},
				&out,
			)
			if err == nil {
				t.Errorf("it answers %q", out.String())
			}
		})
	}
}

// rename moves a file away and returns its name.
func rename(t *testing.T, name string) string {
	t.Helper()
	must.NoError(t, os.Rename(name, filepath.Join(t.TempDir(), "away")))
	return name
}

// FuzzScan: any text has an end, and a statement that passes has no second one by DuckDB's own rules for quotes.
func FuzzScan(f *testing.F) {
	for _, s := range []string{
		"SELECT 1", "a;b", "'a;b'", `"a;b"`, "$$a;b$$", "$x$a;$y$;b$x$", "--a;b\nc", "/*;*/d;", "E'\\';'", "é;", "$1",
		"'",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		words, err := scan(s)
		if err != nil {
			return
		}
		for w := range words {
			if !strings.Contains(strings.ToLower(s), w) {
				t.Errorf("word %q is not in %s", w, strconv.Quote(s))
			}
		}
	})
}

// Of many recordings, one that is damaged is left out with a warning, whatever is asked; of one it is an error.
func TestDamagedRecordings(t *testing.T) {
	duckdb(t)
	dir, _ := scene(t)
	folder := filepath.Join(dir, "\x1b[31mone"+archive.Extension) // a terminal would print it in red
	must.NoError(t, os.Rename(filepath.Join(dir, "one"+archive.Extension), folder))
	kernels := filepath.Join(folder, "kernels", "000001.parquet")
	whole, err := os.ReadFile(kernels)
	must.NoError(t, err)
	changed := bytes.Clone(whole)
	changed[len(changed)/2] ^= 1
	run := func(sql, place string) (answer, warned string, err error) {
		var out, warnings bytes.Buffer
		q := Query{
			SQL: sql, From: Local{Path: place, MaxMemory: testMemory}, MaxMemory: testMemory,
			Warn: func(text string) { fmt.Fprintln(&warnings, text) },
		}
		err = Run(t.Context(), q, &out)
		return out.String(), warnings.String(), err
	}
	for name, test := range map[string]struct {
		data []byte
		sql  string
	}{
		"cut off":           {whole[:len(whole)/2], "SELECT count(DISTINCT recording) AS n FROM kernels"},
		"changed":           {changed, "SELECT count(DISTINCT recording) AS n FROM kernels"},
		"changed, analyzed": {changed, "SELECT count(DISTINCT recording) AS n FROM findings"},
	} {
		must.NoError(t, os.WriteFile(kernels, test.data, 0o600))
		answer, warned, err := run(test.sql, dir)
		if err != nil || answer != "n\n2\n" || !strings.HasPrefix(warned, "left out: ?[31mone.isc: ") ||
			strings.Count(warned, "\n") != 1 || strings.Contains(warned, "\x1b") {
			t.Errorf("%s: %q, warned %q: %v", name, answer, warned, err)
		}
		if _, _, err := run(test.sql, folder); err == nil {
			t.Errorf("%s: one recording, and no error", name)
		}
		two := t.TempDir()
		for _, copied := range []string{"a", "b"} {
			must.NoError(t, os.CopyFS(filepath.Join(two, copied+archive.Extension), os.DirFS(folder)))
		}
		answer, _, err = run(test.sql, two)
		if answer != "" || err == nil || !strings.Contains(err.Error(), "all recordings") {
			t.Errorf("%s: all are damaged: %q: %v", name, answer, err)
		}
	}
}
