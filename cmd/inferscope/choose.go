package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
)

// maxNamed bounds how many processes an error lists.
const maxNamed = 10

// choose returns the target of a command: the one that --pid or a name selects, else the only running target, else the
// only target there was.
func choose(targets []api.Target, f *reportFlags) (uint32, error) {
	switch {
	case f.pid != 0:
		return byPID(targets, uint32(f.pid))
	case f.name != "":
		return byName(targets, f.name)
	}
	living := slices.DeleteFunc(slices.Clone(targets), func(t api.Target) bool { return ended(&t) })
	switch {
	case len(living) == 1:
		return living[0].PID, nil
	case len(living) == 0 && len(targets) == 1:
		return targets[0].PID, nil
	case len(targets) == 0:
		return 0, clierror.New(
			clierror.NoProcess,
			"name one with --pid N; inferscope ps lists those that use a GPU; sudo inferscoped watches all of them",
			errors.New("the daemon watches no process"),
		)
	case len(living) == 0:
		living = targets
	}
	return 0, several("the daemon watches", living)
}

func ended(t *api.Target) bool { return t.State == api.Exited || t.State == api.Released }

// byPID finds a target by the pid of one of its processes.
func byPID(targets []api.Target, pid uint32) (uint32, error) {
	for i := range targets {
		if targets[i].PID == pid && targets[i].State != api.Released {
			return pid, nil
		}
	}
	for i := range targets {
		for _, p := range targets[i].Processes {
			if p.PID == pid && p.Died == 0 && !ended(&targets[i]) {
				return targets[i].PID, nil
			}
		}
	}
	for i := range targets { // what was recorded before its release
		if targets[i].PID == pid {
			return pid, nil
		}
	}
	return 0, clierror.New(clierror.NoProcess,
		fmt.Sprintf("inferscope targets lists what is watched; sudo inferscoped --pid %d watches it", pid),
		fmt.Errorf("pid %d is not a target of this daemon", pid))
}

// byName finds a target by the name of its program, script or pod. Running targets go before ended ones.
func byName(targets []api.Target, name string) (uint32, error) {
	for _, over := range []bool{false, true} {
		var found []api.Target
		for i := range targets {
			if t := &targets[i]; ended(t) == over && isCalled(t, name) {
				found = append(found, *t)
			}
		}
		switch {
		case len(found) == 1:
			return found[0].PID, nil
		case len(found) > 1:
			return 0, several(fmt.Sprintf("%q fits", format.Clean(name)), found)
		}
	}
	return 0, clierror.New(clierror.NoProcess, "inferscope ps lists the processes that use a GPU",
		fmt.Errorf("the daemon watches nothing that is called %q", format.Clean(name)))
}

// isCalled reports whether a target, or one of its running processes, has this name.
func isCalled(t *api.Target, name string) bool {
	return fits(name, t.Comm, t.Cmdline, &t.Place) ||
		slices.ContainsFunc(t.Processes, func(p recording.Process) bool {
			return p.Died == 0 && fits(name, p.Comm, p.Cmdline, &api.Place{})
		})
}

// fits reports whether a process has this name: its comm, the base name of one of its first arguments with or without
// extension, its pod (NAME or NAMESPACE/NAME) or its container.
func fits(name, comm, cmdline string, at *api.Place) bool {
	if name == "" {
		return false
	}
	if len(at.Container) >= 12 && len(name) >= 12 && strings.HasPrefix(at.Container, name) {
		return true
	}
	return slices.Contains(namesOf(comm, cmdline, at), name)
}

// namesOf returns the names of a process.
func namesOf(comm, cmdline string, at *api.Place) []string {
	names := []string{comm, at.Pod, at.ContainerName}
	if at.Pod != "" {
		names = append(names, at.Namespace+"/"+at.Pod)
	}
	for i, word := range strings.Fields(cmdline) {
		if i > maxWords {
			break
		}
		if base := path.Base(word); !strings.HasPrefix(word, "-") {
			names = append(names, base, strings.TrimSuffix(base, path.Ext(base)))
		}
	}
	return names
}

// maxWords is how many arguments are searched for a program's name: the interpreter, its options, the script.
const maxWords = 4

func several(what string, targets []api.Target) error {
	names := make([]string, 0, maxNamed)
	for i, t := range targets {
		if i == maxNamed {
			names = append(names, fmt.Sprintf("and %d more", len(targets)-maxNamed))
			break
		}
		names = append(names, fmt.Sprintf("%d (%s)", t.PID, format.Clean(t.Comm)))
	}
	return clierror.New(clierror.Usage, "say which one with --pid",
		fmt.Errorf("%s %d processes: %s", what, len(targets), strings.Join(names, ", ")))
}

