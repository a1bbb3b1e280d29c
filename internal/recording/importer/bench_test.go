package importer_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/inferscope/inferscope/internal/recording/importer"
	"github.com/inferscope/inferscope/internal/report/export"
	"github.com/inferscope/inferscope/internal/testkit/exporttest"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// BenchmarkImport reads half a million events: what export makes of a decode for torch.profiler's readers, and a
// database with the tables of Nsight Systems. The rate is of events of the recording that comes out.
func BenchmarkImport(b *testing.B) {
	const events = 500_000
	kineto := filepath.Join(b.TempDir(), "trace.json")
	out, err := os.Create(kineto)
	must.NoError(b, err)
	format, _ := export.Find("kineto")
	must.NoError(b, format.Write(out, exporttest.Decode(events/exporttest.PerIteration)))
	must.NoError(b, out.Close())
	const launches = events / 2
	nsys := nsysFile(b, append(
		tables(),
		fmt.Sprintf(
			"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < %d) INSERT INTO "+
				"CUPTI_ACTIVITY_KIND_RUNTIME SELECT i*20000,i*20000+4000,42<<24|43,100+i,1,0 FROM n",
			launches,
		),
		fmt.Sprintf(
			"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < %d) INSERT INTO "+
				"CUPTI_ACTIVITY_KIND_KERNEL SELECT i*20000+8000,i*20000+14000,0,1,7,100+i,42<<24,2,8,4,2,128,1,1,512 "+
				"FROM n",
			launches,
		),
	)...)
	for name, path := range map[string]string{"kineto": kineto, "nsys": nsys} {
		info, err := os.Stat(path)
		must.NoError(b, err)
		b.Run(name, func(b *testing.B) {
			read := 0
			for b.Loop() {
				rec, err := importer.Open(path)
				must.NoError(b, err)
				read = len(rec.Events)
			}
			b.ReportMetric(float64(read)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
			b.ReportMetric(float64(info.Size())*float64(b.N)/1e6/b.Elapsed().Seconds(), "MB/s")
		})
	}
}

// BenchmarkHuge reads a trace of so many bytes as INFERSCOPE_HUGE says, 5 GB for one, within 1 GB of memory.
func BenchmarkHuge(b *testing.B) {
	size, err := strconv.Atoi(os.Getenv("INFERSCOPE_HUGE"))
	if err != nil {
		b.Skip("INFERSCOPE_HUGE says how many bytes, e.g. 5000000000")
	}
	for b.Loop() {
		limits := importer.LimitsFor(1_000_000_000)
		rec, err := importer.ReadKineto(&endless{left: size}, limits)
		must.NoError(b, err)
		b.ReportMetric(float64(len(rec.Events)), "events")
	}
	b.ReportMetric(float64(size)*float64(b.N)/1e6/b.Elapsed().Seconds(), "MB/s")
	b.ReportMetric(float64(peak(b))/1e3, "peak-MB")
}
