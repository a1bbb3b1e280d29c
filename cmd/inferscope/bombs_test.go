package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/memlimit"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// Variables that make the test's program the client, or one that starts the client and writes its peak memory in KiB to
// a file: ru_maxrss is never below what the process that forks has itself, and that of the tests is large.
const (
	clientEnv  = "TEST_AS_CLIENT"
	measureEnv = "TEST_MEASURE_CLIENT"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(measureEnv) != "":
		os.Exit(measure())
	case os.Getenv(clientEnv) != "":
		main()
	}
	os.Exit(m.Run())
}

func measure() int {
	place := os.Getenv(measureEnv)
	_ = os.Unsetenv(measureEnv)
	cmd := exec.Command(os.Args[0], os.Args[1:]...) //nolint:gosec,noctx // this program; it ends by itself
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	_ = cmd.Run()
	peak := cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss
	_ = os.WriteFile(place, []byte(strconv.FormatInt(peak, 10)), 0o600)
	return cmd.ProcessState.ExitCode()
}

// client is the real client as a process.
func client(t *testing.T, args ...string) (cmd *exec.Cmd, stderr *bytes.Buffer) {
	t.Helper()
	self, err := os.Executable()
	must.NoError(t, err)
	stderr = new(bytes.Buffer)
	cmd = exec.CommandContext(t.Context(), self, args...)
	cmd.Dir, cmd.Env, cmd.Stderr = t.TempDir(), append(os.Environ(), clientEnv+"=1"), stderr
	return cmd, stderr
}

// packed makes a gzip file of what is written.
func packed(t *testing.T, name string, write func(w io.Writer)) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	f, err := os.Create(path)
	must.NoError(t, err)
	z, err := gzip.NewWriterLevel(f, gzip.BestSpeed)
	must.NoError(t, err)
	write(z)
	must.NoError(t, errors.Join(z.Close(), f.Close()))
	return path
}

func repeat(w io.Writer, text string, bytes int) {
	block := strings.Repeat(text, (1<<20)/len(text))
	for n := 0; n < bytes; n += len(block) {
		_, _ = io.WriteString(w, block)
	}
}

// rows makes a trace of so many calls of many processes.
func rows(t *testing.T, n int) string {
	return packed(t, "rows.json.gz", func(w io.Writer) {
		_, _ = io.WriteString(w, `{"traceEvents":[`)
		for i := range n {
			fmt.Fprintf(
				w,
				`{"ph":"X","cat":"cuda_runtime","name":"f","pid":%d,"tid":1,"ts":%d,"dur":1,"args":{"correlation":%d}},`,
				i%50_000,
				i,
				i,
			)
		}
		_, _ = io.WriteString(w, `{}]}`)
	})
}

// crowd makes a packed recording of many events that take nearly no room in it.
func crowd(t *testing.T, n int) string {
	rec := &recording.Recording{
		Meta: recording.Meta{
			Schema: recording.SchemaVersion,
			Target: 1,
			To:     9_000_000_000,
			Functions: []recording.Function{
				{Name: "cuLaunchKernel", Base: "cuLaunchKernel", Library: "driver", Group: "launch", Timed: true},
			},
		},
	}
	rec.Meta.Processes = []recording.Process{{PID: 1, Comm: "bomb"}}
	for i := range n {
		rec.Events = append(rec.Events, event.Event{
			TS:    uint64(i) * 1000,
			Dur:   500,
			PID:   1,
			TID:   uint32(i % 1000),
			Kind:  event.Call,
			Flags: event.Timed,
		})
	}
	dir := filepath.Join(t.TempDir(), "crowd.isc")
	must.NoError(t, errors.Join(archive.Write(dir, rec, nil), archive.Pack(dir, dir+".zip", false)))
	return dir + ".zip"
}

