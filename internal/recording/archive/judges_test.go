package archive_test

import (
	"encoding/json"
	"fmt"
	"math/big"
	"math/bits"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// judge has DuckDB and pyarrow read every file of a recording. Both say how many rows a table has, and what
// the durations of the kernels sum up to.
const judge = `
import glob, json, sys
import duckdb, pyarrow.parquet as pq
root, out = sys.argv[1], {}
for folder in sorted(glob.glob(root + "/*/")):
    name = folder.rstrip("/").split("/")[-1]
    files = glob.glob(folder + "*.parquet")
    table = pq.read_table(files[0])
    for f in files[1:]:
        assert pq.read_table(f).schema == table.schema, f
    assert all(not field.nullable for field in table.schema), name
    rows = duckdb.sql(f"SELECT count(*), count(DISTINCT COLUMNS(*)) FROM '{folder}*.parquet'").fetchall()[0][0]
    assert rows == sum(pq.read_table(f).num_rows for f in files), name
    out[name] = rows
kernels = duckdb.sql(f"SELECT sum(duration_ns::HUGEINT), sum(bit_count(graph_node)), sum(grid_x::HUGEINT) FROM '{root}/kernels/*.parquet'").fetchall()[0]
out["sums"] = [str(v) for v in kernels]
json.dump(out, sys.stdout)
`

// TestOthersReadTheTables: DuckDB and pyarrow find what was written.
func TestOthersReadTheTables(t *testing.T) {
	python := os.Getenv("INFERSCOPE_TEST_PYTHON")
	if python == "" {
		python = "python3"
	}
	if out, err := exec.Command(python, "-c", "import duckdb, pyarrow.parquet").CombinedOutput(); err != nil {
		t.Skipf(
			"needs a Python with duckdb and pyarrow (pip install duckdb pyarrow; INFERSCOPE_TEST_PYTHON names it): "+
				"%v %s",
			err,
			out,
		)
	}
	rec := random(rand.New(rand.NewPCG(11, 11)), 5000)
	dir := filepath.Join(t.TempDir(), "a.isc")
	must.NoError(t, archive.Write(dir, rec, nil))
	cmd := exec.Command(python, "-c", judge, dir)
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	var found map[string]any
	must.NoError(t, json.Unmarshal(text, &found))
	in, err := archive.Inspect(dir, true)
	must.NoError(t, err)
	events := 0
	for _, table := range in.Tables {
		if n, _ := found[table.Name].(float64); int(n) != table.Rows {
			t.Errorf("%s: %v rows instead of %d", table.Name, found[table.Name], table.Rows)
		}
		if table.Event {
			events += table.Rows
		}
	}
	if events != len(rec.Events) {
		t.Errorf("%d rows in tables of events instead of %d", events, len(rec.Events))
	}
	if want := kernelSums(rec.Events); found["sums"] == nil || !equalStrings(found["sums"].([]any), want[:]) {
		t.Errorf("sums over kernels are %v instead of %v", found["sums"], want)
	}
}

// fleet has a reader add up the durations of the kernels of two recordings, as one table.
var fleet = map[string]string{
	"duckdb":  `import duckdb; print(duckdb.sql(f"SELECT count(*), sum(duration_ns) FROM '{root}/*.isc/kernels/*.parquet'").fetchall()[0])`,
	"pandas":  `import pandas; t = pandas.concat(pandas.read_parquet(f) for f in glob.glob(root + "/*.isc/kernels")); print((len(t), int(t.duration_ns.sum())))`,
	"polars":  `import polars; print(polars.scan_parquet(root + "/*.isc/kernels/*.parquet").select(polars.len().cast(polars.Int64), polars.col("duration_ns").sum()).collect().row(0))`,
	"pyspark": `from pyspark.sql import SparkSession; s = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate(); t = s.read.parquet(*glob.glob(root + "/*.isc/kernels")); print((t.count(), t.agg({"duration_ns": "sum"}).first()[0]))`,
}

// TestOthersReadAFleet: each reader takes two recordings as they lie there, and finds the kernels of both.
func TestOthersReadAFleet(t *testing.T) {
	python := os.Getenv("INFERSCOPE_TEST_PYTHON")
	if python == "" {
		t.Skip("INFERSCOPE_TEST_PYTHON is not set: make test-judges installs the readers and sets it")
	}
	root, rec := t.TempDir(), decode(1)
	kernels, busy := 0, uint64(0)
	for _, name := range []string{"a.isc", "b.isc"} {
		must.NoError(t, archive.Write(filepath.Join(root, name), rec, nil))
		for i := range rec.Events {
			if e := &rec.Events[i]; e.Kind == event.Kernel {
				kernels++
				busy += e.Dur
			}
		}
	}
	want := fmt.Sprintf("(%d, %d)", kernels, busy)
	for reader, script := range fleet {
		t.Run(reader, func(t *testing.T) {
			if err := exec.Command(python, "-c", "import "+reader).Run(); err != nil {
				t.Skipf("%s has no %s", python, reader)
			}
			cmd := exec.Command(python, "-c", "import glob, sys; root = sys.argv[1]\n"+script, root)
			var said strings.Builder
			cmd.Stderr = &said
			text, err := cmd.Output()
			if got := strings.TrimSpace(string(text)); err != nil || got != want {
				t.Errorf("it finds %s and not %s: %v %s", got, want, err, &said)
			}
		})
	}
}

// kernelSums are the sums that the judge makes.
func kernelSums(events []event.Event) [3]string {
	var duration, nodes, grid big.Int
	for _, e := range events {
		if e.Kind != event.Kernel {
			continue
		}
		duration.Add(&duration, new(big.Int).SetUint64(e.Dur))
		nodes.Add(&nodes, big.NewInt(int64(bits.OnesCount64(e.Args[1]))))
		grid.Add(&grid, big.NewInt(int64(uint32(e.Args[2]))))
	}
	return [3]string{duration.String(), nodes.String(), grid.String()}
}

func equalStrings(got []any, want []string) bool {
	return slices.EqualFunc(got, want, func(a any, b string) bool { return a == b })
}
