package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// completed returns what a shell gets for the last word of a command line.
func completed(t *testing.T, socket string, args ...string) []string {
	t.Helper()
	r := at(t, socket, append([]string{"__complete"}, args...)...)
	want(t, r, clierror.OK)
	var out []string
	for line := range strings.Lines(r.stdout) {
		if word, _, described := strings.Cut(line, "\t"); described {
			out = append(out, word)
		}
	}
	return out
}

// TestTargetsAreCompleted: pids and names, and of each command those that it can be about.
func TestTargetsAreCompleted(t *testing.T) {
	d := newFakeDaemon()
	d.targets[0].Place = api.Place{Namespace: "prod", Pod: "llm-0"}
	d.targets = append(d.targets, api.Target{PID: 9, Comm: "old", Cmdline: "old", State: api.Exited})
	socket := serve(t, d)
	watched := []string{"1234"}
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"report", "--pid", ""}, []string{"1234", "9", "77"}},
		{[]string{"report", ""}, []string{"1234", "9", "77", "prod/llm-0", "infer.py", "old", "prod/train-0", "train.py"}},
		{[]string{"dump", ""}, []string{"1234", "9", "77", "prod/llm-0", "infer.py", "old", "prod/train-0", "train.py"}},
		{[]string{"detach", ""}, append(watched, "prod/llm-0", "infer.py", "python")},
		{[]string{"attach", "--pid", ""}, []string{"77"}},
		{[]string{"flight", "--pid", ""}, []string{"1234", "9"}},
		{[]string{"export", "--pid", ""}, []string{"1234", "9", "77"}},
		{[]string{"report", "1234", ""}, nil},
	} {
		got := completed(t, socket, c.args...)
		for _, word := range c.want {
			if !slices.Contains(got, word) {
				t.Errorf("%v completes as %v, without %s", c.args, got, word)
			}
		}
		if len(got) > len(c.want)+1 { // and python, train: programs of that name
			t.Errorf("%v completes as %v, want %v", c.args, got, c.want)
		}
	}
	for _, c := range [][]string{
		{"whatif", "--without", "host-sync"},
		{"report", "--gpu", "continuous"},
		{"run", "--gpu", "off"},
		{"export", "--to", "pprof"},
	} {
		r := at(t, socket, "__complete", c[0], c[1], "")
		if !slices.Contains(strings.Split(r.stdout, "\n"), c[2]) {
			t.Errorf("%s %s does not complete %s:\n%s", c[0], c[1], c[2], r.stdout)
		}
	}
	if r := at(t, socket, "__complete", "report", ""); !strings.Contains(r.stdout, "1234\twatching: python infer.py") {
		t.Errorf("a pid says nothing about its process:\n%s", r.stdout)
	}
	if recordtest.PID != 1234 {
		t.Error("the texts above name another pid")
	}
	want(t, at(t, socketPath(t), "__complete", "report", "--pid", ""), clierror.OK)
}

// TestNamesThatAreCompleted: those that mean one process, and that a shell takes as they are.
func TestNamesThatAreCompleted(t *testing.T) {
	all := []completion{
		{pid: 9, names: []string{"--help"}},
		{pid: 1, names: []string{"a.py", "python"}},
		{pid: 2, names: []string{"b.py", "python"}},
		{pid: 3, names: []string{"", "$(reboot)", "two words", "VLLM::EngineCor", "x;y", "ns/pod"}},
	}
	var got []string
	for _, text := range distinct(all) {
		word, _, _ := strings.Cut(text, "\t")
		got = append(got, word)
	}
	if want := []string{"a.py", "b.py", "ns/pod"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// shellSession is an interactive bash that has read our completions, on a terminal.
type shellSession struct {
	t     *testing.T
	typed *os.File
	shown chan string
	all   string
}

func startShell(t *testing.T, socket string) *shellSession {
	t.Helper()
	const library = "/usr/share/bash-completion/bash_completion"
	if _, err := os.Stat(library); err != nil {
		t.Skip("needs bash-completion: ", err)
	}
	self, err := os.Executable()
	must.NoError(t, err)
	dir := t.TempDir()
	program := filepath.Join(dir, "inferscope")
	writeScript(t, program, "#!/bin/sh\n"+clientEnv+"=1 exec '"+self+"' \"$@\"\n")
	rc := filepath.Join(dir, "rc")
	writeScript(t, rc, "PS1='ready> '; PATH="+dir+":$PATH\n. "+library+"\n. <(inferscope completion bash)\n")
	person, tty := openTerminal(t)
	bash := exec.CommandContext(t.Context(), "bash", "--rcfile", rc, "--noprofile", "-i")
	bash.Env = append(os.Environ(), "TERM=dumb", "HISTFILE=/dev/null", api.SocketEnv+"="+socket)
	bash.Stdin, bash.Stdout, bash.Stderr, bash.Dir = tty, tty, tty, dir
	bash.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := bash.Start(); err != nil {
		t.Skip("needs bash: ", err)
	}
	s := &shellSession{t: t, typed: person, shown: make(chan string, 1024)}
	go func() {
		for chunk := make([]byte, 4096); ; {
			n, err := person.Read(chunk)
			if err != nil {
				close(s.shown)
				return
			}
			s.shown <- string(chunk[:n])
		}
	}()
	t.Cleanup(func() { _ = bash.Process.Kill(); _ = bash.Wait() })
	s.until("ready> ")
	return s
}

func writeScript(t *testing.T, path, text string) {
	t.Helper()
	must.NoError(t, os.WriteFile(path, []byte(text), 0o700))
}

// until waits for what the shell shows after what it has shown before.
func (s *shellSession) until(text string) {
	s.t.Helper()
	for end := time.After(time.Minute); !strings.Contains(s.all, text); {
		select {
		case chunk, ok := <-s.shown:
			if !ok {
				s.t.Fatalf("the shell ended, after %q", s.all)
			}
			s.all += chunk
		case <-end:
			s.t.Fatalf("no %q in %q", text, s.all)
		}
	}
	_, s.all, _ = strings.Cut(s.all, text)
}

// presses types keys.
func (s *shellSession) presses(keys string) {
	s.t.Helper()
	if _, err := s.typed.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}

// TestTabInBash: a person presses Tab.
func TestTabInBash(t *testing.T) {
	s := startShell(t, serve(t, newFakeDaemon()))
	const tab, newLine = "\t", "\x15\n" // Ctrl-U and Enter
	for _, c := range []struct{ typed, want string }{
		{"inferscope rep" + tab, "report "},
		{"inferscope report 12" + tab, "1234 "},
		{"inferscope report --pid 12" + tab, "1234 "},
		{"inferscope record inf" + tab, "infer.py "},
		{"inferscope attach prod" + tab, "prod/train-0 "},
		{"inferscope dump " + tab + tab, "watching: python infer.py"},
		{"inferscope report --format ht" + tab, "html "},
	} {
		s.presses(c.typed)
		s.until(c.want)
		s.presses(newLine)
		s.until("ready> ")
	}
}

// TestCompletionIsQuiet: a shell that asks where no daemon is gets no words on the terminal.
func TestCompletionIsQuiet(t *testing.T) {
	g := newGlobal(process{stderr: os.Stderr})
	g.socket = socketPath(t)
	cmd := &cobra.Command{Use: "report"}
	cmd.SetContext(context.Background())
	for _, m := range g.completions(cmd) {
		if m.pid == 0 || m.state != "not watched" {
			t.Errorf("%+v", m)
		}
	}
}
