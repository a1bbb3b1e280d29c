// Package container runs InferScope as Kubernetes does: its image and the server's in containers of containerd and
// runc, with pid, mount and network namespaces of their own, and with nothing but what deploy/kubernetes/daemonset.yaml
// grants.
package container

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

const (
	testTimeout = 60 * time.Second
	podA        = "11111111-2222-3333-4444-555555555555"
	podB        = "99999999-2222-3333-4444-555555555555"
	serverID    = 1000 // uid and gid that servers run as
)

// runtime is a containerd of this test's own.
type runtime struct {
	t      *testing.T
	dir    string
	socket string
}

// start runs containerd, or skips the test where it cannot run a container.
func start(t *testing.T) *runtime {
	t.Helper()
	needs.Root(t, "containerd makes namespaces")
	for _, program := range []string{"containerd", "ctr", "runc"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs tool %s: apt-get install containerd runc", program)
		}
	}
	r := &runtime{t: t, dir: t.TempDir()}
	r.socket = filepath.Join(r.dir, "containerd.sock")
	r.write("config.toml", fmt.Sprintf(
		"version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\n"+
			"address = %q\n",
		filepath.Join(r.dir, "root"),
		filepath.Join(r.dir, "state"),
		r.socket,
	))
	log, err := os.Create(filepath.Join(r.dir, "containerd.log"))
	must.NoError(t, err)
	cmd := exec.Command("containerd", "--config", filepath.Join(r.dir, "config.toml"))
	cmd.Stdout, cmd.Stderr = log, log
	must.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	r.wait("containerd to answer", func() bool {
		_, err := r.ctr("version")
		return err == nil
	})
	root := r.folder("probe", "bin/")
	r.copy(build(t, "./testdata/true"), root, "bin/true")
	if out, err := r.ctr("run", "--rm", "--rootfs", root, "probe", "/bin/true"); err != nil {
		t.Skipf("containerd cannot run a container on this machine: %v\n%s", err, out)
	}
	return r
}

func (r *runtime) ctr(args ...string) (string, error) {
	out, err := exec.Command("ctr", append([]string{"--address", r.socket}, args...)...).CombinedOutput()
	return string(out), err
}

func (r *runtime) write(name, text string) string {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	must.NoError(r.t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// folder makes an image's root with these folders and what runc mounts on.
func (r *runtime) folder(name string, folders ...string) string {
	r.t.Helper()
	root := filepath.Join(r.dir, "images", name)
	for _, f := range append(folders, "proc", "dev", "sys", "tmp") {
		must.NoError(r.t, os.MkdirAll(filepath.Join(root, f), 0o755))
	}
	return root
}

func (r *runtime) copy(from, root, to string) {
	r.t.Helper()
	data, err := os.ReadFile(from)
	must.NoError(r.t, err)
	path := filepath.Join(root, to)
	must.NoError(r.t, os.MkdirAll(filepath.Dir(path), 0o755))
	if err := os.WriteFile(path, data, 0o755); err != nil { //nolint:gosec // programs and libraries of an image
		r.t.Fatal(err)
	}
}

func (r *runtime) wait(what string, ok func() bool) {
	r.t.Helper()
	for end := time.Now().Add(testTimeout); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("waited %v for %s", testTimeout, what)
		}
	}
}

// spec is what is changed in an OCI runtime specification.
type spec map[string]any

func (s spec) at(keys ...string) spec {
	for _, k := range keys {
		inner, _ := s[k].(map[string]any)
		s = inner
	}
	return s
}

// template returns containerd's own specification of a container, with its default seccomp profile.
func (r *runtime) template(root string, args ...string) spec {
	r.t.Helper()
	create := append([]string{"containers", "create", "--rootfs", "--read-only", "--seccomp"}, args...)
	if out, err := r.ctr(append(create, root, "template", "/bin/none")...); err != nil {
		r.t.Fatalf("ctr containers create: %v\n%s", err, out)
	}
	out, err := r.ctr("containers", "info", "template")
	if err != nil {
		r.t.Fatalf("ctr containers info: %v\n%s", err, out)
	}
	if out, err := r.ctr("containers", "rm", "template"); err != nil {
		r.t.Fatalf("ctr containers rm: %v\n%s", err, out)
	}
	var info struct{ Spec spec }
	must.NoError(r.t, json.Unmarshal([]byte(out), &info))
	return info.Spec
}

