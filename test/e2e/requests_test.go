package e2e

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// TestRequestsOfARunningServer: a server with clients, from the kernel to the report; nothing of what was asked and
// answered is in anything that comes out, or in the log.
func TestRequestsOfARunningServer(t *testing.T) {
	needRoot(t)
	const canary = "canary-of-a-prompt-4711"
	cmd := exec.Command(python(t), absolute(t, "../../testdata/sseserver/server.py"))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	port, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	d := startDaemon(t, cmd.Process.Pid, "--gpu", "off", "--log-level", "debug", "--pin-level", "requests=all")
	const clients, each = 8, 3
	var wait sync.WaitGroup
	errs := make(chan error, clients*each)
	for range clients {
		wait.Go(func() {
			for i := range each {
				body := fmt.Sprintf(
					`{"model":"small","stream":%t,"max_tokens":12,"gap_ms":3,"prefill_ms":20,"prompt":"%s"}`,
					i > 0,
					canary,
				)
				resp, err := http.Post(
					"http://127.0.0.1:"+strings.TrimSpace(port)+"/v1/completions?key="+canary,
					"application/json",
					strings.NewReader(body),
				)
				if err == nil {
					_, err = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				}
				errs <- err
			}
		})
	}
	wait.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	rec := d.recording(cmd.Process.Pid)
	if len(rec.Meta.Requests) != clients*each {
		t.Fatalf("%d requests; losses %+v", len(rec.Meta.Requests), rec.Meta.Losses)
	}
	for _, r := range rec.Meta.Requests {
		if r.Outcome != "complete" || r.Model != "small" || r.OutputTokens != 12 || r.TokenSource != "usage" ||
			r.Streamed != (r.FirstToken > 0) {
			t.Errorf("%+v", r)
		}
	}
	text, _, code := d.inferscope("report", "--full", "--slo", "ttft=5s,tpot=1s")
	for _, want := range []string{"24 ended in the window", "16 streamed", "Time to first token", "16 of 16 (100.0%)", "/v1/completions"} {
		if code != 0 || !strings.Contains(text, want) {
			t.Errorf("the report lacks %q: %d\n%.6000s", want, code, text)
		}
	}
	dir := t.TempDir()
	for _, args := range [][]string{
		{"report", "--full", "-o", filepath.Join(dir, "r.md")},
		{"report", "-f", "html", "-o", filepath.Join(dir, "r.html")},
		{"report", "--json", "-o", filepath.Join(dir, "r.json")},
		{"record", strconv.Itoa(cmd.Process.Pid), "--for", "1s", "-o", filepath.Join(dir, "r.isc")},
	} {
		if _, stderr, code := d.inferscope(args...); code != 0 {
			t.Fatalf("%v: %d %s", args, code, stderr)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "log"), []byte(text+d.log.String()+fmt.Sprintf("%+v", rec.Meta)), 0o600); err != nil {
		t.Fatal(err)
	}
	files := 0
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		files++
		content, err := os.ReadFile(path)
		// "secret" is what the server answers.
		if s := string(content); strings.Contains(s, canary) || strings.Contains(s, "secret") {
			t.Errorf("%s has content of a request or an answer", path)
		}
		return err
	})
	if err != nil || files < 5 {
		t.Errorf("%d files, %v", files, err)
	}
}

// TestRequestsOff: --requests=off records none.
func TestRequestsOff(t *testing.T) {
	needRoot(t)
	cmd := exec.Command(python(t), absolute(t, "../../testdata/sseserver/server.py"))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	port, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	d := startDaemon(t, cmd.Process.Pid, "--gpu", "off", "--requests=off")
	resp, err := http.Post(
		"http://127.0.0.1:"+strings.TrimSpace(port)+"/v1/completions",
		"application/json",
		strings.NewReader(`{"stream":true}`),
	)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	rec := d.recording(cmd.Process.Pid)
	if len(rec.Meta.Requests) > 0 {
		t.Errorf("%+v", rec.Meta.Requests)
	}
	for _, s := range rec.Meta.Sources {
		if s.Name == "requests" {
			t.Errorf("%+v", s)
		}
	}
}
