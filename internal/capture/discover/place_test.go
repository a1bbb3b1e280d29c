package discover

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

const (
	id  = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	uid = "6c1b3e6a-0c6f-4c41-9d39-7b35b2f0a0e1"
)

func TestPlaceOf(t *testing.T) {
	for cgroup, want := range map[string]Place{
		"/": {},
		"/user.slice/user-1000.slice/session-3.scope":      {},
		"/system.slice/docker-" + id + ".scope":            {Container: id},
		"/docker/" + id:                                    {Container: id},
		"/machine.slice/libpod-" + id + ".scope/container": {Container: id},
		"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice/cri-containerd-" + id + ".scope": {Container: id, PodUID: uid},
		"/kubepods/burstable/pod" + uid + "/" + id:                 {Container: id, PodUID: uid},
		"/kubepods.slice/kubepods-pod" + uid + ".slice/crio-" + id: {Container: id, PodUID: uid},
	} {
		want.Cgroup = cgroup
		got := placeOf(cgroup)
		if got.Container != want.Container || got.PodUID != want.PodUID || got.Cgroup != cgroup {
			t.Errorf("%s: %+v, want %+v", cgroup, got, want)
		}
	}
}

// A container beside ours is of our pod, one of another pod is not.
func TestPlaceOfSiblingContainer(t *testing.T) {
	for cgroup, want := range map[string]string{
		"/../cri-containerd-" + id + ".scope": "own",
		"/../" + id:                           "own",
		"/../../kubepods-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice/cri-containerd-" + id + ".scope": uid,
		"/../../podother/" + id:                 "",
		"/../../../system.slice/ssh.service":    "",
		"/system.slice/docker-" + id + ".scope": "",
	} {
		p := placeOf(cgroup)
		if p.beside("own"); p.PodUID != want {
			t.Errorf("%s is of pod %q, want %q", cgroup, p.PodUID, want)
		}
	}
}

func TestPlaceFromLogs(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "chat-7d9-x_prod_server-"+id+".log"), "")
	p := Place{Container: id}
	p.fromLogs(dir)
	if p.Pod != "chat-7d9-x" || p.Namespace != "prod" || p.Name != "server" {
		t.Errorf("%+v", p)
	}
	other := Place{Container: strings.Repeat("f", 64)}
	other.fromLogs(dir)
	if other.Pod != "" {
		t.Errorf("another container is called %+v", other)
	}
}

func TestRole(t *testing.T) {
	for cmdline, want := range map[string]string{
		"/usr/bin/python3 /usr/local/bin/vllm serve m": "API server",
		"VLLM::EngineCore":      "engine",
		"VLLM::EngineCore_DP0":  "engine",
		"VLLM::Worker_TP1":      "worker",
		"sglang::scheduler_TP0": "engine",
		"sglang::detokenizer":   "worker",
		"python3 -c from multiprocessing.spawn import spawn_main": "worker",
		"python3 infer.py": "",
		"":                 "",
	} {
		if got := Role("python3", cmdline); got != want {
			t.Errorf("%s: %q, want %q", cmdline, got, want)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

// TestPods asks a server that answers as Kubernetes does.
func TestPods(t *testing.T) {
	asked := 0
	deny := false
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		if r.URL.Path != "/api/v1/pods" || r.URL.Query().Get("fieldSelector") != "spec.nodeName=node-1" ||
			r.Header.Get("Authorization") != "Bearer secret" ||
			deny {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		_, _ = w.Write(
			[]byte(
				`{"items":[{"metadata":{"uid":"` + uid + `","name":"chat-0","namespace":"prod","labels":{"app":"chat"}},
			"status":{"containerStatuses":[{"containerID":"containerd://` + id + `","name":"server","image":"vllm:1"}]}}]}`,
			),
		)
	}))
	t.Cleanup(s.Close)
	account := t.TempDir()
	write(t, filepath.Join(account, "token"), "secret\n")
	write(t, filepath.Join(account, "ca.crt"),
		string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
	host, port, _ := strings.Cut(strings.TrimPrefix(s.URL, "https://"), ":")
	env := map[string]string{"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, "NODE_NAME": "node-1"}
	get := func(k string) string { return env[k] }
	pods, err := NewPods(get, account, zap.NewNop())
	if err != nil || pods == nil {
		t.Fatal(pods, err)
	}
	at := Place{PodUID: uid, Container: id}
	pods.complete(&at)
	if at.Pod != "chat-0" || at.Namespace != "prod" || at.Name != "server" || at.Image != "vllm:1" ||
		at.Labels["app"] != "chat" {
		t.Errorf("%+v", at)
	}
	again := Place{PodUID: uid, Container: id}
	pods.complete(&again)
	relative := Place{Container: id} // as a container with its own cgroup namespace sees it
	pods.complete(&relative)
	if relative.PodUID != uid || relative.Pod != "chat-0" {
		t.Errorf("by its container alone: %+v", relative)
	}
	unknown := Place{PodUID: "other", Container: strings.Repeat("e", 64)}
	pods.complete(&unknown)
	if asked != 1 || unknown.Pod != "" {
		t.Errorf("asked %d times, want once within %v; an unknown pod is %+v", asked, podsEvery, unknown)
	}
	deny = true
	pods.asked = time.Time{}
	pods.complete(&unknown)
	if asked != 2 || !strings.Contains(pods.failed, "403") {
		t.Errorf("asked %d times, failed %q", asked, pods.failed)
	}
	delete(env, "NODE_NAME")
	if pods, err := NewPods(get, account, zap.NewNop()); pods != nil || err != nil {
		t.Errorf("without a node: %v %v", pods, err)
	}
}

func FuzzPods(f *testing.F) {
	f.Add(`{"items":[{"metadata":{"uid":"u"},"status":{"containerStatuses":[{"containerID":"a://b"}]}}]}`)
	fuzzing.Run(f, func(t *testing.T, text string) {
		pods, err := decodePods(strings.NewReader(text))
		if (err == nil) != (pods != nil) {
			t.Errorf("%d pods and %v", len(pods), err)
		}
	})
}

// TestForgetsEndedProcesses: after a look at all processes, nothing is known any more of those that are gone.
func TestForgetsEndedProcesses(t *testing.T) {
	d := New(Options{})
	living := proc.User{PID: uint32(os.Getpid()), StartTime: 1}
	d.PlaceOf(living.ID())
	for round := range uint64(50) {
		for i := range uint64(100) {
			u := proc.User{PID: living.PID, StartTime: 2 + 100*round + i} // that had the pid before
			d.PlaceOf(u.ID())
			d.note(&u, "it is not allowed")
		}
		d.forget([]proc.User{living})
		if _, known := d.places[living.ID()]; len(d.places) != 1 || !known || len(d.refused) != 0 {
			t.Fatalf("in round %d, places of %d processes are known, and %d refusals",
				round, len(d.places), len(d.refused))
		}
	}
}
