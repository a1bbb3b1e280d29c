package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// short reports whether a report is only its answer: text on the screen without --full.
func (f *reportFlags) short(format string) bool {
	return format == formatText && !f.full && (f.output == "" || f.output == "-")
}

// withPager calls write, which writes a report to out, through a pager if the report is long and out is a terminal.
func (g *global) withPager(f *reportFlags, format string, out *output, write func() error) error {
	tty, ok := out.Writer.(*os.File)
	if _, is := terminal(out); !ok || !is || !f.full || f.plain || format != formatText {
		return write()
	}
	pager, env := g.pager()
	if pager == "" {
		return write()
	}
	show := exec.Command("sh", "-c", pager) //nolint:noctx // it ends when its reader likes to
	show.Stdout, show.Stderr, show.Env = tty, os.Stderr, env
	in, err := show.StdinPipe()
	if err == nil {
		err = show.Start()
	}
	if err != nil {
		fmt.Fprintf(g.stderr, "inferscope: warning: no pager: %v\n", err)
		return write()
	}
	g.paging, out.Writer = tty, in
	err = write()
	g.paging, out.Writer = nil, tty
	_ = in.Close() // the reader may have left
	ended := show.Wait()
	if code := show.ProcessState.ExitCode(); ended != nil &&
		(code == notRunnable || code == notFound) { // sh has said so
		return write()
	}
	if errors.Is(err, unix.EPIPE) {
		return nil
	}
	return err
}

// pager returns the user's pager, or "" for none, and its environment. Unless LESS is set, less shows colours and quits
// if everything fits on the screen.
func (g *global) pager() (command string, env []string) {
	env = append(env, g.environ...)
	if _, set := g.environ.Get("LESS"); !set {
		env = append(env, "LESS=FRX")
	}
	command, set := g.environ.Get("PAGER")
	if term, _ := g.environ.Get("TERM"); term == "dumb" {
		return "", env
	}
	if !set {
		if _, err := exec.LookPath("less"); err != nil {
			return "", env
		}
		return "less -R", env
	}
	if command = strings.TrimSpace(command); command == "cat" {
		return "", env
	}
	return command, env
}
