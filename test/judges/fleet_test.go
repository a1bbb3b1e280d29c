package judges

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"github.com/inferscope/inferscope/internal/fleet"
	"github.com/inferscope/inferscope/internal/query"
	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/exporttest"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/s3test"
)

const (
	fleetRecordings = 100
	fleetPrefix     = "inferscope/prod"
)

// fleetQueries are written as docs/recordings.md has them for ClickHouse and Spark, over tables of the store; duckdb is
// the same over the views of inferscope query, where that differs.
var fleetQueries = []struct{ name, sql, duckdb string }{
	{
		"idle time by cause",
		"SELECT part AS cause, sum(time_ns) AS ns FROM gpu_time WHERE NOT busy GROUP BY part ORDER BY ns DESC, cause",
		"SELECT cause, sum(idle_ns) AS ns FROM idle GROUP BY cause ORDER BY ns DESC, cause",
	},
	{
		"findings by node",
		"SELECT node, verdict, cause, count(*) AS n, sum(cost_ns) AS ns FROM findings " +
			"GROUP BY node, verdict, cause ORDER BY node, cause",
		"",
	},
	{
		"recordings by node",
		"SELECT node, count(*) AS n, sum(events) AS e, min(from_ns) AS a, max(to_ns) AS z FROM recordings " +
			"GROUP BY node ORDER BY node",
		"",
	},
	{
		"recordings by day",
		"SELECT date AS day, count(DISTINCT hour) AS hours, count(*) AS n FROM recordings " +
			"GROUP BY date ORDER BY date",
		"SELECT strftime(make_timestamp_ns(from_ns), '%Y-%m-%d') AS day, " +
			"count(DISTINCT strftime(make_timestamp_ns(from_ns), '%H')) AS hours, count(*) AS n FROM recordings " +
			"GROUP BY day ORDER BY day",
	},
	{
		"kernels",
		"SELECT grid_x, count(*) AS n, sum(duration_ns) AS ns FROM kernels GROUP BY grid_x ORDER BY grid_x",
		"",
	},
}

// fleetOf writes recordings of several nodes, days and programs, and has the process that keeps recordings upload them.
// It returns what the events say: kernels and their time by grid.
func fleetOf(t *testing.T, address string) map[int64][2]int64 {
	t.Helper()
	kernels := map[int64][2]int64{}
	const nodes = 4
	dirs := make([]string, nodes)
	for i := range dirs {
		dirs[i] = filepath.Join(t.TempDir(), fmt.Sprint("node-", i))
		must.NoError(t, os.Mkdir(dirs[i], 0o700))
	}
	for i := range fleetRecordings {
		rec := exporttest.Decode(5 + i%7)
		rec.Meta.WallFrom = 1_764_000_000_000_000_000 + int64(i)*1_700_000_000_000
		for k := range rec.Events {
			if e := &rec.Events[k]; e.Kind == event.Kernel {
				grid := int64(32 << (i % 5))
				e.Args[2] = e.Args[2]&^math.MaxUint32 | uint64(grid)
				kernels[grid] = [2]int64{kernels[grid][0] + 1, kernels[grid][1] + int64(e.Dur)}
			}
		}
		at := time.Unix(0, rec.Meta.WallFrom).UTC()
		name := fmt.Sprintf("%s-%d-python", at.Format("20060102T150405.000Z"), 1000+i)
		must.NoError(t, archive.Write(filepath.Join(dirs[i%nodes], name+archive.Extension), rec, nil))
	}
	for i, dir := range dirs {
		keep(t, dir, fmt.Sprint("node-", i), address)
	}
	return kernels
}

