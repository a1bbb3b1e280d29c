package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// TestOpen: the desktop's opener is given the file that was written.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	said := filepath.Join(dir, "said")
	script := "#!/bin/sh\nprintf %s \"$1\" > " + said + ".part && mv " + said + ".part " + said + "\n"
	must.NoError(t, os.WriteFile(filepath.Join(dir, "xdg-open"), []byte(script), 0o700))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Chdir(dir)
	want(t, at(t, serve(t, newFakeDaemon()), "report", "--open"), clierror.OK, "wrote report.html")
	path := filepath.Join(dir, "report.html")
	if got, err := os.ReadFile(path); err != nil || kind(string(got)) != formatHTML {
		t.Errorf("the report is %s, %v", kind(string(got)), err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if got, err := os.ReadFile(said); err == nil {
			if string(got) != path {
				t.Errorf("the opener was given %q, want %q", got, path)
			}
			return
		}
		if time.Now().After(end) {
			t.Fatal("nobody asked the desktop to open the report")
		}
	}
}

func TestOpenWithoutADesktop(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	path := filepath.Join(t.TempDir(), "r.html")
	want(t, at(t, serve(t, newFakeDaemon()), "report", "--open", "-o", path), clierror.OK,
		"no browser could be started", path)
}

func TestOpenOfWhatIsNoPage(t *testing.T) {
	socket := serve(t, newFakeDaemon())
	for _, args := range [][]string{{"--open", "--format", "json"}, {"--open", "-o", "r.md"}, {"--open", "--format", "html", "-o", "-"}} {
		want(t, at(t, socket, append([]string{"report"}, args...)...), clierror.Usage, "--open")
	}
}
