package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// serving runs inferscope serve and returns the address that it prints.
func serving(t *testing.T, d *fakeDaemon) *url.URL {
	t.Helper()
	return servingAt(t, serve(t, d))
}

func servingAt(t *testing.T, socket string) *url.URL {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	out, in := io.Pipe()
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, process{
			args: []string{"serve", "--listen", "127.0.0.1:0"}, environ: []string{"INFERSCOPE_SOCKET=" + socket},
			stdout: in, stderr: io.Discard,
		})
		in.Close()
	}()
	t.Cleanup(func() {
		stop()
		if got := <-code; got != int(clierror.OK) {
			t.Errorf("serve ended with %d", got)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	must.NoError(t, err)
	address, err := url.Parse(strings.TrimSpace(line))
	must.NoError(t, err)
	return address
}

func get(t *testing.T, address, host string) (status int, body, final string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, http.NoBody)
	must.NoError(t, err)
	request.Host = host
	answer, err := http.DefaultClient.Do(request)
	must.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	must.NoError(t, err)
	return answer.StatusCode, string(text), answer.Request.URL.Path
}

// TestServe: the only target's report is a page; nobody has it without the secret, or under another name.
func TestServe(t *testing.T) {
	d := newFakeDaemon()
	at := serving(t, d)
	status, page, path := get(t, at.String(), at.Host)
	if status != http.StatusOK || !strings.HasSuffix(path, "/1234") || !strings.HasPrefix(page, "<!doctype html>") ||
		!strings.Contains(page, "<title>") ||
		!strings.Contains(page, `id="data">`) {
		t.Errorf("status %d of %s, %d bytes", status, path, len(page))
	}
	for _, tt := range []struct {
		path, host string
		status     int
		says       string
	}{
		{"/", at.Host, http.StatusNotFound, ""},
		{"/1234", at.Host, http.StatusNotFound, ""},
		{at.Path + "1234", "attacker.example", http.StatusMisdirectedRequest, "localhost"},
		{at.Path + "1234", "192.0.2.1:8345", http.StatusMisdirectedRequest, "localhost"},
		{at.Path + "99", at.Host, http.StatusNotFound, "99"},
		{at.Path + "x", at.Host, http.StatusNotFound, "inferscope ps"},
		{"/OTHERSECRET/", at.Host, http.StatusNotFound, "another one after each start"},
		{at.Path + "1234?last=soon", at.Host, http.StatusBadRequest, "30s"},
	} {
		status, page, _ := get(t, "http://"+at.Host+tt.path, tt.host)
		if status != tt.status || !strings.Contains(page, tt.says) {
			t.Errorf("%s as %s: status %d, %.200q", tt.path, tt.host, status, page)
		}
	}
	if _, _, _ = get(t, at.String()+"1234?last=1m30s", "localhost"); d.last.Seconds() != 90 {
		t.Errorf("the daemon was asked for the last %s", d.last)
	}
}

// TestServeWhileDaemonsComeAndGo: a page says that there is no daemon and what to do, and works again with the next
// one, which watches something else.
func TestServeWhileDaemonsComeAndGo(t *testing.T) {
	socket := socketPath(t)
	first := newFakeDaemon()
	stop := serveAt(t, first, socket)
	at := servingAt(t, socket)
	if status, _, path := get(t, at.String()+"?last=20s", at.Host); status != http.StatusOK ||
		!strings.HasSuffix(path, "/1234") || first.last.Seconds() != 20 {
		t.Errorf("status %d of %s, the last %s", status, path, first.last)
	}
	stop()
	for _, path := range []string{"", "1234", "python"} {
		status, page, _ := get(t, at.String()+path, at.Host)
		if status != http.StatusServiceUnavailable || !strings.Contains(page, "\nstart it with: sudo inferscoped\n") {
			t.Errorf("%q without a daemon: status %d, %q", path, status, page)
		}
	}
	next := newFakeDaemon()
	next.targets = []api.Target{
		{PID: 7, Comm: "old", State: api.Exited, Detail: "killed by SIGKILL"},
		{PID: 4321, Comm: "server", State: api.Watching},
	}
	t.Cleanup(serveAt(t, next, socket))
	status, page, _ := get(t, at.String(), at.Host)
	if living, ended := strings.Index(page, "4321"), strings.Index(page, "killed by SIGKILL"); status != http.StatusOK ||
		living < 0 ||
		ended < living {
		t.Errorf("status %d, what has ended is not at the end:\n%s", status, page)
	}
	if status, _, _ := get(t, at.String()+"server?last=30s", at.Host); status != http.StatusOK ||
		next.last.Seconds() != 30 {
		t.Errorf("by name: status %d, the last %s", status, next.last)
	}
	if status, page, _ := get(t, at.String()+"1234", at.Host); status != http.StatusNotFound ||
		!strings.Contains(page, "inferscope targets") {
		t.Errorf("the target of the daemon before: status %d, %q", status, page)
	}
}

// TestServeList: several targets are a list, in which a name is no markup.
func TestServeList(t *testing.T) {
	d := newFakeDaemon()
	d.targets = append(d.targets,
		api.Target{PID: 99, Comm: "<script>x", State: api.Waiting, Place: api.Place{Pod: "vllm-0"}})
	at := serving(t, d)
	status, page, _ := get(t, at.String(), at.Host)
	if status != http.StatusOK || !strings.Contains(page, `<a href="99">`) || !strings.Contains(page, "vllm-0") ||
		strings.Contains(page, "<script>x") {
		t.Errorf("status %d:\n%s", status, page)
	}
}

// TestServeRefuses an address that others reach, and says that a daemon is missing.
func TestServeRefuses(t *testing.T) {
	socket := serve(t, newFakeDaemon())
	for _, address := range []string{"0.0.0.0:8345", ":8345", "192.0.2.1:80", "gpu-host:80", "8345"} {
		want(t, at(t, socket, "serve", "--listen", address), clierror.Usage, "ssh -L")
	}
	want(t, at(t, "/nowhere/s", "serve"), clierror.NoDaemon)
}
