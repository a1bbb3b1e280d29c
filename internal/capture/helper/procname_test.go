package helper

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(child())
	}
	if os.Getenv("PROCNAME_TEST") != "" {
		Unwind.Take()
		_, _ = os.Stdout.WriteString("ready\n")
		_, _ = os.Stdin.Read(make([]byte, 1))
		return
	}
	os.Exit(m.Run())
}

// A process that is this program again has a name of its own, as ps and top show it.
func TestNameOfAProcess(t *testing.T) {
	cmd := exec.Command("/proc/self/exe", "more")
	cmd.Env = append(os.Environ(), "PROCNAME_TEST=1")
	Unwind.Give(cmd)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	defer in.Close()
	if _, err := out.Read(make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	dir := fmt.Sprintf("/proc/%d", cmd.Process.Pid)
	line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
	if string(line) != "inferscope-unwind\x00more\x00" {
		t.Errorf("its command line is %q", line)
	}
	comms, _ := filepath.Glob(filepath.Join(dir, "task/*/comm"))
	for _, f := range comms {
		if comm, err := os.ReadFile(f); err == nil && string(comm) != "iscope-unwind\n" {
			t.Errorf("%s is %q", f, comm)
		}
	}
	if len(comms) == 0 {
		t.Error("it has no threads")
	}
}
