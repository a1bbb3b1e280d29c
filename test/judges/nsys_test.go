package judges

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/csv"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the driver

	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/importer"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
	"github.com/inferscope/inferscope/internal/testkit/nvlibs"
)

// nsys is Nsight Systems out of Debian's packages, unpacked and not installed.
type nsys struct {
	t    *testing.T
	root string // of the packages' files
	dir  string // for what it writes
}

// testTimeout is how long one step of nsys may take, on a busy machine.
const testTimeout = 2 * time.Minute

// command makes a command that finds the library that the packages leave to the system (libssh).
func (n nsys) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(n.root, "usr/lib/nsight-systems", program), args...)
	cmd.Dir = n.dir
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(n.root, "usr/lib/x86_64-linux-gnu"),
		"TMPDIR="+n.dir)
	return cmd
}

func (n nsys) run(program string, args ...string) []byte {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), testTimeout)
	defer cancel()
	out, err := n.command(ctx, program, args...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			out = append(out, exit.Stderr...)
		}
		n.t.Fatalf("%s %q: %v\n%s", program, args, err, out)
	}
	return out
}

// profile records a program for two seconds and returns the SQLite file that nsys makes of it. The importer is not
// where these packages' nsys looks for it, so it is run here. On a busy machine nsys may not find its own agent's
// semaphore: it is asked three times.
func (n nsys) profile(program string, flags ...string) string {
	n.t.Helper()
	raw, said := filepath.Join(n.dir, "x.qdstrm"), ""
	for range 3 {
		said = n.record(program, flags...)
		if _, err := os.Stat(raw); err == nil {
			break
		}
	}
	if _, err := os.Stat(raw); err != nil {
		n.t.Skipf("this nsys records nothing here: %s", said)
	}
	report, sqlite := filepath.Join(n.dir, "x.nsys-rep"), filepath.Join(n.dir, "x.sqlite")
	n.run("host-linux-x64/QdstrmImporter", "-i", raw, "-o", report)
	n.run("target-linux-x64/nsys", "export", "--type", "sqlite", "-o", sqlite, report)
	return sqlite
}

// record has nsys record, into x.qdstrm, and returns what it said.
func (n nsys) record(program string, flags ...string) string {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), testTimeout)
	defer cancel()
	args := slices.Concat(
		[]string{"profile", "-d", "2", "--kill", "sigkill", "-t", "nvtx,osrt", "-o", filepath.Join(n.dir, "x")},
		flags,
		[]string{program},
	)
	cmd := n.command(ctx, "target-linux-x64/nsys", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // its agent goes with it
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &said, &said, time.Second
	err := cmd.Run()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	return fmt.Sprintf("%v\n%s", err, &said)
}

// total is a row of nsys's own summaries.
type total struct{ count, ns int64 }

// stats returns a summary by name; reports were renamed between versions.
func (n nsys) stats(sqlite string, reports ...string) map[string]total {
	n.t.Helper()
	for _, report := range reports {
		rows := csv.NewReader(
			bytes.NewReader(n.run("target-linux-x64/nsys", "stats", "--report", report, "--format", "csv", sqlite)),
		)
		rows.FieldsPerRecord = -1
		all, err := rows.ReadAll()
		must.NoError(n.t, err)
		head := slices.IndexFunc(all, func(r []string) bool { return len(r) > 0 && r[0] == "Time (%)" })
		if head < 0 {
			continue
		}
		count := slices.IndexFunc(all[head], func(c string) bool { return c == "Instances" || c == "Num Calls" })
		name := len(all[head]) - 1
		out := map[string]total{}
		for _, r := range all[head+1:] {
			if len(r) == len(all[head]) {
				out[strings.TrimPrefix(r[name], ":")] = total{number(n.t, r[count]), number(n.t, r[1])}
			}
		}
		return out
	}
	n.t.Fatalf("nsys stats has none of %q", reports)
	return nil
}

func number(t *testing.T, s string) int64 {
	t.Helper()
	v, err := strconv.ParseInt(s, 10, 64)
	must.NoError(t, err)
	return v
}

// ranges compiles the program whose ranges are known.
func ranges(t *testing.T) string {
	t.Helper()
	header := nvlibs.Header(t, nvlibs.NVTX, "nvToolsExt.h")
	program := filepath.Join(t.TempDir(), "ranges")
	out, err := exec.Command("cc", "-g", "-O1", "-I", filepath.Dir(filepath.Dir(header)), "-o", program,
		"testdata/ranges.c", "-ldl", "-lpthread").
		CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("needs tool cc")
	}
	if err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	return program
}

