package discover

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
)

// Pods knows the pods of this node, as Kubernetes tells them: names, labels and images by a pod's uid. It asks for the
// pods of one node, with the daemon's own service account (get and list on pods).
type Pods struct {
	url    string // of the API server
	node   string
	token  string // path of the file, which is renewed from time to time
	client *http.Client
	log    *zap.Logger

	mu     sync.Mutex
	known  map[string]pod // by uid
	asked  time.Time
	failed string
}

type pod struct {
	uid             string
	namespace, name string
	labels          map[string]string
	containers      map[string]container // by id
}

type container struct{ name, image string }

const (
	// ServiceAccount is where Kubernetes mounts what a pod needs to ask it.
	ServiceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"
	podsTimeout    = 5 * time.Second
	podsEvery      = 5 * time.Second // at most: a new pod's processes ask for it
	maxPodsBytes   = 64 << 20
)

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// NewPods makes a Pods from what Kubernetes puts into a container: KUBERNETES_SERVICE_HOST and _PORT, and a service
// account. NODE_NAME names the node (fieldRef spec.nodeName). It returns nil outside of Kubernetes, or without these.
func NewPods(getenv func(string) string, account string, log *zap.Logger) (*Pods, error) {
	host, port, node := getenv("KUBERNETES_SERVICE_HOST"), getenv("KUBERNETES_SERVICE_PORT"), getenv("NODE_NAME")
	token := filepath.Join(account, "token")
	if host == "" || node == "" || !exists(token) {
		return nil, nil
	}
	ca, err := os.ReadFile(filepath.Join(account, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("reading the certificate of Kubernetes: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, errors.New("the service account's ca.crt holds no certificate")
	}
	return &Pods{
		url: "https://" + net.JoinHostPort(host, port), node: node, token: token, log: log, known: map[string]pod{},
		client: &http.Client{
			Timeout:   podsTimeout,
			Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}},
		},
	}, nil
}

// complete fills in what is known of a place's pod. It asks Kubernetes about a pod that is not known.
func (p *Pods) complete(at *Place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	found, known := p.find(at)
	if _, ours := found.containers[at.Container]; (!known || !ours) && time.Since(p.asked) >= podsEvery {
		p.asked = time.Now()
		pods, err := p.list()
		if err == nil {
			p.known, p.failed = pods, ""
		} else if p.failed != err.Error() {
			p.failed = err.Error()
			p.log.Warn("Kubernetes does not tell about the pods of this node", zap.Error(err))
		}
		found, known = p.find(at)
	}
	if !known {
		return
	}
	at.PodUID = found.uid
	at.Namespace, at.Pod, at.Labels = found.namespace, found.name, found.labels
	if c, ok := found.containers[at.Container]; ok {
		at.Name, at.Image = c.name, c.image
	}
}

// find returns the pod of a place, by its uid or by its container. The caller holds the lock.
func (p *Pods) find(at *Place) (pod, bool) {
	if one, known := p.known[at.PodUID]; known {
		return one, true
	}
	for _, one := range p.known {
		if _, has := one.containers[at.Container]; has {
			return one, true
		}
	}
	return pod{}, false
}

// list asks for the pods of the node.
func (p *Pods) list() (map[string]pod, error) {
	token, err := os.ReadFile(p.token)
	if err != nil {
		return nil, err
	}
	q := url.Values{"fieldSelector": {"spec.nodeName=" + p.node}}
	ctx, cancel := context.WithTimeout(context.Background(), podsTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/api/v1/pods?"+q.Encode(), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	answer, err := p.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf(
			"listing the pods of node %s: %s (the service account needs get and list on pods)",
			p.node,
			answer.Status,
		)
	}
	return decodePods(io.LimitReader(answer.Body, maxPodsBytes))
}

// podList is what is read of a PodList of core/v1.
type podList struct {
	Items []struct {
		Metadata struct {
			UID       string            `json:"uid"`
			Name      string            `json:"name"`
			Namespace string            `json:"namespace"`
			Labels    map[string]string `json:"labels"`
			// The uid that a static pod's control group has.
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
		Status struct {
			Containers []struct {
				ID    string `json:"containerID"` // containerd://ID
				Name  string `json:"name"`
				Image string `json:"image"`
			} `json:"containerStatuses"`
		} `json:"status"`
	} `json:"items"`
}

func decodePods(r io.Reader) (map[string]pod, error) {
	var list podList
	if err := json.NewDecoder(r).Decode(&list); err != nil {
		return nil, fmt.Errorf("reading the list of pods: %w", err)
	}
	out := make(map[string]pod, len(list.Items))
	for i := range list.Items {
		item := &list.Items[i]
		one := pod{
			uid: item.Metadata.UID, namespace: item.Metadata.Namespace, name: item.Metadata.Name,
			labels: item.Metadata.Labels, containers: map[string]container{},
		}
		for _, c := range item.Status.Containers {
			_, id, _ := strings.Cut(c.ID, "://")
			one.containers[id] = container{c.Name, c.Image}
		}
		out[item.Metadata.UID] = one
		if mirror := item.Metadata.Annotations["kubernetes.io/config.hash"]; mirror != "" {
			out[mirror] = one
		}
	}
	return out, nil
}