// run starts a container and returns its first process's pid on the host.
func (r *runtime) run(id, root string, s spec) int {
	r.t.Helper()
	text, err := json.Marshal(s)
	must.NoError(r.t, err)
	cmd := exec.Command("ctr", "--address", r.socket, "run", "--rm", "--rootfs", "--config",
		r.write(id+".json", string(text)), id)
	log, err := os.Create(filepath.Join(r.dir, id+".log"))
	must.NoError(r.t, err)
	cmd.Stdout, cmd.Stderr = log, log
	must.NoError(r.t, cmd.Start())
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	r.t.Cleanup(func() {
		_, _ = r.ctr("task", "kill", "--signal", "SIGKILL", id)
		select {
		case <-done:
		case <-time.After(testTimeout):
			_ = cmd.Process.Kill()
		}
		if r.t.Failed() {
			r.t.Logf("%s said:\n%s", id, r.log(id))
		}
	})
	pid := 0
	r.wait(id+" of "+root+" to run", func() bool {
		select {
		case <-done:
			r.t.Fatalf("%s ended at once:\n%s", id, r.log(id))
		default:
		}
		pid = r.pid(id)
		return pid != 0
	})
	return pid
}

func (r *runtime) log(id string) string {
	text, _ := os.ReadFile(filepath.Join(r.dir, id+".log"))
	return string(text)
}

// pid returns the pid of a running container's first process, 0 where there is none.
func (r *runtime) pid(id string) int {
	out, _ := r.ctr("task", "ls")
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == id && f[2] == "RUNNING" {
			pid, _ := strconv.Atoi(f[1])
			return pid
		}
	}
	return 0
}

// server starts a program on the simulated CUDA in a pod's container, as a user without rights.
func (r *runtime) server(root, pod, id string) int {
	r.t.Helper()
	s := r.template(root)
	process := s.at("process")
	process["user"] = map[string]any{"uid": serverID, "gid": serverID}
	process["args"] = []string{"/bin/victim", "repeat 1000000000 { launch 5 kernel=k_us5; sync; sleep 1ms }"}
	process["env"] = []string{"LD_LIBRARY_PATH=/cuda"}
	s.at("linux")["cgroupsPath"] = "/kubepods/burstable/pod" + pod + "/" + id
	pid := r.run(id, root, s)
	r.wait("the server to begin", func() bool { return strings.Contains(r.log(id), "ready") })
	return pid
}

// daemon starts InferScope's image with what the manifest grants.
func (r *runtime) daemon(root string, flags ...string) int {
	r.t.Helper()
	granted := grants(r.t)
	args := []string{"--mount", "type=tmpfs,src=tmpfs,dst=/run/inferscope,options=size=1048576"}
	for _, c := range granted {
		args = append(args, "--cap-add", c) // the seccomp profile follows them
	}
	s := r.template(root, args...)
	for kind := range s.at("process", "capabilities") {
		s.at("process", "capabilities")[kind] = granted
	}
	s.at("process")["args"] = append([]string{"/bin/inferscoped"}, flags...)
	s.at("process")["env"] = []string{"PATH=/bin"}
	// hostPID: true.
	linux := s.at("linux")
	namespaces, _ := linux["namespaces"].([]any)
	linux["namespaces"] = slices.DeleteFunc(namespaces, func(n any) bool { return n.(map[string]any)["type"] == "pid" })
	if s.at("process")["noNewPrivileges"] != true || linux["seccomp"] == nil {
		r.t.Fatal("containerd's specification lacks what the manifest asks for")
	}
	return r.run("inferscope", root, s)
}

// grants are the capabilities of deploy/kubernetes/daemonset.yaml.
func grants(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../deploy/kubernetes/daemonset.yaml")
	must.NoError(t, err)
	var out []string
	for _, m := range regexp.MustCompile(`(?m)^ +- ([A-Z_]+) +#`).FindAllStringSubmatch(string(text), -1) {
		out = append(out, "CAP_"+m[1])
	}
	if len(out) < 3 {
		t.Fatalf("the manifest grants %v: it is not read as it is written", out)
	}
	return out
}

var execs int

// inferscope runs the client in the daemon's container, as kubectl exec does.
func (r *runtime) inferscope(args ...string) (string, error) {
	execs++
	return r.ctr(
		append(
			[]string{"task", "exec", "--exec-id", "exec-" + strconv.Itoa(execs), "inferscope", "/bin/inferscope"},
			args...)...)
}

// targets are the states of what the daemon watches, by pid.
func (r *runtime) targets() map[int]target {
	out, err := r.inferscope("targets", "--json")
	if err != nil {
		return nil
	}
	var all []target
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		r.t.Fatalf("inferscope targets --json: %v\n%s", err, out)
	}
	byPID := map[int]target{}
	for _, one := range all {
		byPID[one.PID] = one
	}
	return byPID
}

type target struct {
	PID       int    `json:"pid"`
	NSPID     int    `json:"ns_pid"`
	UID       int    `json:"uid"`
	State     string `json:"state"`
	PodUID    string `json:"pod_uid"`
	Container string `json:"container"`
}