// blob makes a database of Nsight Systems with one text of so many bytes.
func blob(t *testing.T, bytes int) string {
	path := filepath.Join(t.TempDir(), "blob.sqlite")
	db, err := sql.Open("sqlite", path)
	must.NoError(t, err)
	for _, q := range []string{"PRAGMA journal_mode=off", "CREATE TABLE StringIds (id INTEGER, value TEXT)", fmt.Sprintf("INSERT INTO StringIds VALUES (1, zeroblob(%d))", bytes)} {
		if _, err := db.ExecContext(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	must.NoError(t, db.Close())
	return path
}

// TestTraceLargerThanMemory: of a trace with more rows than fit, the beginning is reported on, and the report says so.
func TestTraceLargerThanMemory(t *testing.T) {
	needs.Long(t)
	path := rows(t, 600_000)
	cmd, stderr := client(t, "analyze", "--full", "--no-pager", "--max-memory", fmt.Sprint(256<<20), path)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	if want := "rows of the trace did not fit into memory: this is about its beginning"; !strings.Contains(
		strings.ToLower(strings.Join(strings.Fields(string(out)), " ")),
		want,
	) {
		t.Errorf("it does not say %q:\n%.3000s", want, out)
	}
}

// TestBombs: no file has the client take more memory than it may, and the error names the file, its size and what to
// do.
func TestBombs(t *testing.T) {
	const (
		limit = 256 << 20
		slack = 160 << 20 // the program itself, and what it takes until it notices
	)
	for name, c := range map[string]struct {
		make func(t *testing.T) string
		says string
		hint bool
	}{
		"one long text": {func(t *testing.T) string {
			return packed(t, "text.json.gz", func(w io.Writer) { _, _ = io.WriteString(w, `{"x":"`); repeat(w, "a", 1<<29) })
		}, "longer than the limit", false},
		"one long row": {func(t *testing.T) string {
			return packed(t, "row.json.gz", func(w io.Writer) { _, _ = io.WriteString(w, `[{"args":{"x":"`); repeat(w, "[", 1<<29) })
		}, "longer than the limit", false},
		"a long name": {func(t *testing.T) string {
			return packed(t, "name.json.gz", func(w io.Writer) { _, _ = io.WriteString(w, `{"`); repeat(w, "a", 1<<29) })
		}, "longer than the limit", false},
		"deep nesting": {func(t *testing.T) string {
			return packed(t, "deep.json.gz", func(w io.Writer) { _, _ = io.WriteString(w, `{"x":`); repeat(w, "[", 1<<28) })
		}, "nested deeper", false},
		"devices": {func(t *testing.T) string {
			return packed(t, "devices.json.gz", func(w io.Writer) { _, _ = io.WriteString(w, `{"deviceProperties":[{}`); repeat(w, ",{}", 1<<29) })
		}, "devices, the limit", false},
		"many events":     {func(t *testing.T) string { return crowd(t, 2_000_000) }, "events, the limit", true},
		"dear to analyse": {func(t *testing.T) string { return crowd(t, 1_200_000) }, "of memory, the limit", true},
		"a large text":    {func(t *testing.T) string { return blob(t, 300<<20) }, "memory", true},
	} {
		t.Run(name, func(t *testing.T) {
			path := c.make(t)
			info, err := os.Stat(path)
			must.NoError(t, err)
			cmd, stderr := client(t, "analyze", "--max-memory", fmt.Sprint(limit), path)
			place := filepath.Join(t.TempDir(), "peak")
			cmd.Env = append(cmd.Env, measureEnv+"="+place)
			began := time.Now()
			err = cmd.Run()
			text, _ := os.ReadFile(place)
			peak, missing := strconv.ParseInt(string(text), 10, 64)
			peak <<= 10
			if missing != nil || peak == 0 {
				t.Fatalf("nothing was measured: %v, %v", err, missing)
			}
			t.Logf("%d kB, %s, peak %d MiB: %s",
				info.Size()>>10, time.Since(began).Round(time.Millisecond), peak>>20, stderr)
			if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(stderr.String(), c.says) ||
				strings.Contains(stderr.String(), "goroutine ") {
				t.Errorf("it ends with %v and says:\n%.2000s", err, stderr)
			}
			if c.hint &&
				(!strings.Contains(stderr.String(), "--max-memory 5") || !strings.Contains(stderr.String(), filepath.Base(path)+" (")) {
				t.Errorf("it does not say what to do, or not of what: %s", stderr)
			}
			if peak > limit+slack {
				t.Errorf("it took %d MiB", peak>>20)
			}
			if left, err := os.ReadDir(cmd.Dir); err != nil || len(left) > 0 {
				t.Errorf("it left %v, %v", left, err)
			}
		})
	}
}

// worked waits until a process has used so much time of a CPU, user and system.
func worked(t *testing.T, cmd *exec.Cmd, least time.Duration) {
	t.Helper()
	for {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if err != nil || len(fields) < 13 || fields[0] == "Z" {
			t.Fatalf("it has ended already: %v", err)
		}
		var user, system int64
		_, _ = fmt.Sscan(fields[11]+" "+fields[12], &user, &system)
		if time.Duration(user+system)*10*time.Millisecond >= least { // USER_HZ is 100
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TestInterruptAtOnce: the first Ctrl-C ends a command wherever it is, and nothing is left behind.
func TestInterruptAtOnce(t *testing.T) {
	trace, recording, large := rows(t, 1_000_000), crowd(t, 1_000_000), crowd(t, 4_000_000)
	for name, args := range map[string][]string{
		"import":  {"import", trace},
		"analyze": {"analyze", recording, "-o", "report.md"},
		"export":  {"export", large, "-o", "x.csv"},
		"diff":    {"diff", recording, recording},
		"whatif":  {"whatif", recording},
	} {
		for _, least := range []time.Duration{200 * time.Millisecond, 700 * time.Millisecond} {
			if name == "export" && least > 500*time.Millisecond {
				continue // it has ended by then
			}
			t.Run(fmt.Sprint(name, " after ", least), func(t *testing.T) {
				cmd, stderr := client(t, args...)
				cmd.Args = append(cmd.Args, "--max-memory", "8GB")
				must.NoError(t, cmd.Start())
				defer func() { _ = cmd.Process.Kill() }()
				worked(t, cmd, least)
				sent := time.Now()
				must.NoError(t, cmd.Process.Signal(unix.SIGINT))
				err := cmd.Wait()
				took := time.Since(sent)
				if took > time.Second || cmd.ProcessState.ExitCode() != 1 ||
					!strings.Contains(stderr.String(), "interrupted") {
					t.Errorf("it took %s, ended with %v and said %s", took, err, stderr)
				}
				if left, err := filepath.Glob(filepath.Join(cmd.Dir, "*.tmp")); err != nil || len(left) > 0 {
					t.Errorf("it left %v, %v", left, err)
				}
			})
		}
	}
}

// TestLimitOfAQuickCommand: a command can have ended before anybody has looked whether it has begun to read.
func TestLimitOfAQuickCommand(t *testing.T) {
	for range 64 {
		ended, begun := make(chan error, 1), make(chan context.Context, 1)
		begun <- t.Context()
		ended <- fmt.Errorf("too large: %w", memlimit.ErrExceeded)
		err := newGlobal(process{}).outcome(t.Context(), ended, begun)
		if !strings.Contains(clierror.HintOf(err), "--max-memory") {
			t.Fatalf("it says %v", err)
		}
	}
}
