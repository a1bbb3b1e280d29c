package main

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/report/document"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// Candidates returns two processes.
func (d *fakeDaemon) Candidates(context.Context) ([]api.Candidate, error) {
	return []api.Candidate{
		{
			PID:     1234,
			Top:     1234,
			Comm:    "python",
			Cmdline: "python infer.py",
			Target:  1234,
			GPUs:    []string{"nvidia0", "nvidia3"},
		},
		{
			PID:     77,
			Top:     77,
			Comm:    "train\x1b[31m",
			Cmdline: "python train.py",
			Place:   api.Place{Namespace: "prod", Pod: "train-0"},
		},
		{PID: 78, Top: 77, Comm: "worker", Cmdline: "python train.py", Refused: "rule user=bob"},
	}, nil
}

func TestPS(t *testing.T) {
	socket := serve(t, newFakeDaemon())
	r := at(t, socket, "ps")
	want(t, r, clierror.OK)
	for _, text := range []string{"1234  python", "0,3", "yes", "prod/train-0", "no: rule user=bob", "python train.py"} {
		if !strings.Contains(r.stdout, text) {
			t.Errorf("no %q in\n%s", text, r.stdout)
		}
	}
	if strings.ContainsAny(r.stdout, "\x1b") {
		t.Error("a process writes to the terminal")
	}
	var found []api.Candidate
	if err := json.Unmarshal([]byte(at(t, socket, "ps", "--json").stdout), &found); err != nil || len(found) != 3 {
		t.Errorf("--json gives %d, %v", len(found), err)
	}
}

func TestAttach(t *testing.T) {
	var put []string
	socket := answer(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPut:
			put = append(put, r.URL.Query().Get("pid"))
		case r.URL.Path == api.PathCandidates:
			found, _ := newFakeDaemon().Candidates(r.Context())
			_ = json.NewEncoder(w).Encode(found)
		default:
			_, _ = w.Write([]byte("[]"))
		}
	})
	want(t, at(t, socket, "attach", "5"), clierror.OK, "pid 5 is watched", "inferscope report 5")
	want(t, at(t, socket, "attach"), clierror.OK, "pid 77 is watched")
	want(t, at(t, socket, "attach", "train.py"), clierror.OK, "pid 77")
	want(t, at(t, socket, "attach", "infer.py"), clierror.NoProcess, "inferscope ps")
	if strings.Join(put, " ") != "5 77 77" {
		t.Errorf("these were asked for: %v", put)
	}
}

func TestTargetsSayWhereTheyRun(t *testing.T) {
	d := newFakeDaemon()
	d.targets[0].GPUs, d.targets[0].Roles = []string{
		"nvidia1",
	}, map[uint32]string{
		1234: "engine",
		5:    "worker",
		6:    "worker",
	}
	d.targets[0].Place = api.Place{
		Namespace: "prod",
		Pod:       "llm-0",
		Image:     "vllm:1",
		Container: strings.Repeat("ab", 32),
	}
	d.targets[0].Processes = append(d.targets[0].Processes, recording.Process{PID: 5}, recording.Process{PID: 6})
	r := at(t, serve(t, d), "targets")
	for _, text := range []string{"prod/llm-0", "vllm:1", "engine, 2 workers", "watching"} {
		if !strings.Contains(r.stdout, text) {
			t.Errorf("no %q in\n%s", text, r.stdout)
		}
	}
}

// TestTargetTable: pod, container, image, GPUs and roles of targets, and on a narrow terminal the more telling of them.
func TestTargetTable(t *testing.T) {
	targets := []api.Target{
		{
			PID: 4711, Comm: "python3", Cmdline: "/usr/bin/python3 -m vllm.entrypoints.openai.api_server",
			State: api.Watching, UID: 1000,
			GPUs:  []string{"nvidia0", "nvidia1"},
			Roles: map[uint32]string{4711: "API server", 4712: "engine", 4713: "worker", 4714: "worker"},
			Place: api.Place{
				Namespace: "prod", Pod: "llm-0", ContainerName: "server", Container: strings.Repeat("ab", 32),
				Image: "vllm/vllm:v1",
			},
		},
		{PID: 42, Comm: "train\x1b[31m", State: api.Exited, Place: api.Place{Container: strings.Repeat("cd", 32)}},
	}
	table := func(width int) string {
		var out strings.Builder
		d := &document.Document{}
		d.Add(targetTable(targets))
		must.NoError(t, document.Text(&out, d, document.Style{Width: width}))
		for line := range strings.Lines(out.String()) {
			if n := len([]rune(strings.TrimRight(line, "\n"))); width > 0 && n > width {
				t.Errorf("a line of %d columns on a terminal of %d: %s", n, width, line)
			}
		}
		return out.String()
	}
	telling := []string{"4711", "python3", "watching", "0,1", "API server, engine, 2 workers", "exited"}
	all := append(telling, "prod/llm-0", "server", "vllm/vllm:v1", "cdcdcdcdcdcd", "1000", "python3 -m vllm.entrypoints")
	for width, texts := range map[int][]string{80: telling, 200: all} {
		got := table(width)
		for _, text := range texts {
			if !strings.Contains(got, text) {
				t.Errorf("%d columns: no %q in\n%s", width, text, got)
			}
		}
		if strings.ContainsAny(got, "\x1b") {
			t.Error("a process writes to the terminal")
		}
	}
	targets = targets[1:]
	targets[0].Container = ""
	if got := table(200); strings.Contains(got, "Pod") || strings.Contains(got, "GPUs") || strings.Contains(got, "Image") {
		t.Errorf("columns with nothing in them:\n%s", got)
	}
}
