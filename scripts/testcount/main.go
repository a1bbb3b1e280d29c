// Command testcount runs a command that writes what `go test -json` writes, shows
// what a person wants of it, and ends with one line: N passed, N failed, N skipped.
//
//	testcount [-steps FILE] [-forbid-skips "needs root,..."] [-rerun N] go test -json ./...
//
// A test with subtests counts as its subtests. A package that fails without a failing test (it does not compile, it
// panics, it times out) counts as one failure, and so does a command that fails without one. FILE adds checks that are
// no Go tests, one a line: "pass NAME", "fail NAME" or "skip NAME: why". Skips whose reason contains a forbidden phrase
// are failures: where everything is there to run a test, not running it is one. With -rerun, a few tests that failed
// are run again, alone; one that passes N times counts as passed and is listed as unsteady. A crash, a data race or
// harm to a watched process stays a failure.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

func main() {
	err := run(os.Args[1:], os.Stdout)
	if err != nil && !errors.Is(err, errFailed) { // the counts are the last line
		fmt.Fprintln(os.Stderr, "testcount:", err)
	}
	if err != nil {
		os.Exit(1)
	}
}

// errFailed is returned where anything failed; the counts line has said so already.
var errFailed = errors.New("there are failures")

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("testcount", flag.ContinueOnError)
	steps := flags.String("steps", "", "file with the results of other checks")
	forbid := flags.String("forbid-skips", "", "comma-separated phrases: a skip for such a reason is a failure")
	again := flags.Int("rerun", 0, "how often a failed test must pass when it is run again; 0: it stays failed")
	if err := flags.Parse(args); err != nil {
		return err
	}
	t := newTally(out, *forbid)
	if err := addSteps(t, *steps); err != nil {
		return err
	}
	if err := follow(t, flags.Args()); err != nil {
		return err
	}
	t.rerun(*again, out)
	t.summary()
	if t.failed > 0 {
		return errFailed
	}
	return nil
}

// follow runs command and counts what it writes; no command is nothing to count.
func follow(t *tally, command []string) error {
	if len(command) == 0 {
		return nil
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("making a pipe: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the tests: %w", err)
	}
	before := t.failed
	if err := t.read(stdout); err != nil {
		return fmt.Errorf("reading test events: %w", err)
	}
	if err := cmd.Wait(); err != nil && t.failed == before {
		return t.count("fail", strings.Join(command, " ")+" ("+err.Error()+")", "")
	}
	return nil
}

// addSteps counts the checks in the file at path; no path means no checks.
func addSteps(t *tally, path string) error {
	if path == "" {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("opening the results of other checks: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		result, name, _ := strings.Cut(lines.Text(), " ")
		name, reason, _ := strings.Cut(name, ": ")
		if err := t.count(result, name, reason); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return lines.Err()
}
