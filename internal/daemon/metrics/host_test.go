package metrics

import (
	"context"
	"io"
	"net/http"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestNamesUnderWhichMetricsAreServed: a page whose name was made to point here reads nothing.
func TestNamesUnderWhichMetricsAreServed(t *testing.T) {
	for _, tt := range []struct {
		hosts []string
		host  string
		want  int
	}{
		{nil, "", http.StatusOK}, // the address itself
		{nil, "localhost:9400", http.StatusOK},
		{nil, "LOCALHOST.", http.StatusOK},
		{nil, "[::1]:9400", http.StatusOK},
		{nil, "10.1.2.3", http.StatusOK},
		{nil, "attacker.example:9400", http.StatusMisdirectedRequest},
		{nil, "localhost.attacker.example", http.StatusMisdirectedRequest},
		{nil, "127.0.0.1.attacker.example:80", http.StatusMisdirectedRequest},
		{[]string{"gpu7.example"}, "gpu7.example:9400", http.StatusOK},
		{[]string{"gpu7.example"}, "gpu8.example:9400", http.StatusMisdirectedRequest},
		{[]string{"*"}, "gpu8.example:9400", http.StatusOK},
	} {
		s, err := Listen(context.Background(), "127.0.0.1:0", tt.hosts, registry(t, filled(), status), nil)
		must.NoError(t, err)
		go s.Serve() //nolint:errcheck // ended by Close below
		req, err := http.NewRequest(http.MethodGet, "http://"+s.Addr()+"/metrics", nil)
		must.NoError(t, err)
		req.Host = tt.host
		resp, err := http.DefaultClient.Do(req)
		must.NoError(t, err)
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != tt.want {
			t.Errorf("asked as %q with --metrics-host %v: %d, want %d", tt.host, tt.hosts, resp.StatusCode, tt.want)
		}
		_ = s.Close()
	}
}
