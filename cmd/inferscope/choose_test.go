package main

import (
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
)

// TestChoose: a name, a pid of a child, or nothing chooses a target, and those that ended never stand in the way.
func TestChoose(t *testing.T) {
	vllm := api.Target{
		PID: 10, Comm: "python3", Cmdline: "python3 -u /srv/serve_llm.py --port 80",
		State: api.Watching, Place: api.Place{Pod: "llm-0", Namespace: "prod"},
		Processes: []recording.Process{
			{PID: 10},
			{PID: 11, Parent: 10, Comm: "VLLM::EngineCor", Cmdline: "VLLM::EngineCore"},
			{PID: 12, Parent: 10, Comm: "VLLM::Worker", Died: 7},
		},
	}
	train := api.Target{PID: 20, Comm: "train", State: api.Attaching, Processes: []recording.Process{{PID: 20}}}
	old := api.Target{
		PID:       30,
		Comm:      "python3",
		Cmdline:   "python3 old.py",
		State:     api.Exited,
		Processes: []recording.Process{{PID: 30, Died: 5}, {PID: 31, Died: 5}},
	}
	released := api.Target{PID: 40, Comm: "train", State: api.Released}
	all := []api.Target{old, vllm, released, train}
	for name, c := range map[string]struct {
		targets []api.Target
		asked   reportFlags
		pid     uint32
		says    string
	}{
		"the only one":                 {[]api.Target{vllm}, reportFlags{}, 10, ""},
		"the only one that lives":      {[]api.Target{old, vllm, released}, reportFlags{}, 10, ""},
		"the only one that there was":  {[]api.Target{old}, reportFlags{}, 30, ""},
		"none":                         {nil, reportFlags{}, 0, "watches no process"},
		"several":                      {all, reportFlags{}, 0, "2 processes: 10 (python3), 20 (train)"},
		"several ended":                {[]api.Target{old, released}, reportFlags{}, 0, "2 processes: 30"},
		"a pid":                        {all, reportFlags{pid: 30}, 30, ""},
		"a pid of a child":             {all, reportFlags{pid: 11}, 10, ""},
		"a pid of a child that ended":  {all, reportFlags{pid: 31}, 0, "pid 31 is not a target"},
		"a released pid":               {all, reportFlags{pid: 40}, 40, ""},
		"a process of the tree":        {[]api.Target{old, vllm}, reportFlags{name: "VLLM::EngineCor"}, 10, ""},
		"one of it that ended":         {[]api.Target{old, vllm}, reportFlags{name: "VLLM::Worker"}, 0, "nothing that is called"},
		"a living one before an ended": {all, reportFlags{name: "train"}, 20, ""},
		"comm":                         {all, reportFlags{name: "python3"}, 10, ""},
		"script":                       {all, reportFlags{name: "serve_llm.py"}, 10, ""},
		"script without extension":     {all, reportFlags{name: "serve_llm"}, 10, ""},
		"script that ended":            {all, reportFlags{name: "old"}, 30, ""},
		"pod":                          {all, reportFlags{name: "llm-0"}, 10, ""},
		"namespace and pod":            {all, reportFlags{name: "prod/llm-0"}, 10, ""},
		"option":                       {all, reportFlags{name: "-u"}, 0, "nothing that is called"},
		"nothing":                      {all, reportFlags{name: "/"}, 0, "nothing that is called"},
		"two of a name":                {[]api.Target{vllm, {PID: 12, Comm: "python3"}}, reportFlags{name: "python3"}, 0, `"python3" fits 2 processes`},
	} {
		pid, err := choose(c.targets, &c.asked)
		if pid != c.pid || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %d, %v; want %d, %q", name, pid, err, c.pid, c.says)
		}
		if err != nil && clierror.HintOf(err) == "" {
			t.Errorf("%s: nothing says what to do", name)
		}
	}
}

func TestChooseCandidate(t *testing.T) {
	tree := []api.Candidate{{PID: 10, Top: 10, Comm: "python3"}, {PID: 11, Top: 10, Comm: "VLLM::EngineCor"}}
	if pid, err := chooseCandidate(tree, &reportFlags{}); pid != 10 || err != nil {
		t.Errorf("of one tree: %d, %v", pid, err)
	}
	if pid, err := chooseCandidate(tree, &reportFlags{name: "VLLM::EngineCor"}); pid != 10 || err != nil {
		t.Errorf("by a child's name: %d, %v", pid, err)
	}
	if _, err := chooseCandidate(append(tree, api.Candidate{PID: 20, Top: 20, Comm: "train"}), &reportFlags{}); clierror.CodeOf(
		err,
	) != clierror.Usage {
		t.Errorf("of two: %v", err)
	}
	if _, err := chooseCandidate(nil, &reportFlags{}); clierror.CodeOf(err) != clierror.NoProcess {
		t.Errorf("of none: %v", err)
	}
}

func TestReportByName(t *testing.T) {
	socket := serve(t, newFakeDaemon())
	want(t, at(t, socket, "report", "infer.py"), clierror.OK)
	want(t, at(t, socket, "report", "1234"), clierror.OK)
	want(t, at(t, socket, "report", "other.py"), clierror.NoProcess,
		"nothing that is called \"other.py\"", "inferscope ps")
	want(t, at(t, socket, "report", "--pid", "1234", "infer.py"), clierror.Usage, "both name a process")
	want(t, at(t, socket, "report", "5000000"), clierror.Usage, "is not a process id")
}

// TestReportWaitsForTheDaemonToAttach: a report of a target that is being attached to waits, and is about what comes.
func TestReportWaitsForTheDaemonToAttach(t *testing.T) {
	d := newFakeDaemon()
	d.attaching = 3
	socket := serve(t, d)
	r := at(t, socket, "report", "--for", "20ms")
	want(t, r, clierror.OK)
	if d.attaching != 0 || !d.window {
		t.Errorf("it asked while %d looks were to come; about a window: %v", d.attaching, d.window)
	}
	d.attaching = 3
	want(t, at(t, socket, "report", "--last", "10s"), clierror.Usage, "there is no past of it", "--for")
}
