package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/format/clierror"
)

// TestShortAndFull: a screen gets the answer, --full and files get everything.
func TestShortAndFull(t *testing.T) {
	socket := serve(t, newFakeDaemon())
	short, full := at(t, socket, "report").stdout, at(t, socket, "report", "--full").stdout
	if !strings.Contains(short, "--full has the rest") || strings.Contains(short, "How to read this") {
		t.Errorf("a report is\n%s", short)
	}
	if strings.Contains(full, "--full has the rest") || !strings.Contains(full, "How to read this") {
		t.Errorf("a full report is\n%s", full)
	}
	file := filepath.Join(t.TempDir(), "r.txt")
	want(t, at(t, socket, "report", "-o", file), clierror.OK)
	if text, err := os.ReadFile(file); err != nil || string(text) != full {
		t.Errorf("a file holds\n%s, %v", text, err)
	}
}

// onTerminal runs the program on a terminal and returns what that shows.
func onTerminal(t *testing.T, env []string, args ...string) (shown string, code int) {
	t.Helper()
	person, tty := openTerminal(t)
	read := make(chan string)
	go func() {
		var b strings.Builder
		buf := make([]byte, 4096)
		for {
			n, err := person.Read(buf)
			b.Write(buf[:n])
			if err != nil || strings.Contains(b.String(), "\x04") {
				break
			}
		}
		read <- b.String()
	}()
	code = run(t.Context(), process{args: args, environ: env, stdout: tty, stderr: io.Discard})
	if _, err := tty.WriteString("\x04"); err != nil { // the end of what it wrote
		t.Fatal(err)
	}
	select {
	case shown = <-read:
	case <-time.After(10 * time.Second):
		t.Fatal("the terminal shows nothing")
	}
	return shown, code
}

func TestPager(t *testing.T) {
	socket := serve(t, newFakeDaemon())
	env := []string{"INFERSCOPE_SOCKET=" + socket, "PATH=" + os.Getenv("PATH")}
	paged := filepath.Join(t.TempDir(), "paged")
	pager := "PAGER=cat > " + paged
	shown, code := onTerminal(t, append(env, pager), "report", "--full")
	text, err := os.ReadFile(paged)
	if code != 0 || err != nil || !strings.Contains(string(text), "How to read this") ||
		!strings.Contains(string(text), "\x1b[") ||
		strings.Contains(shown, "Threads") {
		t.Errorf("the pager got %v, %.300q; the terminal %.300q", err, text, shown)
	}
	for name, c := range map[string]struct {
		env  []string
		args []string
	}{
		"--no-pager":  {[]string{pager}, []string{"report", "--full", "--no-pager"}},
		"short":       {[]string{pager}, []string{"report"}},
		"empty PAGER": {[]string{"PAGER="}, []string{"report", "--full"}},
		"not there":   {[]string{"PAGER=no-such-pager"}, []string{"report", "--full"}},
	} {
		if err := os.Remove(paged); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		shown, code := onTerminal(t, append(env, c.env...), c.args...)
		if _, err := os.Stat(paged); err == nil || code != 0 || !strings.Contains(shown, "python (pid 1234)") {
			t.Errorf("%s: code %d, a pager ran: %v, shown %.300q", name, code, err == nil, shown)
		}
	}
	if _, code := onTerminal(t, append(env, "PAGER=true"), "report", "--full"); code != 0 {
		t.Errorf("a reader that leaves at once makes it end with %d", code)
	}
}