// build compiles a program of the repository, static as in the image.
func build(t *testing.T, pkg string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), filepath.Base(pkg))
	cmd := exec.Command("go", "build", "-o", path, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	must.Run(t, cmd)
	return path
}

// images makes the roots of a server's image and of InferScope's, which deploy/Dockerfile makes from scratch.
func (r *runtime) images() (server, inferscope string) {
	r.t.Helper()
	sim := cudasim.Build(r.t)
	server = r.folder("server")
	r.copy(sim.Victim, server, "bin/victim")
	for _, library := range []string{sim.Libcuda(cudasim.Shape580), sim.Libcudart(), sim.Libcupti()} {
		r.copy(library, server, "cuda/"+filepath.Base(library))
	}
	out, err := exec.Command("ldd", sim.Victim, sim.Libcuda(cudasim.Shape580), sim.Libcudart(), sim.Libcupti()).
		CombinedOutput()
	if err != nil {
		r.t.Fatalf("ldd: %v\n%s", err, out)
	}
	for _, m := range regexp.MustCompile(`(?m)(/\S+\.so\S*) \(0x`).FindAllStringSubmatch(string(out), -1) {
		r.copy(m[1], server, m[1])
	}
	inferscope = r.folder("inferscope", "run/inferscope")
	for _, program := range []string{"inferscoped", "inferscope"} {
		r.copy(build(r.t, "../../cmd/"+program), inferscope, "bin/"+program)
	}
	return server, inferscope
}

// TestNode: one daemon finds the servers of all pods of a node, across pid, mount and network namespaces and users, and
// reports their kernels by name; they go on when it has ended.
func TestNode(t *testing.T) {
	r := start(t)
	server, inferscope := r.images()
	containers := map[string]string{podA: strings.Repeat("a", 64), podB: strings.Repeat("b", 64)}
	pids := map[string]int{}
	for pod, id := range containers {
		pids[pod] = r.server(server, pod, id)
	}
	r.daemon(inferscope, "--gpu", "continuous", "--allow", "cmdline=/bin/victim*")
	for pod, pid := range pids {
		var last target
		r.wait("the daemon to watch pod "+pod, func() bool {
			last = r.targets()[pid]
			return last.State == "watching"
		})
		if want := (target{
			PID: pid, NSPID: 1, UID: serverID, State: "watching", PodUID: pod, Container: containers[pod],
		}); last != want {
			t.Errorf("the target is %+v, want %+v", last, want)
		}
		// The server is under containerd's default seccomp filter, and so is the daemon.
		agent := regexp.MustCompile(`an agent is in the process\t\{"pid": ` + strconv.Itoa(pid) + `,`)
		r.wait("an agent in the server of pod "+pod, func() bool { return agent.MatchString(r.log("inferscope")) })
		r.wait("kernels of pod "+pod+" in its report", func() bool {
			out, err := r.inferscope("report", "--pid", strconv.Itoa(pid), "--json")
			return err == nil && strings.Contains(out, "k_us5")
		})
	}
	if out, err := r.ctr("task", "kill", "--signal", "SIGTERM", "inferscope"); err != nil {
		t.Fatalf("ctr task kill: %v\n%s", err, out)
	}
	r.wait("the daemon to end", func() bool { return r.pid("inferscope") == 0 })
	log := r.log("inferscope")
	if !strings.Contains(log, "the targets go on") {
		t.Errorf("the daemon did not end well:\n%s", log)
	}
	// The agents could tell where the servers' threads are: CUPTI is gone.
	if ends := regexp.MustCompile(`"end": "(\w+)"`).FindAllStringSubmatch(log, -1); len(ends) != len(pids) ||
		slices.ContainsFunc(ends, func(m []string) bool { return m[1] != "finalized" }) {
		t.Errorf("the agents ended so: %q:\n%s", ends, log)
	}
	for pod, id := range containers {
		if r.pid(id) != pids[pod] {
			t.Errorf("the server of pod %s is gone:\n%s", pod, r.log(id))
		}
	}
}

// TestSidecar: with the rule of deploy/kubernetes/sidecar.yaml the daemon watches the server of its own pod alone.
func TestSidecar(t *testing.T) {
	r := start(t)
	server, inferscope := r.images()
	other := r.server(server, podB, strings.Repeat("b", 64))
	r.daemon(inferscope, "--allow=pod-uid="+podA)
	ours := r.server(server, podA, strings.Repeat("a", 64))
	r.wait("the daemon to watch its pod's server", func() bool { return r.targets()[ours].State == "watching" })
	// The other one was there before: it would have been found first.
	if found, is := r.targets()[other]; is {
		t.Errorf("it watches another pod's server, too: %+v", found)
	}
}