// keep runs the process that keeps recordings until it has uploaded what lies in dir.
func keep(t *testing.T, dir, node, address string) {
	t.Helper()
	// The daemon, which is asked nothing here.
	short, err := os.MkdirTemp("", "fleet")
	must.NoError(t, err)
	defer os.RemoveAll(short)
	daemon, err := net.Listen("unix", filepath.Join(short, "s"))
	must.NoError(t, err)
	defer daemon.Close()
	config := fleet.Config{
		Socket: filepath.Join(short, "s"), Dir: dir, Quota: 1 << 40,
		Upload: &fleet.UploadConfig{
			Endpoint: "http://" + address, Region: "us-east-1", Bucket: s3test.Bucket, Prefix: fleetPrefix,
			Node: node, Raw: fleet.RawAlways,
		},
	}
	order, err := json.Marshal(map[string]any{"config": config})
	must.NoError(t, err)
	// A process of its own: it makes itself nice, which would hold for the engines too.
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fleetWorkerEnv+"=1")
	cmd.Stderr = os.Stderr
	feed, err := cmd.StdinPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	if _, err := feed.Write(append(order, '\n')); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if left, err := fleet.Recordings(dir); err == nil && len(left) == 0 {
			break
		}
		select {
		case err := <-done:
			t.Fatalf("it ended: %v", err)
		default:
		}
		if time.Now().After(end) {
			t.Fatal("recordings are not uploaded")
		}
	}
	_ = feed.Close()
	must.NoError(t, <-done)
}

const fleetWorkerEnv = "JUDGES_TEST_FLEET_WORKER"

// TestMain is the process that keeps recordings where keep starts it.
func TestMain(m *testing.M) {
	if os.Getenv(fleetWorkerEnv) == "" {
		os.Exit(m.Run())
	}
	err := fleet.RunHelper(os.Stdin, io.Discard, zap.NewNop(), func(w *fleet.Worker, _ string) {
		w.SetTables(func(ctx context.Context, folder string, r fleet.Row) ([]fleet.SmallTable, error) {
			rec, err := archive.ReadContext(ctx, folder, archive.DefaultLimits())
			if err != nil {
				return nil, err
			}
			return query.Tables(rec, r)
		})
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "keeper:", err)
		os.Exit(1)
	}
}

// duckdbRows are the answers of inferscope query.
func duckdbRows(t *testing.T, address, sql string) [][]string {
	t.Helper()
	var out bytes.Buffer
	err := query.Run(t.Context(), query.Query{SQL: sql, MaxMemory: 1 << 30, From: query.Remote{
		Store: fleet.UploadConfig{
			Endpoint: "http://" + address,
			Region:   "us-east-1",
			Bucket:   s3test.Bucket,
			Prefix:   fleetPrefix,
		},
		Selection: fleet.Selection{MaxBytes: 1 << 30},
	}, Warn: func(text string) { t.Error(text) }}, &out)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	rows, err := csv.NewReader(&out).ReadAll()
	if err != nil || len(rows) < 2 {
		t.Fatalf("%s: %v %v", sql, rows, err)
	}
	return rows[1:]
}

// TestFleetEngines: DuckDB, ClickHouse and Spark give the same answers about a hundred uploaded recordings.
func TestFleetEngines(t *testing.T) {
	if os.Getenv(pythonEnv) == "" {
		t.Skipf("%s is not set: name a Python that has chdb and pyspark", pythonEnv)
	}
	tools, err := filepath.Abs("../../bin/tools")
	must.NoError(t, err)
	t.Setenv("PATH", os.Getenv("PATH")+":"+tools)
	if _, err := exec.LookPath("duckdb"); err != nil {
		t.Skip("needs duckdb: scripts/tools.sh pytools installs it")
	}
	s3 := s3test.Start(t)
	address, root := s3.Address, s3.Root
	kernels := fleetOf(t, address)
	want := make([][][]string, len(fleetQueries))
	config := map[string]any{
		"url": "http://" + address + "/" + s3test.Bucket + "/" + fleetPrefix + "/v=1", "key": s3test.AccessKey,
		"secret": s3test.SecretKey, "root": filepath.Join(root, s3test.Bucket, fleetPrefix, "v=1"),
	}
	var queries []string
	for i, q := range fleetQueries {
		queries = append(queries, q.sql)
		sql := q.sql
		if q.name == "kernels" {
			sql = strings.Replace(sql, "FROM kernels", "FROM raw.kernels", 1)
		}
		if q.duckdb != "" {
			sql = q.duckdb
		}
		want[i] = duckdbRows(t, address, sql)
	}
	t.Logf("DuckDB: %v", want)
	sum := 0
	for _, row := range want[2] {
		n := 0
		_, _ = fmt.Sscan(row[1], &n)
		sum += n
	}
	if sum != fleetRecordings {
		t.Errorf("DuckDB counts %d recordings instead of %d", sum, fleetRecordings)
	}
	for _, row := range want[4] {
		var grid, n, ns int64
		_, _ = fmt.Sscan(strings.Join(row, " "), &grid, &n, &ns)
		if kernels[grid] != [2]int64{n, ns} {
			t.Errorf("kernels of grid %d: DuckDB says %d in %d ns, the recordings %v", grid, n, ns, kernels[grid])
		}
	}
	if len(want[4]) != len(kernels) {
		t.Errorf("DuckDB finds %d grids instead of %d", len(want[4]), len(kernels))
	}
	config["queries"] = queries
	for engine, pkg := range map[string]string{"clickhouse": "chdb", "spark": "pyspark"} {
		t.Run(engine, func(t *testing.T) {
			config["engine"] = engine
			text, err := json.Marshal(config)
			must.NoError(t, err)
			file := filepath.Join(t.TempDir(), "config.json")
			must.NoError(t, os.WriteFile(file, text, 0o600))
			var got [][][]string
			judge(t, pkg, "fleet_judge.py", file, &got)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(- DuckDB, + %s):\n%s", engine, diff)
			}
		})
	}
}

