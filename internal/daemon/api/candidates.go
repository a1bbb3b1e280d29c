package api

import (
	"context"
	"net/http"
	"slices"
)

// Place is where a process runs. What is not known is empty.
type Place struct {
	Cgroup        string `json:"cgroup,omitempty"`         // as the host sees it
	Container     string `json:"container,omitempty"`      // id, 64 hexadecimal digits
	ContainerName string `json:"container_name,omitempty"` // in its pod
	Image         string `json:"image,omitempty"`
	Namespace     string `json:"namespace,omitempty"`
	Pod           string `json:"pod,omitempty"`
	PodUID        string `json:"pod_uid,omitempty"`
}

// Candidate is a process that uses a GPU, watched or not.
type Candidate struct {
	PID     uint32   `json:"pid"`
	Top     uint32   `json:"top"` // the process that discovery would make the target: the farthest ancestor of the same program
	UID     uint32   `json:"uid"`
	Comm    string   `json:"comm"`
	Cmdline string   `json:"cmdline"`
	Library string   `json:"library,omitempty"` // of the driver, as the process sees it; "": only device files are open
	GPUs    []string `json:"gpus,omitempty"`    // device files that it has open: nvidia0
	Role    string   `json:"role,omitempty"`    // API server, engine, worker
	Target  uint32   `json:"target,omitempty"`  // pid of the target that it belongs to; 0: it is not watched
	Refused string   `json:"refused,omitempty"` // why discovery leaves it alone
	Place
}

// Discovery is what became of the processes that use a GPU, since the start of the daemon.
type Discovery struct {
	Watched uint64 `json:"watched"` // programs that became targets
	Refused uint64 `json:"refused"` // processes that rules left out
	Skipped uint64 `json:"skipped"` // that had ended before it was their turn
	Failed  uint64 `json:"failed"`  // that could not be watched
	Hidden  uint64 `json:"hidden"`  // processes of any kind that could not be looked into, at the last look
	Pending uint64 `json:"pending"` // that wait for their turn
}

// candidates answers GET on PathCandidates. Anybody may ask for their own processes.
func (s *Server) candidates(w http.ResponseWriter, r *http.Request, p peer) error {
	ctx, cancel := context.WithTimeout(r.Context(), s.limits.Request)
	defer cancel()
	found, err := s.backend.Candidates(ctx)
	if err != nil {
		return err
	}
	if !p.privileged(s.own) {
		found = slices.DeleteFunc(found, func(c Candidate) bool { return c.UID != p.uid })
	}
	if found == nil {
		found = []Candidate{}
	}
	setDeadline(w, s.limits.Request)
	writeJSON(w, http.StatusOK, found)
	return nil
}

// Candidates returns the processes that use a GPU: the caller's own, or, for root, everybody's.
func (c *Client) Candidates(ctx context.Context) ([]Candidate, error) {
	var out []Candidate
	err := c.getJSON(ctx, PathCandidates, &out)
	return out, err
}