// chooseCandidate returns the process of a command among those that use a GPU and are not watched. A process that a
// rule excludes must be named.
func chooseCandidate(found []api.Candidate, f *reportFlags) (uint32, error) {
	var tops []api.Target
	for i := range found {
		c := &found[i]
		if c.Target != 0 || f.name == "" && c.Refused != "" ||
			f.name != "" && !fits(f.name, c.Comm, c.Cmdline, &c.Place) {
			continue
		}
		if !slices.ContainsFunc(tops, func(t api.Target) bool { return t.PID == c.Top }) {
			tops = append(tops, api.Target{PID: c.Top, Comm: c.Comm})
		}
	}
	switch {
	case len(tops) == 1:
		return tops[0].PID, nil
	case len(tops) > 1 && f.name != "":
		return 0, several(fmt.Sprintf("%q fits", format.Clean(f.name)), tops)
	case len(tops) > 1:
		return 0, several("a GPU is used by", tops)
	case f.name != "":
		return 0, clierror.New(clierror.NoProcess,
			"inferscope ps lists those that do; --pid names any process",
			fmt.Errorf("no process that is called %q uses a GPU", format.Clean(f.name)))
	case len(found) > 0:
		return 0, clierror.New(clierror.NoProcess, "inferscope ps lists them; name one with --pid N",
			errors.New("the processes that use a GPU are watched already, or rules leave them alone"))
	}
	return 0, clierror.New(clierror.NoProcess,
		"name one with --pid N, or start a program with: inferscope run PROGRAM",
		errors.New("no process uses a GPU"))
}

// candidates lists the processes that use a GPU when no daemon answers: it runs inferscoped with the rights of this
// user, and prints how many processes this user may not inspect.
func (g *global) candidates(ctx context.Context) ([]api.Candidate, error) {
	found, said, err := g.findCandidates(ctx)
	if err == nil && said != "" && os.Geteuid() != 0 { // what root cannot look into is no program of anybody's
		fmt.Fprintf(g.stderr, "inferscope: %s\n", said)
	}
	return found, err
}

// findCandidates is candidates, but returns the message instead of printing it.
func (g *global) findCandidates(ctx context.Context) (found []api.Candidate, said string, err error) {
	program, err := daemonProgram()
	if err != nil {
		return nil, "", err
	}
	var out, words bytes.Buffer
	look := exec.CommandContext(ctx, program, "candidates")
	look.Stdout, look.Stderr, look.Env = &out, &words, g.environ
	err = look.Run()
	said = format.Clean(strings.TrimSpace(strings.TrimPrefix(words.String(), "inferscoped:")))
	if err != nil {
		return nil, "", fmt.Errorf("%s candidates: %w: %s", program, err, said)
	}
	if err := json.Unmarshal(out.Bytes(), &found); err != nil {
		return nil, "", fmt.Errorf("reading what %s candidates says: %w", program, err)
	}
	return found, said, nil
}

// about returns the RunE of a command whose argument may name the target.
func (f *reportFlags) about(do func(cmd *cobra.Command) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := f.takeName(args); err != nil {
			return err
		}
		return do(cmd)
	}
}

// watched connects to the daemon and returns the pid of the target that a command is about. The caller closes the
// client.
func (g *global) watched(ctx context.Context, f *reportFlags) (*api.Client, uint32, error) {
	client, err := g.dial()
	if err != nil {
		return nil, 0, err
	}
	targets, err := client.Targets(ctx)
	var pid uint32
	if err == nil {
		pid, err = choose(targets, f)
	}
	if err != nil {
		client.Close()
		return nil, 0, err
	}
	return client, pid, nil
}

// takeName parses the argument of a command as a pid or a name.
func (f *reportFlags) takeName(args []string) error {
	if len(args) == 0 {
		return nil
	}
	if f.pid != 0 {
		return clierror.New(clierror.Usage, "leave one of them out",
			fmt.Errorf("--pid and %q both name a process", format.Clean(args[0])))
	}
	if n, err := strconv.Atoi(args[0]); err == nil {
		if n < 1 || n > maxPID {
			return clierror.New(clierror.Usage, "a pid is 1 to 4194304", fmt.Errorf("%d is not a process id", n))
		}
		f.pid = n
		return nil
	}
	if args[0] == "" || strings.HasPrefix(args[0], "-") {
		return clierror.New(clierror.Usage,
			"name a pid, a program, a script or a pod; inferscope ps lists them",
			fmt.Errorf("%q names no process", format.Clean(args[0])))
	}
	f.name = args[0]
	return nil
}
