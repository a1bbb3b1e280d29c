package discover

import (
	"path/filepath"
	"regexp"
	"strings"
)

// Place is where a process runs.
type Place struct {
	Cgroup    string `json:"cgroup,omitempty"`         // as the host sees it
	Container string `json:"container,omitempty"`      // id, 64 hexadecimal digits
	Name      string `json:"container_name,omitempty"` // in its pod
	Image     string `json:"image,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	PodUID    string `json:"pod_uid,omitempty"`

	Labels map[string]string `json:"-"` // of the pod
}

var (
	containerID = regexp.MustCompile(`[0-9a-f]{64}`)
	podUID      = regexp.MustCompile(`pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})`)
)

// placeOf reads what a control group's name tells: Docker, containerd, CRI-O and Podman put the container's id into it,
// the kubelet the pod's uid.
func placeOf(cgroup string) Place {
	p := Place{Cgroup: cgroup}
	if ids := containerID.FindAllString(cgroup, -1); len(ids) > 0 {
		p.Container = ids[len(ids)-1] // of containers in containers, the innermost
	}
	if m := podUID.FindStringSubmatch(cgroup); m != nil {
		p.PodUID = strings.ReplaceAll(m[1], "_", "-")
	}
	return p
}

// beside takes a container for one of our own pod if its control group lies beside ours: a container with a cgroup
// namespace of its own, as is usual, sees others as /../NAME, without the pod's uid.
func (p *Place) beside(own string) {
	rest, above := strings.CutPrefix(p.Cgroup, "/../")
	if above && own != "" && p.PodUID == "" && p.Container != "" && !strings.HasPrefix(rest, "../") {
		p.PodUID = own
	}
}

// containerLogs is where the kubelet links the log of each container, on every node.
const containerLogs = "/var/log/containers"

// fromLogs takes the names of pod and container from the kubelet's link, called POD_NAMESPACE_CONTAINER-ID.log. It
// needs no access to Kubernetes, only the folder.
func (p *Place) fromLogs(dir string) {
	if p.Container == "" || p.Pod != "" {
		return
	}
	found, err := filepath.Glob(filepath.Join(dir, "*_*_*-"+p.Container+".log"))
	if err != nil || len(found) != 1 {
		return
	}
	parts := strings.SplitN(strings.TrimSuffix(filepath.Base(found[0]), "-"+p.Container+".log"), "_", 3)
	if len(parts) == 3 {
		p.Pod, p.Namespace, p.Name = parts[0], parts[1], parts[2]
	}
}

// Role reports what a process of an inference server is for; "" where its name does not tell.
func Role(comm, cmdline string) string {
	title, _, _ := strings.Cut(cmdline, " ")
	title = strings.ToLower(title)
	switch {
	case strings.HasPrefix(title, "vllm::enginecor"),
		strings.HasPrefix(title, "sglang::scheduler"),
		strings.HasPrefix(comm, "VLLM::EngineCor"):
		return "engine"
	case strings.HasPrefix(title, "vllm::"),
		strings.HasPrefix(title, "sglang::"),
		strings.HasPrefix(title, "ray::"),
		strings.HasPrefix(comm, "VLLM::"):
		return "worker"
	case strings.Contains(cmdline, "multiprocessing.spawn"), strings.Contains(cmdline, "multiprocessing.forkserver"),
		strings.Contains(cmdline, "triton_python_backend_stub"):
		return "worker"
	case isServer(cmdline):
		return "API server"
	}
	return ""
}

// servers are what the command lines of inference servers hold.
var servers = []string{
	"vllm serve", "vllm.entrypoints", "sglang.launch_server", "sglang serve", "tritonserver",
	"text-generation-launcher", "text-generation-router", "llama-server", "transformers serve", "trtllm-serve",
	"lmdeploy serve", "uvicorn", "gunicorn",
}

func isServer(cmdline string) bool {
	for _, s := range servers {
		if strings.Contains(cmdline, s) {
			return true
		}
	}
	return false
}