// TestNsightSystems has a real Nsight Systems record a program without a GPU, and holds what is imported of its SQLite
// file against nsys's own summaries and against the file's tables.
func TestNsightSystems(t *testing.T) {
	for part, flags := range map[nvlibs.Part][]string{
		// The agent of 2022.4 spins for ever on samples of threads that have ended, on kernel 6.18 at least.
		nvlibs.Nsys2022: {"-s", "none", "--cpuctxsw", "none"},
		nvlibs.Nsys2023: {"-s", "process-tree", "--cpuctxsw", "process-tree"},
	} {
		t.Run(string(part), func(t *testing.T) {
			needs.Root(t, "nsys samples and reads switches of threads")
			n := nsys{t: t, root: nvlibs.Fetch(t, part), dir: t.TempDir()}
			sqlite := n.profile(ranges(t), flags...)
			rec, err := importer.Open(sqlite)
			must.NoError(t, err)
			if err := timeline.Build(rec).Check(); err != nil {
				t.Error(err)
			}
			named := n.stats(sqlite, "nvtx_pushpop_sum", "nvtxsum")
			if ours := rangesOf(rec); !maps.Equal(ours, named) || ours["outer"].count != 150 ||
				ours["inner"].count != 150 {
				t.Errorf("ranges are %v, nsys has %v", ours, named)
			}
			calls := int64(0)
			for _, c := range n.stats(sqlite, "osrt_sum", "osrtsum") {
				calls += c.count
			}
			t.Logf("ranges %v; nsys counts %d calls of the system's libraries", named, calls)
			sampled := flags[1] != "none"
			compareCPU(t, rec, sqlite, sampled)
		})
	}
}

// rangesOf counts the named ranges of a recording.
func rangesOf(rec *recording.Recording) map[string]total {
	out := map[string]total{}
	for i := range rec.Events {
		if e := &rec.Events[i]; e.Kind == event.Range {
			name := rec.Meta.GPU.Ranges[e.Ret-1]
			out[name] = total{out[name].count + 1, out[name].ns + int64(e.Dur)}
		}
	}
	return out
}

// compareCPU compares samples and switches with the tables, counted by SQL in another way than the importer's.
func compareCPU(t *testing.T, rec *recording.Recording, sqlite string, recorded bool) {
	t.Helper()
	samples, switches, ends, off, unexplained := 0, 0, 0, uint64(0), 0
	stacks := map[uint64]bool{}
	for i := range rec.Events {
		switch e := &rec.Events[i]; e.Kind {
		case event.Sample:
			if e.Func == uint16(event.Traced) { // of a range
				continue
			}
			samples++
			stacks[e.Args[0]] = true
		case event.OffCPU:
			if e.Flags&event.Open != 0 || e.TS == rec.Meta.From { // the table may have one end of it alone
				ends++
				continue
			}
			switches++
			off += e.Dur
			if e.Func == event.Unexplained {
				unexplained++
			}
		}
	}
	t.Logf("%d samples with %d stacks of %d frames, %d intervals off a CPU, %.3f s together",
		samples, len(stacks), len(rec.Meta.Frames), switches, float64(off)/1e9)
	if (samples > 0) != recorded || (switches > 0) != recorded {
		t.Errorf("%d samples and %d switches, where recording them was asked for: %v", samples, switches, recorded)
	}
	if want := rowsOf(t, sqlite, "COMPOSITE_EVENTS"); samples != want {
		t.Errorf("%d samples for %d rows", samples, want)
	}
	if unexplained != switches {
		t.Errorf("nsys does not say why a thread left its CPU, but %d of %d say it here",
			switches-unexplained, switches)
	}
	if !recorded {
		return
	}
	const rows = `FROM (SELECT start, isSchedIn, lag(start) OVER w AS gone, lead(start) OVER w AS back FROM SCHED_EVENTS WINDOW w AS (PARTITION BY globalTid ORDER BY start, isSchedIn))`
	pairs := fmt.Sprintf(
		`SELECT count(*), coalesce(sum(start - gone), 0) %s WHERE isSchedIn = 1 AND gone > %d`,
		rows,
		rec.Meta.From,
	)
	if count, ns := pairOf(t, sqlite, pairs); count != int64(switches) || ns != int64(off) {
		t.Errorf("%d intervals of %d ns, the table has %d of %d ns", switches, off, count, ns)
	}
	halves := fmt.Sprintf(
		`SELECT count(*), 0 %s WHERE isSchedIn = 1 AND coalesce(gone, %[2]d) = %[2]d AND start > %[2]d OR isSchedIn = 0 AND back IS NULL AND start < %[3]d`,
		rows,
		rec.Meta.From,
		rec.Meta.To,
	)
	if count, _ := pairOf(t, sqlite, halves); count != int64(ends) {
		t.Errorf("%d intervals from the beginning or to the end, the table has %d", ends, count)
	}
	main := false
	for _, f := range rec.Meta.Frames {
		main = main || f.Name == "main" && f.File == "ranges"
	}
	if !main {
		t.Error("no sample is in main of the program, which computes all the time")
	}
}

// pairOf runs a query that returns two numbers.
func pairOf(t *testing.T, path, query string) (a, b int64) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?mode=ro&immutable=1")
	must.NoError(t, err)
	defer db.Close()
	must.NoError(t, db.QueryRowContext(t.Context(), query).Scan(&a, &b))
	return a, b
}

// rowsOf counts the rows of a table, 0 where there is none.
func rowsOf(t *testing.T, path, table string) int {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?mode=ro&immutable=1")
	must.NoError(t, err)
	defer db.Close()
	n := 0
	err = db.QueryRowContext(t.Context(), `SELECT count(*) FROM "`+table+`"`).Scan(&n)
	if err != nil && !strings.Contains(err.Error(), "no such table") {
		t.Fatal(err)
	}
	return n
}
