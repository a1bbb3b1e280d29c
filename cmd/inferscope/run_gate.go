package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// gateArgument starts this program as a gate: it waits for a byte on descriptor gateFD and then executes the program,
// so that the process can be watched before its first instruction.
const (
	gateArgument = "__gate"
	gateFD       = 3 // the first of exec.Cmd.ExtraFiles
)

// gate is the main function of such a process; args are the path of the program and its arguments, including argv[0].
// It returns an exit code only if the program cannot be executed.
func gate(args []string, environ []string) int {
	if len(args) < 2 {
		return notRunnable
	}
	pipe := os.NewFile(gateFD, "gate")
	var one [1]byte
	n, _ := pipe.Read(one[:])
	_ = pipe.Close()
	if n != 1 { // whoever was to watch is gone, or does not want to
		return notRunnable
	}
	err := unix.Exec(args[0], args[1:], environ)
	fmt.Fprintf(os.Stderr, "inferscope: running %s: %v\n", args[0], err)
	if errors.Is(err, unix.ENOENT) {
		return notFound
	}
	return notRunnable
}

// gated is a program that waits at its gate or has passed it.
type gated struct {
	cmd  *exec.Cmd
	open *os.File // the other end of the gate's pipe
	pid  uint32
}

// startGated starts a process that waits at its gate, as another user if as is not nil.
func startGated(path string, args, environ []string, as *account) (*gated, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	in, out, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("making a pipe: %w", err)
	}
	all := append([]string{gateArgument, path}, args...)
	cmd := exec.Command(self, all...) //nolint:noctx // it ends when it likes to
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env, cmd.ExtraFiles = environ, []*os.File{in}
	if as != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &as.credential}
	}
	err = cmd.Start()
	_ = in.Close()
	if err != nil {
		_ = out.Close()
		return nil, fmt.Errorf("starting %s: %w", args[0], err)
	}
	return &gated{cmd: cmd, open: out, pid: uint32(cmd.Process.Pid)}, nil
}

// pass executes the program.
func (p *gated) pass() error {
	_, err := p.open.Write([]byte{1})
	return errors.Join(err, p.open.Close())
}

// abandon ends a program that was not executed.
func (p *gated) abandon() {
	_ = p.open.Close()
	_ = p.cmd.Wait()
}

// wait returns how the program ended, as wait(2) does. Signals that inferscope receives are forwarded, except those
// that the terminal also sent to the program.
func (p *gated) wait() unix.WaitStatus {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2)
	defer signal.Stop(signals)
	ended := make(chan unix.WaitStatus, 1)
	go func() {
		_ = p.cmd.Wait()
		status, _ := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
		ended <- unix.WaitStatus(status)
	}()
	for {
		select {
		case status := <-ended:
			return status
		case s := <-signals:
			if (s == unix.SIGINT || s == unix.SIGQUIT) && inForeground() {
				continue
			}
			_ = p.cmd.Process.Signal(s)
		}
	}
}

// inForeground reports whether this process group receives the signals of the terminal's keys.
func inForeground() bool {
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
