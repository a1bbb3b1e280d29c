package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/doctor"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/daemon/config"
	"github.com/inferscope/inferscope/internal/format/clierror"
)

const doctorHelp = `doctor says what of this machine InferScope can use, and of one process with --pid: for each
thing that is not there, what is lost without it and how to get it. It changes nothing.

Exit codes: 0 it works here, maybe with limits; 3 no such process; 4 a permission is
missing; 5 the kernel lacks something.`

// examine runs the doctor command.
func examine(p process, f *flags) *cobra.Command {
	var pid int
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor [--pid PID]",
		Short: "Check what works on this machine and how to fix the rest",
		Long:  doctorHelp,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o := doctor.Options{PID: pid}
			if client, err := api.Dial(f.socket); err == nil {
				if s, err := client.Status(cmd.Context()); err == nil {
					o.Agents = s.Agents
				}
				client.Close()
			}
			d, err := doctor.Examine(o)
			if err != nil && d.Works {
				d.Fail(err)
			}
			return p.tell(d, asJSON)
		},
	}
	cmd.Flags().StringVar(&f.socket, "socket", f.socket, "unix socket of the daemon, which is asked if it runs")
	cmd.Flags().IntVar(&pid, "pid", 0, "also check this process")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON to standard output")
	return cmd
}

// code is an error that ends this program with an exit code, without a message.
type code clierror.Code

// Error implements error, for logs.
func (c code) Error() string { return "exit code " + strconv.Itoa(int(c)) }

func (p process) tell(d *doctor.Diagnosis, asJSON bool) error {
	var err error
	if asJSON {
		e := json.NewEncoder(p.stdout)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		err = e.Encode(d)
	} else {
		width, color := p.screen()
		err = doctor.Text(p.stdout, d, width, color)
	}
	if err != nil {
		return fmt.Errorf("writing to standard output: %w", err)
	}
	if d.ExitCode != 0 {
		return code(d.ExitCode)
	}
	return nil
}

// screen returns the width of the terminal (0: none) and whether to use colour (no-color.org).
func (p process) screen() (width int, color bool) {
	f, ok := p.stdout.(*os.File)
	if !ok {
		return 0, false
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, false
	}
	env := config.Environment(p.environ)
	noColor, _ := env.Get("NO_COLOR")
	term, _ := env.Get("TERM")
	return int(size.Col), noColor == "" && term != "dumb"
}
