package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"

	"github.com/spf13/cobra"
)

const doctorHelp = `doctor checks what this machine, and with --pid a process, allow InferScope to do: kernel, rights,
the GPU's driver and CUPTI. For each thing that is missing, it prints what is lost without it and how to get it. It
needs no daemon and changes nothing; inferscoped, which does the checks, must be installed.

    sudo inferscope doctor
    sudo inferscope doctor --pid 1234

Exit codes: 0 it works here, maybe with limits; 3 no such process; 4 a permission is
missing; 5 the kernel lacks something.`

func doctorCommand(g *global) *cobra.Command {
	var f reportFlags
	cmd := &cobra.Command{
		Use:   "doctor [--pid PID]",
		Short: "Check what works on this machine and how to fix the rest",
		Long:  doctorHelp,
		Args:  noArguments,
		RunE:  func(cmd *cobra.Command, _ []string) error { return g.doctor(cmd, &f) },
	}
	cmd.Flags().IntVar(&f.pid, "pid", 0, "also check this process")
	jsonFlag(cmd, &f.asJSON)
	return cmd
}

// doctor runs inferscoped doctor: the daemon is the program that needs what is checked.
func (g *global) doctor(cmd *cobra.Command, f *reportFlags) error {
	if err := f.check(cmd); err != nil {
		return err
	}
	path, err := daemonProgram()
	if err != nil {
		return err
	}
	args := []string{"doctor", "--socket", g.socket}
	if f.pid != 0 {
		args = append(args, "--pid", strconv.Itoa(f.pid))
	}
	if f.asJSON {
		args = append(args, "--json")
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(g.stderr,
			"inferscope: these are your own permissions; sudo inferscope doctor shows those of the daemon")
	}
	look := exec.CommandContext(cmd.Context(), path, args...)
	look.Stdin, look.Stdout, look.Stderr, look.Env = os.Stdin, g.stdout, g.stderr, g.environ
	err = look.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() > 0 {
		return exitCode(exit.ExitCode())
	}
	if err != nil {
		return fmt.Errorf("running %s: %w", path, err)
	}
	return nil
}
