//go:build amd64 || arm64

package inject

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/procfile"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// What the test binary does in the environment of TestKilled: it brings the image in, and
// dies at a step, or whenever it is killed.
const (
	envPID  = "INFERSCOPE_TEST_INJECT_PID"
	envStep = "INFERSCOPE_TEST_DIE_AT"
)

func TestMain(m *testing.M) {
	be := map[string]func([]string) error{HelperArgument: RunHelper, uprobe.LinkHolderArgument: uprobe.RunLinkHolder}
	if len(os.Args) == 2 && be[os.Args[1]] != nil {
		if err := be[os.Args[1]](nil); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if pid := os.Getenv(envPID); pid != "" {
		fmt.Println(injectAndDie(pid, os.Getenv(envStep)))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func injectAndDie(pid, step string) error {
	n, err := strconv.Atoi(pid)
	if err != nil {
		return err
	}
	p, err := proc.Describe(n)
	if err != nil {
		return err
	}
	in, err := New(Options{})
	if err != nil {
		return err
	}
	seen := map[string]int{}
	in.step = func(name string) {
		if seen[name]++; seen[name] > 1 {
			name = fmt.Sprint(seen[name], " ", name)
		}
		if name == step {
			_ = unix.Kill(unix.Getpid(), unix.SIGKILL)
			select {}
		}
		if name == "seized" {
			fmt.Println("begins")
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_, err = in.Load(ctx, p, testImage(&testing.B{}))
	return err
}

// startHelper starts the test binary as one that injects.
func startHelper(t *testing.T, v *victim, step string) (*exec.Cmd, <-chan struct{}) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envPID+"="+fmt.Sprint(v.process.PID), envStep+"="+step)
	begins, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	cmd.Stdout, cmd.Stderr = w, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	started, ended := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { <-ended })
	go func() {
		defer close(ended)
		defer begins.Close()
		b := make([]byte, 512)
		_, _ = begins.Read(b) // its end is as good as its beginning
		close(started)
		for {
			n, err := begins.Read(b)
			if err != nil {
				return
			}
			t.Logf("the helper says: %s", b[:n]) // only one that was not killed does
		}
	}()
	return cmd, started
}

// SIGKILL at every step: the target goes on, with everything as it was.
func TestKilledAtEachStep(t *testing.T) {
	needRoot(t)
	steps := []string{
		"armed", "seized", "signalled", "halted", "stopped", "frame written", "registers set",
		"signals blocked", "let go", "file made", "file filled", "2 signalled", "2 stopped", "2 frame written",
		"2 registers set", "2 signals blocked", "2 let go",
	}
	rounds := 3
	if testing.Short() || os.Getenv("INFERSCOPE_TEST_SLOW") != "" { // an emulated processor
		rounds = 1
	}
	in, im := newInjector(t), testImage(t)
	for _, args := range [][]string{{"--threads", "3", "--alt", "--handle", "23"}, {"--children"}} {
		v, left := start(t, args...), 0
		threads := v.tids()
		for _, step := range steps {
			for range rounds {
				cmd, _ := startHelper(t, v, step)
				if err := cmd.Wait(); !isExit(err) {
					t.Errorf("%s: the helper was not killed: %v", step, err)
				}
				v.unharmed()
				v.returned(threads)
				left += len(v.ours())
				load(t, in, v, im) // it still works, and uses up what was left
				v.closed(fmt.Sprintf("killed at %q, and loaded into once more", step))
			}
			t.Logf("%v: killed at %q, unharmed", args, step)
		}
		if left == 0 {
			t.Errorf("%v: no file of ours was ever left open", args)
		}
		v.unharmed()
		v.finish()
	}
}

// SIGKILL at random instants of the part that touches the target.
func TestKilledAnytime(t *testing.T) {
	needRoot(t)
	needs.Long(t)
	n := 160
	if s := os.Getenv("INFERSCOPE_TEST_KILLS"); s != "" {
		n, _ = strconv.Atoi(s)
	}
	v := start(t, "--threads", "2", "--alt", "--children", "--handle", "23", "--pause", "50")
	for range n {
		cmd, started := startHelper(t, v, "")
		<-started
		time.Sleep(time.Duration(rand.Int64N(int64(1500 * time.Microsecond))))
		_ = cmd.Process.Kill() // it may be done
		_ = cmd.Wait()
		v.unharmed()
	}
	t.Logf("%d kills: %d copies mapped, %d files of ours are left open", n, v.copies(), len(v.ours()))
	load(t, newInjector(t), v, testImage(t))
	v.unharmed()
	v.finish()
}

// closed waits until no file of ours is open: an image answers before it closes its own.
func (v *victim) closed(what string) {
	v.tb.Helper()
	for deadline := time.Now().Add(10 * time.Second); len(v.ours()) != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			v.tb.Fatalf("%s, it has files of ours open: %v", what, v.ours())
		}
	}
}

func (v *victim) ours() []procfile.Memfd {
	v.tb.Helper()
	open, err := procfile.Descriptors(v.process.PID, fileName)
	if err != nil {
		v.tb.Fatal(err)
	}
	return open
}
