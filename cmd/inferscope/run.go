package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/daemon/config"
	"github.com/inferscope/inferscope/internal/format/clierror"
)

const runHelp = `run starts a program, watches it from its first instruction to its end, and writes a
report of it, ./report.md by default:

    inferscope run python infer.py --batch-size 32
    inferscope run --report r.html --format html -- python infer.py --report x

What follows the program's name is the program's; only "--report FILE" as the very last
arguments, where no -- stands before the program, is taken as inferscope's own.

With a daemon (sudo inferscoped --on-request) the users in its --allow-users (default: the
group inferscope) may run their programs; without one, root gets a temporary daemon.
Ctrl-C reaches the program as usual, and a program that crashes, is killed or interrupted
is reported, too. Its exit code is returned, 128 + signal if a signal ended it. If the
report cannot be written, the recording is kept and its path printed.

sudo inferscope run runs the program as root, as sudo does with every program; with
--user NAME it runs as NAME, with NAME's home and groups, and the report is NAME's.

INFERSCOPE_ENABLED=0 runs the program untouched.

Other exit codes: 1 the program succeeded and the report failed; 2 wrong flags or
settings; 4, 6 it cannot be watched and was not started; 126 it cannot be run; 127 it was
not found.`

// Exit codes of programs that start another program, as in shells and env(1).
const (
	notRunnable = 126
	notFound    = 127
)

// exitCode is an error that ends inferscope with the exit code of the program, without a message.
type exitCode int

// Error implements error, for logs.
func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// runFlags are the flags of run as they were typed.
type runFlags struct {
	report   string
	format   string
	gpu      string
	noInject bool
	cupti    string
	traceMB  string
	sampleHz string
	user     string
}

func runCommand(g *global) *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] [--] PROGRAM [ARGUMENT...]",
		Short: "Start a program, watch it from its first instruction, and report on it",
		Long:  runHelp,
		RunE:  func(cmd *cobra.Command, args []string) error { return g.run(cmd, &f, args) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.SetInterspersed(false) // what follows the program is the program's
	flags.StringVarP(&f.report, "report", "o", "", "file to write, also INFERSCOPE_REPORT_PATH (default ./report.md)")
	flags.StringVarP(&f.format, "format", "f", "",
		"its format, also INFERSCOPE_REPORT_FORMAT (default: from the extension of the file, else markdown)")
	flags.StringVar(&f.user, "user", "", "with sudo: the user whom the program runs as, instead of root")
	flags.StringVar(&f.gpu, "gpu", "",
		"when GPU activity is recorded, where run starts the daemon: windows, continuous or off")
	complete(cmd, "gpu", "windows", "continuous", "off")
	flags.StringVar(&f.cupti, "cupti", "", "path of libcupti as the program sees it, if it maps none")
	flags.BoolVar(
		&f.noInject,
		"no-inject",
		false,
		"load no agent: no GPU activity, launches by probes; a running daemon must have been started with --no-inject",
	)
	flags.StringVar(&f.traceMB, "trace-size-mb", "", "memory for recorded events in MB, likewise")
	flags.StringVar(&f.sampleHz, "cpu-sampling-frequency-hz", "", "stacks a second of each running thread, likewise")
	return cmd
}

// run starts a program and watches it. Errors in flags, settings and the daemon are reported before it starts.
func (g *global) run(cmd *cobra.Command, f *runFlags, args []string) error {
	args = g.trailing(cmd, f, args)
	settings, err := g.settings(f.typed())
	if err != nil {
		return err
	}
	path, err := program(args)
	if err != nil {
		return err
	}
	if !settings.Enabled {
		return g.untouched(path, args)
	}
	g.apply(&settings)
	out, err := g.place(f, settings)
	if err != nil {
		return err
	}
	if err := oneGPU(settings, g.environ); err != nil {
		return err
	}
	as, err := g.account(f.user)
	if err != nil {
		return err
	}
	// PR_SET_PDEATHSIG of a temporary daemon refers to this thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return g.supervise(context.WithoutCancel(cmd.Context()),
		&job{path: path, args: args, out: out, flags: f, as: as})
}

// typed returns the settings that were given as flags, by key.
func (f *runFlags) typed() map[string]string {
	out := map[string]string{}
	for key, value := range map[string]string{
		"report_path": f.report, "trace_size_mb": f.traceMB, "cpu_sampling_frequency_hz": f.sampleHz,
	} {
		if value != "" {
			out[key] = value
		}
	}
	return out
}

// trailing takes a --report at the very end of the command line as a flag of inferscope, with a message, unless --
// precedes the program.
func (g *global) trailing(cmd *cobra.Command, f *runFlags, args []string) []string {
	n := len(args)
	if cmd.ArgsLenAtDash() >= 0 || f.report != "" || n < 2 {
		return args
	}
	if value, ok := strings.CutPrefix(args[n-1], "--report="); ok && value != "" {
		f.report, args = value, args[:n-1]
	} else if n > 2 && args[n-2] == "--report" {
		f.report, args = args[n-1], args[:n-2]
	} else {
		return args
	}
	fmt.Fprintf(
		g.stderr,
		"inferscope: --report at the end is taken as inferscope's; write `inferscope run -- %s ...` if it belongs to "+
			"the program\n",
		args[0],
	)
	return args
}

// program finds the program to run.
func program(args []string) (path string, err error) {
	if len(args) == 0 {
		return "", clierror.New(clierror.Usage, "inferscope run python infer.py", errors.New("run: name a program"))
	}
	path, err = exec.LookPath(args[0])
	switch {
	case err == nil || errors.Is(err, exec.ErrDot): // as execvp(3) does
		return path, nil
	case errors.Is(err, os.ErrPermission):
		return "", clierror.New(notRunnable, "make it executable, or name its interpreter",
			fmt.Errorf("running %s: %w", args[0], err))
	}
	return "", clierror.New(notFound, "check its name and the PATH", fmt.Errorf("running %s: %w", args[0], err))
}

// untouched replaces this process by the program.
func (g *global) untouched(path string, args []string) error {
	fmt.Fprintf(
		g.stderr,
		"inferscope: switched off by INFERSCOPE_ENABLED=0 (or enabled: false in %s): %s runs untouched, nothing is recorded, and there will be no report\n",
		config.FileName,
		args[0],
	)
	err := unix.Exec(path, args, g.environ)
	return clierror.New(notRunnable, "check that it is a program of this machine",
		fmt.Errorf("running %s: %w", path, err))
}
