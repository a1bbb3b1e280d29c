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
)

// Candidates implements api.Finder.
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
