package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/symname"
	"github.com/inferscope/inferscope/internal/recording/dump"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// forward is a function as g++ names it: void model::forward<float>(float, int).
const forward = "_ZN5model7forwardIfEEvT_i"

// waiting is a program that says that it is there, and waits in that function.
const waiting = `
#include <unistd.h>
void wait_here(void) __asm__("` + forward + `");
__attribute__((noinline)) void wait_here(void) { write(1, "!", 1); for (;;) pause(); }
int main(void) { wait_here(); return 0; }
`

// TestWholeNames: what the flag says is what stacks say.
func TestWholeNames(t *testing.T) {
	needs.Root(t, "it loads BPF programs")
	pid := startWaiting(t)
	for _, whole := range []bool{false, true} {
		args := []string{
			"--pid",
			strconv.Itoa(pid),
			"--socket",
			filepath.Join(t.TempDir(), "s.sock"),
			"--log-format",
			"json",
		}
		if whole {
			args = append(args, "--whole-names")
		}
		want, other := symname.Demangle(forward, whole), symname.Demangle(forward, !whole)
		if want == other || want == forward {
			t.Fatalf("%q and %q", want, other)
		}
		if got := namesIn(t, dumpBy(t, args, pid)); !slices.Contains(got, want) || slices.Contains(got, other) {
			t.Errorf("whole names %v: %q, want %q", whole, got, want)
		}
	}
}

// startWaiting starts the program, and returns when it waits.
func startWaiting(t *testing.T) int {
	t.Helper()
	needs.Tool(t, "cc")
	path := filepath.Join(t.TempDir(), "waiting")
	must.NoError(t, os.WriteFile(path+".c", []byte(waiting), 0o600))
	must.Run(t, exec.CommandContext(t.Context(), "cc", "-O1", "-Wno-unused-result", "-o", path, path+".c"))
	cmd := exec.CommandContext(t.Context(), path)
	says, err := cmd.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := io.ReadFull(says, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

// dumpBy asks a daemon with these arguments for the stacks of a process.
func dumpBy(t *testing.T, args []string, pid int) *dump.Dump {
	t.Helper()
	var log lines
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, process{args: args, stdout: io.Discard, stderr: &log}) }()
	defer func() { cancel(); <-ended }()
	for !strings.Contains(log.String(), `"msg":"ready"`) {
		select {
		case code := <-ended:
			ended <- code
			t.Fatalf("ended with %d before it was ready: %s", code, log.String())
		case <-time.After(time.Millisecond):
		}
	}
	client, err := api.Dial(args[3])
	must.NoError(t, err)
	d, err := client.Dump(ctx, uint32(pid), false)
	must.NoError(t, err)
	return d
}

// namesIn are the functions in which a dump found threads.
func namesIn(t *testing.T, d *dump.Dump) []string {
	t.Helper()
	var out []string
	for _, p := range d.Processes {
		for _, th := range p.Threads {
			for _, f := range th.Frames {
				out = append(out, f.Name)
			}
		}
	}
	return out
}
