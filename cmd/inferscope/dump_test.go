package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording/dump"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// Dump makes the fake daemon one that makes dumps.
func (d *fakeDaemon) Dump(_ context.Context, r api.DumpRequest) (*dump.Dump, error) {
	out := dump.New("1.2.3", r.PID)
	pids := []uint32{r.PID}
	if r.Children {
		pids = append(pids, r.PID+1)
	}
	for _, pid := range pids {
		out.Processes = append(out.Processes, dump.Process{
			PID: pid, Comm: "python", Cmdline: "python infer.py", Runtime: "Python 3.12", Path: "/usr/bin/python3.12",
			Threads: []dump.Thread{{
				TID: pid, Name: "python", State: dump.Idle, Reason: "pipe", Doing: "read of pipe:[123]", Whole: true,
				Frames: []dump.Frame{
					{Frame: recordtest.Native("read", "libc.so.6")},
					{Frame: recordtest.Python("next_batch", "/app/loader.py", 41)},
					{Frame: recordtest.Native("_PyEval_Vector", "python3.12"), Internal: true},
					{Frame: recordtest.Python("<module>", "/app/infer.py", 9)},
				},
			}},
		})
	}
	return out, nil
}

func TestDump(t *testing.T) {
	socket := serve(t, newFakeDaemon())
	r := at(t, socket, "dump")
	want(t, r, clierror.OK)
	wantText := `Process 1234: python infer.py
Python 3.12 (/usr/bin/python3.12)

Thread 1234 (idle: read of pipe:[123]): "python"
    read (libc.so.6)
    next_batch (/app/loader.py:41)
    <module> (/app/infer.py:9)
`
	if r.stdout != wantText {
		t.Errorf("dump says\n%s\nwant\n%s", r.stdout, wantText)
	}
	if got := at(t, socket, "dump", "--pid", "1234", "--all").stdout; !strings.Contains(
		got,
		"    _PyEval_Vector (python3.12)\n",
	) {
		t.Errorf("--all hides the interpreter's frames:\n%s", got)
	}
	if got := at(t, socket, "dump", "--children").stdout; !strings.Contains(got, "\n\nProcess 1235: ") {
		t.Errorf("--children shows no child:\n%s", got)
	}
	var d dump.Dump
	if err := json.Unmarshal([]byte(at(t, socket, "dump", "--json").stdout), &d); err != nil || d.Kind != dump.Kind ||
		len(d.Processes) != 1 ||
		!d.Processes[0].Threads[0].Frames[2].Internal {
		t.Errorf("--json gives %+v, %v", d, err)
	}
}

func TestDumpFaults(t *testing.T) {
	socket := serve(t, newFakeDaemon())
	want(t, at(t, socket, "dump", "--pid", "4321"), clierror.NoProcess, "4321")
	want(t, at(t, socket, "dump", "--pid", "0"), clierror.Usage, "not a process id")
	want(t, at(t, socket, "dump", "1234", "5"), clierror.Usage, "at most 1 arg")
	want(t, at(t, refuse(t), "dump", "--pid", "5"), clierror.Permission, "ask as root")
	want(t, at(t, socketPath(t), "dump"), clierror.NoDaemon, "no daemon answers")
}
