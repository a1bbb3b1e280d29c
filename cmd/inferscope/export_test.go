package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/exporttest"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestExportOTLP: what a recording keeps of requests is enough for a span; without requests there is no file.
func TestExportOTLP(t *testing.T) {
	dir := t.TempDir()
	rec := exporttest.Decode(5)
	write := func(name string) string {
		path := filepath.Join(dir, name)
		must.NoError(t, archive.Write(path, rec, nil))
		return path
	}
	file := filepath.Join(dir, "t.otlp.json")
	r := at(t, socketPath(t), "export", write("none.isc"), "-o", file)
	want(t, r, clierror.General, "there are no requests in the recording", "--requests=off")
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("it left a file: %v", err)
	}
	const trace = "0af7651916cd43dd8448eb211c80319c"
	rec.Meta.Requests = []recording.Request{{
		Number: 1, PID: rec.Meta.Target, Received: rec.Meta.From, End: rec.Meta.To, Method: "POST",
		Route: "/v1/completions", Status: 200, Outcome: "complete", Trace: "00-" + trace + "-b7ad6b7169203331-01",
	}}
	want(t, at(t, socketPath(t), "export", write("one.isc"), "-o", file), clierror.OK, "(otlp)")
	text, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(text), trace) || strings.Count(string(text), "\n") != 2 {
		t.Errorf("%v: %s", err, text)
	}
}

// TestExportOfNothing: without allocations there is no file of them.
func TestExportOfNothing(t *testing.T) {
	dir := t.TempDir()
	rec := exporttest.Decode(5)
	rec.Events = slices.DeleteFunc(rec.Events, func(e event.Event) bool {
		return e.Kind >= event.Memory && e.Kind <= event.OutOfMemory
	})
	none := filepath.Join(dir, "none.isc")
	if err := archive.Write(none, rec, nil); err != nil {
		t.Fatal(err)
	}
	for name, what := range map[string]string{"t.heap.pb.gz": "no allocations", "t.pickle": "of GPU memory"} {
		file := filepath.Join(dir, name)
		want(t, at(t, socketPath(t), "export", none, "-o", file), clierror.General, what, "--memory=false")
		if _, err := os.Stat(file); !os.IsNotExist(err) {
			t.Errorf("it left a file: %v", err)
		}
	}
}
