package api

import (
	"context"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording/dump"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// dumpBackend makes dumps too.
type dumpBackend struct {
	*fakeBackend
	asked []DumpRequest
}

func (b *dumpBackend) Dump(_ context.Context, r DumpRequest) (*dump.Dump, error) {
	b.asked = append(b.asked, r)
	d := dump.New("test", r.PID)
	d.Processes = []dump.Process{
		{
			PID:     r.PID,
			Comm:    "a",
			Threads: []dump.Thread{{TID: r.PID, Name: "a", State: dump.Idle, Frames: []dump.Frame{}}},
		},
	}
	return d, nil
}

func TestDumpOfOnesOwn(t *testing.T) {
	b := &dumpBackend{fakeBackend: newFake()}
	socket := serve(t, b, patient())
	d, err := dialAs(t, socket, alice).Dump(context.Background(), alicePID, true)
	must.NoError(t, err)
	if d.Target != alicePID || len(d.Processes) != 1 || d.Processes[0].Threads[0].State != dump.Idle {
		t.Errorf("dump = %+v", d)
	}
	if _, err := dialAs(t, socket, 0).Dump(context.Background(), bobPID, false); err != nil {
		t.Errorf("root: %v", err)
	}
	want := []DumpRequest{
		{PID: alicePID, Children: true, Asker: Asker{UID: alice}},
		{PID: bobPID, Asker: Asker{Any: true}},
	}
	if len(b.asked) != 2 || b.asked[0] != want[0] || b.asked[1] != want[1] {
		t.Errorf("asked for %+v, want %+v", b.asked, want)
	}
}

func TestDumpsOfOthersAreRefused(t *testing.T) {
	b := &dumpBackend{fakeBackend: newFake()}
	socket := serve(t, b, patient())
	_, err := dialAs(t, socket, alice).Dump(context.Background(), bobPID, false)
	wantFault(t, err, clierror.Permission)
	_, err = dialAs(t, socket, alice).Dump(context.Background(), unknown, false)
	wantFault(t, err, clierror.NoProcess)
	_, err = dialAs(t, socket, otherThread).Dump(context.Background(), alicePID, false)
	wantFault(t, err, clierror.Permission)
	if len(b.asked) != 0 {
		t.Errorf("dumps were made: %+v", b.asked)
	}
}

func TestDumpQueries(t *testing.T) {
	b := &dumpBackend{fakeBackend: newFake()}
	c := dial(t, serve(t, b, patient()))
	for _, query := range []string{"", "?pid=x", "?pid=-1", "?pid=0", "?pid=100&children=maybe"} {
		var d dump.Dump
		err := c.getJSON(context.Background(), pathDump+query, &d)
		wantFault(t, err, clierror.Usage)
		if strings.Contains(query, "maybe") != strings.Contains(err.Error(), "children") {
			t.Errorf("%q: %v", query, err)
		}
	}
}
