package importer_test

import (
	"bytes"
	"compress/gzip"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/importer"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestRealTraces reads what torch.profiler wrote on GPUs, and counts with what is in the files (by jq).
func TestRealTraces(t *testing.T) {
	for file, want := range map[string]map[event.Kind]int{
		"alexnet.json.gz": {
			event.Kernel: 79, event.Copy: 16, event.Set: 3, event.Call: 331, event.Sync: 41, event.Range: 8,
		},
		"event_sync.json.gz": {event.Kernel: 4, event.Copy: 1, event.Call: 12, event.Sync: 4, event.Range: 1},
	} {
		rec, err := importer.Open(filepath.Join("../../../test/judges/testdata", file))
		must.NoError(t, err)
		got := map[event.Kind]int{}
		for i := range rec.Events {
			got[rec.Events[i].Kind]++
		}
		for k, n := range want {
			if got[k] != n {
				t.Errorf("%s: %d events of kind %d, want %d", file, got[k], k, n)
			}
		}
		tl := timeline.Build(rec)
		if err := tl.Check(); err != nil {
			t.Error(err)
		}
		for i := range tl.Activities {
			if tl.Activities[i].Link != timeline.ByID {
				t.Fatalf("%s: activity %d has no call", file, i)
			}
		}
	}
}

// TestRefused holds that what is wrong is said, and wrapped where callers ask.
func TestRefused(t *testing.T) {
	for text, want := range map[string]string{
		`{"schemaVersion":1}`: "no traceEvents",
		`{"traceEvents":[]}`:  "no row",
		`{"traceEvents":{}}`:  "no list",
		`{"traceEvents":[{"ph":"X","cat":"kernel","ts":-5}]}`:                      "1 rows that cannot be read",
		`{"traceEvents":[{"ph":"X","cat":"kernel","ts":99999999999999999999999}]}`: "1 rows that cannot be read",
		`{"traceEvents":[{"ph":"X","cat":"kernel"`:                                 "cut off",
		`{"traceEvents":[7]}`:  "1 rows that cannot be read",
		`{"traceEvents":[7,}]`: "row 1",
	} {
		_, err := importer.ReadKineto(strings.NewReader(text), importer.DefaultLimits())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	path := filepath.Join(t.TempDir(), "x")
	must.NoError(t, os.WriteFile(path, []byte("hello"), 0o600))
	if _, err := importer.Open(path); !errors.Is(err, importer.ErrUnknown) {
		t.Errorf("text: %v", err)
	}
}

// TestBombs holds that memory stays bounded whatever a small file unpacks to.
func TestBombs(t *testing.T) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, `{"traceEvents":[`)
	row := strings.Repeat(`{"ph":"X","cat":"cuda_runtime","name":"f","pid":1,"tid":1,"ts":1,"dur":1},`, 1000)
	for range 300 {
		_, _ = io.WriteString(z, row)
	}
	_ = z.Close()
	limits := importer.Limits{Bytes: 1 << 30, Events: 10_000, Names: 1 << 20}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := importer.ReadKineto(&b, limits)
	runtime.ReadMemStats(&after)
	if err == nil || !strings.Contains(err.Error(), "10000 events") {
		t.Errorf("error %v", err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
		t.Errorf("took %d bytes", took)
	}
	limits.Bytes = 1000
	if _, err := importer.ReadKineto(strings.NewReader(`{"traceEvents":[`+row), limits); err == nil ||
		!strings.Contains(err.Error(), "limit of bytes") {
		t.Errorf("error %v", err)
	}
}

// oddTrace has rows of AMD's and of Triton's tools, a row that cannot be read, and a copy whose call only enqueues it.
const oddTrace = `{"traceEvents":[
{"ph":"X","cat":"cuda_runtime","name":"hipLaunchKernel","pid":9,"tid":9,"ts":1,"dur":500,"args":{"correlation":1}},
{"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":0,"ts":600,"dur":5,"args":{"device":0,"stream":0,"correlation":1,"grid":"grid(100,)","block":[64,1,1]}},
{"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":0,"ts":"never","dur":5},
{"ph":"X","cat":"cuda_runtime","name":"hipMemcpyAsync","pid":9,"tid":9,"ts":700,"dur":5,"args":{"correlation":2}},
{"ph":"X","cat":"gpu_memcpy","name":"Memcpy HtoD (Pinned -> Device)","pid":0,"tid":0,"ts":710,"dur":5,"args":{"device":0,"stream":0,"correlation":2,"bytes":4096}},
{"ph":"X","cat":"cuda_runtime","name":"hipMemcpyWithStream","pid":9,"tid":9,"ts":800,"dur":50,"args":{"correlation":3}},
{"ph":"X","cat":"gpu_memcpy","name":"Memcpy HtoD (Host -> Device)","pid":0,"tid":0,"ts":810,"dur":5,"args":{"device":0,"stream":0,"correlation":3,"bytes":4096}}]}`

// TestOddRows holds that AMD's names mean what CUDA's do, that one bad row costs only itself and is counted, and that a
// copy is asynchronous where its call is.
func TestOddRows(t *testing.T) {
	rec, err := importer.ReadKineto(strings.NewReader(oddTrace), importer.DefaultLimits())
	must.NoError(t, err)
	if !slices.ContainsFunc(rec.Meta.Sources, func(s recording.Source) bool {
		return strings.Contains(s.Detail, "1 rows that cannot be read")
	}) {
		t.Errorf("the row that cannot be read is not counted: %+v", rec.Meta.Sources)
	}
	groups := map[string]string{}
	for _, f := range rec.Meta.Functions {
		groups[f.Base] = f.Group
	}
	if groups["hipLaunchKernel"] != "launch" || groups["hipMemcpyAsync"] != "copy" {
		t.Errorf("groups %v", groups)
	}
	var async []bool
	for i := range rec.Events {
		switch e := &rec.Events[i]; e.Kind {
		case event.Kernel:
			if e.Args[2] != 100|1<<32|1<<48 {
				t.Errorf("grid %#x, want 100 x 1 x 1", e.Args[2])
			}
		case event.Copy:
			async = append(async, e.Ret>>24&1 != 0)
		case event.Call:
			if e.Dur == 500_000 && (e.Args[0] == 0 || e.Args[2] != 100|1<<32|1<<48) {
				t.Errorf("the launch does not know its kernel: %+v", *e)
			}
		}
	}
	if !slices.Equal(async, []bool{true, false}) {
		t.Errorf("asynchronous copies %v, want the first alone", async)
	}
}

// nsysFile makes a database with the tables of Nsight Systems.
func nsysFile(t testing.TB, statements ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "report.sqlite")
	db, err := sql.Open("sqlite", path)
	must.NoError(t, err)
	defer db.Close()
	for _, s := range statements {
		if _, err := db.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	return path
}

// tables is a process 42 with one thread that launches a kernel and waits for it: globalTid is pid<<24 | tid.
func tables() []string {
	return []string{
		"CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)",
		"INSERT INTO StringIds VALUES (1,'cudaLaunchKernel_v7000'),(2,'void " +
			"gemm()'),(3,'cudaStreamSynchronize_v3020'),(4,'step'),(5,'main'),(6,'/usr/lib/libx.so'),(7,'[Broken " +
			"backtraces]')",
		"CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, globalTid INT, correlationId INT, nameId INT, " +
			"returnValue INT)",
		"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (100,200,42<<24|43,9,1,0),(300,5000,42<<24|43,10,3,0)",
		"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, contextId INT, streamId INT, " +
			"correlationId INT, globalPid INT, demangledName INT, gridX INT, gridY INT, gridZ INT, blockX INT, " +
			"blockY INT, blockZ INT, dynamicSharedMemory INT)",
		"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1000,4000,0,1,7,9,42<<24,2,8,4,2,128,1,1,512)",
		"CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, text TEXT, textId INT, globalTid INT)",
		"INSERT INTO NVTX_EVENTS VALUES (50,6000,59,NULL,4,42<<24|43),(60,70,59,'own',NULL,42<<24|43)",
		"CREATE TABLE SCHED_EVENTS (start INT, cpu INT, isSchedIn INT, globalTid INT)",
		"INSERT INTO SCHED_EVENTS VALUES (400,1,0,42<<24|43),(4500,2,1,42<<24|43)",
		"CREATE TABLE ThreadNames (nameId INT, globalTid INT)",
		"INSERT INTO ThreadNames VALUES (5,42<<24|43),(4,77<<24|77)",
		"CREATE TABLE COMPOSITE_EVENTS (id INT, start INT, cpu INT, globalTid INT)",
		"INSERT INTO COMPOSITE_EVENTS VALUES (77,150,1,42<<24|43)",
		"CREATE TABLE SAMPLING_CALLCHAINS (id INT, symbol INT, module INT, kernelMode INT, stackDepth INT)",
		"INSERT INTO SAMPLING_CALLCHAINS VALUES (77,5,6,0,0),(77,4,6,0,1),(77,7,7,0,2)",
	}
}

func TestNsys(t *testing.T) {
	rec, err := importer.Open(nsysFile(t, tables()...))
	must.NoError(t, err)
	tl := timeline.Build(rec)
	if len(tl.Activities) != 1 || tl.Activities[0].Link != timeline.ByID ||
		tl.Kernel(&tl.Activities[0]).Name != "void gemm()" {
		t.Fatalf("activities %+v", tl.Activities)
	}
	op := &tl.Ops[tl.Activities[0].Op]
	if e := tl.RawEvent(op); rec.Meta.Functions[op.Func].Name != "cudaLaunchKernel" || e.PID != 42 || e.TID != 43 ||
		e.Args[2] != 8|4<<32|2<<48 {
		t.Errorf("launch %s %+v", rec.Meta.Functions[op.Func].Name, *e)
	}
	kinds := map[event.Kind]int{}
	for i := range rec.Events {
		if e := &rec.Events[i]; e.Kind != event.Sample || e.Func != uint16(event.Traced) {
			kinds[e.Kind]++
		}
	}
	if kinds[event.Range] != 2 || kinds[event.OffCPU] != 1 || kinds[event.Sample] != 1 || kinds[event.Call] != 2 {
		t.Errorf("events %v", kinds)
	}
	if want := []recording.Thread{{PID: 42, TID: 43, Name: "main"}}; !slices.Equal(rec.Meta.Threads, want) {
		t.Errorf("threads %+v, want %+v: the other one is of a process without an event", rec.Meta.Threads, want)
	}
	for i := range rec.Events {
		if e := &rec.Events[i]; e.Kind == event.OffCPU && e.Func != event.Unexplained {
			t.Errorf("nsys does not say why a thread left its CPU: %+v", *e)
		}
	}
	for i := range rec.Events {
		if e := &rec.Events[i]; e.Kind == event.Sample && e.Func == uint16(event.Clock) &&
			e.Args[1] != uint64(event.Spliced) {
			t.Errorf("a stack that nsys could not follow to its end is of origin %d", e.Args[1])
		}
	}
	want := []recording.Frame{
		{Kind: recording.NativeFrame, Name: "step", File: "libx.so"},
		{Kind: recording.NativeFrame, Name: "main", File: "libx.so"},
	}
	if len(rec.Meta.Stacks) < 2 || rec.Meta.Frames[rec.Meta.Stacks[0].Frame] != want[0] ||
		rec.Meta.Frames[rec.Meta.Stacks[1].Frame] != want[1] {
		t.Errorf("frames %+v, stacks %+v", rec.Meta.Frames, rec.Meta.Stacks)
	}
}

// TestNsysOperators holds that what PyTorch's emit_nvtx writes is known by its name without numbers, and that its
// operators are no ranges of the program.
func TestNsysOperators(t *testing.T) {
	rec, err := importer.Open(nsysFile(t, append(tables(),
		"DELETE FROM NVTX_EVENTS",
		"INSERT INTO NVTX_EVENTS VALUES (50,900,59,'step, op_id = 8',NULL,42<<24|43),"+
			"(60,700,59,'aten::linear, seq = 4, op_id = 9',NULL,42<<24|43),"+
			"(65,690,59,'AddmmBackward0, seq = 4, op_id = 11',NULL,42<<24|43),"+
			"(80,300,59,'aten::mm, op_id = 10, sizes = [[2, 3]]',NULL,42<<24|43),"+
			"(400,500,59,'std::sort of, well, a list',NULL,42<<24|43)",
	)...))
	must.NoError(t, err)
	if want := []string{"step", "std::sort of, well, a list"}; !slices.Equal(rec.Meta.GPU.Ranges, want) {
		t.Errorf("ranges %q, want %q", rec.Meta.GPU.Ranges, want)
	}
	for _, want := range []recording.Frame{
		{Kind: recording.NativeFrame, Name: "aten::linear", File: "libtorch_cpu.so"},
		{Kind: recording.NativeFrame, Name: "aten::mm", File: "libtorch_cpu.so"},
		{Kind: recording.NativeFrame, Name: "AddmmBackward0", File: "libtorch_cpu.so"},
		{Kind: recording.NativeFrame, Name: "std::sort of, well, a list"},
	} {
		if !slices.Contains(rec.Meta.Frames, want) {
			t.Errorf("no frame %+v in %+v", want, rec.Meta.Frames)
		}
	}
}

// TestNothingLostInFiles holds that a file which lacks what few tools record has lost nothing.
func TestNothingLostInFiles(t *testing.T) {
	rec, err := importer.Open(nsysFile(t, tables()[:8]...))
	must.NoError(t, err)
	kineto, err := importer.ReadKineto(
		strings.NewReader(`[{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":2,"args":{"device":0}}]`),
		importer.DefaultLimits(),
	)
	must.NoError(t, err)
	lacking := 0
	for _, s := range slices.Concat(rec.Meta.Sources, kineto.Meta.Sources) {
		if s.State != "unavailable" {
			continue
		}
		if lacking++; !s.Optional {
			t.Errorf("%s: %s", s.Name, s.Detail)
		}
	}
	if lacking != 3 {
		t.Errorf("%d sources lack, want samples, scheduling and ranges", lacking)
	}
}

// TestNsysMemory holds that kinds of memory are CUPTI's: nsys counts from 0, pageable. A copy whose call is not in the
// file held its caller only if the memory is pageable.
func TestNsysMemory(t *testing.T) {
	rec, err := importer.Open(nsysFile(t, append(
		tables(),

		"CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INT, end INT, deviceId INT, contextId INT, streamId INT, "+
			"correlationId INT, globalPid INT, bytes INT, copyKind INT, srcKind INT, dstKind INT)",
		"INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES "+
			"(5000,5100,0,1,7,11,42<<24,4096,1,0,2),(5200,5300,0,1,7,12,42<<24,4096,2,2,1),"+
			"(5400,5500,0,1,7,13,42<<24,4096,11,4,4),(5600,5700,0,1,7,14,42<<24,4096,1,1,2),"+
			"(5800,5900,0,1,7,15,42<<24,4096,1,0,2),(6000,6100,0,1,7,16,42<<24,4096,1,0,2)",
		"INSERT INTO StringIds VALUES (20,'cudaMemcpyAsync_v3020'),(21,'cudaMemcpy_v3020')",
		"INSERT INTO StringIds VALUES (22,'cudaGraphLaunch_v10000')",
		"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (4900,4950,42<<24|43,11,21,0),"+
			"(5150,5160,42<<24|43,12,20,0),(5950,5960,42<<24|43,16,22,0)",
	)...))
	must.NoError(t, err)
	var got []int32
	for i := range rec.Events {
		if e := &rec.Events[i]; e.Kind == event.Copy {
			got = append(got, e.Ret)
		}
	}
	want := []int32{
		1 | 1<<8 | 3<<16,
		2 | 3<<8 | 2<<16 | 1<<24,
		1 | 5<<8 | 5<<16 | 1<<24, // without a call in the file, as are the next two
		1 | 2<<8 | 3<<16 | 1<<24,
		1 | 1<<8 | 3<<16,
		1 | 1<<8 | 3<<16 | 1<<24, // of a graph
	} // CUpti_ActivityMemoryKind: 1 pageable, 2 pinned, 3 device, 5 managed
	if !slices.Equal(got, want) {
		t.Errorf("copies %#x, want %#x", got, want)
	}
}

// TestNsysHostile holds that a view that computes for ever is not asked, and that odd types are no crash.
func TestNsysHostile(t *testing.T) {
	endless := "CREATE VIEW SCHED_EVENTS AS WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start+1 FROM n) " +
		"SELECT start, 0 AS cpu, 0 AS isSchedIn, 1 AS globalTid FROM n"
	_, err := importer.Open(nsysFile(t, "CREATE TABLE StringIds (id, value)", endless))
	if err == nil || !strings.Contains(err.Error(), "no row") {
		t.Errorf("a view: %v", err)
	}
	odd := append(tables(),
		"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ('x',NULL,-1,1e300,x'00',9,-5,'y',8,4,2,128,1,1,512)",
		"INSERT INTO StringIds VALUES (99, NULL)")
	if _, err := importer.Open(nsysFile(t, odd...)); err != nil {
		t.Errorf("odd types: %v", err)
	}
	if _, err := importer.Open(nsysFile(t, "CREATE TABLE other (id)")); err == nil ||
		!strings.Contains(err.Error(), "not of nsys") {
		t.Errorf("another database: %v", err)
	}
}

// trace is a small one of torch.profiler, with numbers in all the forms that it has.
const trace = `{"baseTimeNanoseconds":5,"deviceProperties":[{"id":0,"name":"x"}],"traceEvents":[{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1.5,"dur":2,"args":{"device":0,"stream":7,"correlation":3,"grid":[1,2,3]}},{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":9,"tid":-9,"ts":"1","dur":1e3,"args":{"correlation":"3"}}]}`

// TestDamaged reads traces and databases with damage: many more than fuzzing gets to. What is read makes a sound
// timeline.
func TestDamaged(t *testing.T) {
	rounds := 2000
	if text := os.Getenv("INFERSCOPE_DAMAGES"); text != "" {
		n, err := strconv.Atoi(text)
		must.NoError(t, err)
		rounds = n
	}
	whole, err := os.ReadFile(nsysFile(t, tables()...))
	must.NoError(t, err)
	place, r, read := filepath.Join(t.TempDir(), "x.sqlite"), rand.New(rand.NewPCG(3, 3)), 0
	limits := importer.Limits{Bytes: 1 << 20, Events: 1000, Names: 1 << 16}
	check := func(rec *recording.Recording, err error) {
		if err != nil {
			return
		}
		read++
		if err := timeline.Build(rec).Check(); err != nil {
			t.Error(err)
		}
	}
	for i := range rounds {
		check(importer.ReadKineto(bytes.NewReader(damage(r, []byte(trace), `0123456789"{}[],:.-eE\`)), limits))
		if i%10 == 0 { // each takes a file
			must.NoError(t, os.WriteFile(place, damage(r, whole, "\x00\x01\x7f\xff"), 0o600))
			check(importer.OpenContext(t.Context(), place, limits))
		}
	}
	if read == 0 || read == rounds+rounds/10 {
		t.Errorf("%d of %d were read: the damage is none, or too much", read, rounds+rounds/10)
	}
	t.Logf("%d of %d were read", read, rounds+rounds/10)
}

// damage overwrites up to four bytes with some of those, or with any.
func damage(r *rand.Rand, whole []byte, with string) []byte {
	data := bytes.Clone(whole)
	for range 1 + r.IntN(4) {
		data[r.IntN(len(data))] = append([]byte(with), byte(r.Uint32()))[r.IntN(len(with)+1)]
	}
	return data
}

// FuzzKineto holds that no text is a crash, and that what is read makes a sound timeline.
func FuzzKineto(f *testing.F) {
	f.Add([]byte(trace))
	f.Add([]byte(`[{"ph":"X","cat":"user_annotation","name":"ProfilerStep#1","pid":1,"tid":1,"ts":1}]`))
	f.Add([]byte("\x1f\x8b\x08\x00"))
	fuzzing.Run(f, func(t *testing.T, text []byte) {
		rec, err := importer.ReadKineto(bytes.NewReader(text),
			importer.Limits{Bytes: 1 << 20, Events: 1000, Names: 1 << 16})
		if err != nil {
			return
		}
		if err := timeline.Build(rec).Check(); err != nil {
			t.Error(err)
		}
	})
}

// FuzzNsys damages a file of SQLite's.
func FuzzNsys(f *testing.F) {
	f.Add(uint32(100), []byte{0xff, 0xff})
	f.Add(uint32(4096), []byte("\x00\x00"))
	var whole []byte
	fuzzing.Run(f, func(t *testing.T, at uint32, damage []byte) {
		if whole == nil {
			var err error
			if whole, err = os.ReadFile(nsysFile(t, tables()...)); err != nil {
				t.Fatal(err)
			}
		}
		text := bytes.Clone(whole)
		copy(text[int(at)%len(text):], damage)
		path := filepath.Join(t.TempDir(), "x.sqlite")
		must.NoError(t, os.WriteFile(path, text, 0o600))
		limits := importer.Limits{Bytes: 1 << 20, Events: 1000, Names: 1 << 16}
		rec, err := importer.OpenContext(t.Context(), path, limits)
		if err != nil {
			return
		}
		if err := timeline.Build(rec).Check(); err != nil {
			t.Error(err)
		}
	})
}

// TestNsysThreadsThatComeAndGo: a thread was on no CPU before it first came on one, and is on none after it left the
// last, as one that has ended.
func TestNsysThreadsThatComeAndGo(t *testing.T) {
	rec, err := importer.Open(nsysFile(
		t,
		append(
			tables(),
			"INSERT INTO SCHED_EVENTS VALUES (500,1,1,42<<24|44),(900,1,0,42<<24|44),(800,1,1,99<<24|99)",
		)...))
	must.NoError(t, err)
	all := threads.Build(rec)
	if len(all) != 2 || all[1].TID != 44 {
		t.Fatalf("threads %+v", all)
	}
	var got []string
	for _, iv := range all[1].Intervals {
		got = append(got, fmt.Sprintf("%d-%d %v", iv.From, iv.To, iv.State))
	}
	if want := fmt.Sprintf("[%d-500 blocked 500-900 running 900-%d blocked]", rec.Meta.From, rec.Meta.To); fmt.Sprint(
		got,
	) != want {
		t.Errorf("%v, want %s", got, want)
	}
}