// TestFleetSelection: only complete recordings of the time and node that is asked for are downloaded, and what is
// changed in the store is noticed.
func TestFleetSelection(t *testing.T) {
	s3 := s3test.Start(t)
	address, root := s3.Address, s3.Root
	dir := filepath.Join(t.TempDir(), "d")
	must.NoError(t, os.Mkdir(dir, 0o700))
	for i := range 3 {
		rec := exporttest.Decode(2)
		rec.Meta.WallFrom = time.Date(2026, 11, 25, 5+i, 0, 0, 0, time.UTC).UnixNano()
		must.NoError(t, archive.Write(filepath.Join(dir, fmt.Sprintf("2026-%d-python.isc", i)), rec, nil))
	}
	keep(t, dir, "a", address)
	store := fleet.UploadConfig{
		Endpoint: "http://" + address,
		Region:   "us-east-1",
		Bucket:   s3test.Bucket,
		Prefix:   fleetPrefix,
	}
	bring := func(s fleet.Selection) ([]fleet.Downloaded, error) {
		if s.MaxBytes == 0 {
			s.MaxBytes = 1 << 30
		}
		s.MaxRecordings, s.Tables, s.Small = 10, []string{"kernels"}, []string{"findings"}
		return fleet.Download(t.Context(), store, s, t.TempDir())
	}
	for name, c := range map[string]struct {
		s    fleet.Selection
		want int
	}{
		"all":   {fleet.Selection{}, 3},
		"since": {fleet.Selection{Since: time.Date(2026, 11, 25, 5, 30, 0, 0, time.UTC)}, 2},
		"until": {fleet.Selection{Until: time.Date(2026, 11, 25, 5, 30, 0, 0, time.UTC)}, 1},
		"day":   {fleet.Selection{Since: time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC)}, 0},
		"node":  {fleet.Selection{Node: "a"}, 3},
		"other": {fleet.Selection{Node: "b"}, 0},
	} {
		if found, err := bring(c.s); err != nil || len(found) != c.want {
			t.Errorf("%s: %d recordings, want %d: %v", name, len(found), c.want, err)
		}
	}
	if _, err := bring(fleet.Selection{MaxBytes: 100}); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("more is downloaded than is allowed: %v", err)
	}
	files, err := filepath.Glob(
		filepath.Join(root, s3test.Bucket, fleetPrefix, "v=1", "table=kernels", "*", "*", "*", "*.parquet"),
	)
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	data, err := os.ReadFile(files[0])
	must.NoError(t, err)
	data[len(data)/2] ^= 1
	must.NoError(t, os.WriteFile(files[0], data, 0o600))
	if _, err := bring(fleet.Selection{}); err == nil || !strings.Contains(err.Error(), "SHA-256") {
		t.Errorf("a changed file passes: %v", err)
	}
	// Without its manifest a recording is not complete.
	manifests, err := filepath.Glob(
		filepath.Join(root, s3test.Bucket, fleetPrefix, "v=1", "_manifest", "*", "*", "*.json"),
	)
	if err != nil || len(manifests) != 3 {
		t.Fatal(manifests, err)
	}
	for _, m := range manifests {
		must.NoError(t, os.Remove(m))
	}
	if found, err := bring(fleet.Selection{}); err != nil || len(found) != 0 {
		t.Errorf("without manifests: %d recordings, %v", len(found), err)
	}
}
