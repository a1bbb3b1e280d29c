package isc_test

import (
	"encoding/json"
	"math/big"
	"math/bits"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/event"
	"github.com/inferscope/inferscope/internal/isc"
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
		t.Skipf("needs a Python with duckdb and pyarrow (pip install duckdb pyarrow; INFERSCOPE_TEST_PYTHON names it): %v %s", err, out)
	}
	rec := random(rand.New(rand.NewPCG(11, 11)), 5000)
	dir := filepath.Join(t.TempDir(), "a.isc")
	if err := isc.Write(dir, rec); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, "-c", judge, dir)
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	var found map[string]any
	if err := json.Unmarshal(text, &found); err != nil {
		t.Fatal(err)
	}
	in, err := isc.Inspect(dir, true)
	if err != nil {
		t.Fatal(err)
	}
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
