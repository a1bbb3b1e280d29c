// Command inferscoped watches running CUDA processes from outside and keeps a
// recording of the last seconds, which inferscope fetches and reports on.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/cudaapi"
	"github.com/inferscope/inferscope/internal/capture/gpu/inject"
	"github.com/inferscope/inferscope/internal/capture/profile"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/fleet"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/format/manpage"
	"github.com/inferscope/inferscope/internal/format/version"
)

func main() {
	if len(os.Args) > 1 && helpers()[os.Args[1]] != nil {
		if err := helpers()[os.Args[1]](os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "inferscoped:", err)
			os.Exit(int(clierror.General))
		}
		return
	}
	// One thread of Go code is enough for 500,000 events/s, and each tick of a timer
	// costs half of what it costs with two (70 against 150 us on a small VM), since no
	// second thread wakes up to look for work.
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
	raisePriority()
	stops := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		stops = append(stops, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), stops...)
	// The first signal asks to stop; from then on the second one kills, which does no harm either.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, process{
		args: os.Args[1:], environ: os.Environ(), stdout: os.Stdout, stderr: os.Stderr, confine: confined,
	}))
}

// helpers are the helper processes that this program can be started as, by the first argument.
func helpers() map[string]func([]string) error {
	return map[string]func([]string) error{
		profile.HelperArgument: profile.RunHelper, inject.HelperArgument: inject.RunHelper,
		uprobe.LinkHolderArgument: uprobe.RunLinkHolder,
		fleet.HelperArgument:      recorderHelper,
		cudaapi.HelperArgument:    cudaapi.RunHelper,
	}
}

// niceness is set for all threads: on overcommitted CPUs, ring buffers overflow while their reader waits. The CPU use
// of the daemon is bounded, and the unwinder, which can wait, is a separate process of low priority.
const niceness = -10

// raisePriority sets the niceness of the existing threads; new ones inherit it. Without CAP_SYS_NICE the daemon runs at
// normal priority and counts what it loses.
func raisePriority() {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, task := range tasks {
		if tid, err := strconv.Atoi(task.Name()); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, tid, niceness)
		}
	}
}

// process is the environment of a program.
type process struct {
	args           []string
	environ        []string
	stdout, stderr io.Writer
	// confine drops capabilities for the whole process, irrevocably; nil in tests that run the daemon in their own
	// process.
	confine func(*flags) error
}

// run is the whole program; it returns the exit code.
func run(ctx context.Context, p process) int {
	cmd := command(p)
	cmd.SetArgs(p.args)
	cmd.SetOut(p.stdout)
	cmd.SetErr(p.stderr)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return int(clierror.OK)
	}
	if c := code(0); errors.As(err, &c) {
		return int(c)
	}
	fmt.Fprintf(p.stderr, "inferscoped: %v\n", err)
	if hint := clierror.HintOf(err); hint != "" {
		fmt.Fprintln(p.stderr, hint)
	}
	return int(clierror.CodeOf(err))
}

const longHelp = `inferscoped watches running CUDA processes with eBPF, keeps the last minute of
events in memory, and serves it over a unix socket:

    sudo inferscoped                    every process that uses a GPU, when it appears
    sudo inferscoped --pid 1234         one process, with its children
    inferscope report --pid 1234

It needs Linux 5.15 or newer with BTF, and root or the capabilities CAP_BPF,
CAP_PERFMON and CAP_SYS_PTRACE (kernels before 6.6 also CAP_SYS_ADMIN). The
watched processes are never restarted. To record what the GPU does, an agent is
loaded into each process that uses CUDA: one thread of it is stopped twice
at a CUDA call, usually for less than 2 ms in total. The agent records in
windows (200 ms every 2 s) and ends by itself within 2 s after the daemon;
--no-inject loads none, --gpu sets when it records. However the daemon ends, all probes are removed:
a separate process, link-holder, holds them and ends after it.

Settings are taken from flags, then from the environment (INFERSCOPE_ENABLED,
INFERSCOPE_LOG_LEVEL, INFERSCOPE_TRACE_SIZE_MB, INFERSCOPE_CUDA_VERSION,
INFERSCOPE_CPU_SAMPLING_FREQUENCY_HZ, INFERSCOPE_SINGLE_GPU, INFERSCOPE_ALLOW,
INFERSCOPE_DENY), then from .inferscope.yaml in the working directory
(trace_size_mb: 200), then from defaults. INFERSCOPE_SOCKET is the socket.

Exit codes: 0 stopped as asked; 1 other errors; 2 wrong flags or settings; 3 no
such process; 4 a permission is missing; 5 the kernel lacks something; 7 another
daemon serves the socket.`

func command(p process) *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:           "inferscoped [--pid PID ...]",
		Short:         "Watch running CUDA processes from outside",
		Long:          longHelp,
		Version:       versionLine(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return clierror.New(clierror.Usage, "name processes with --pid; see --help",
					fmt.Errorf("%q is not understood", args[0]))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return start(cmd, p, &f) },
	}
	cmd.SetVersionTemplate("{{.Version}}\n")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return clierror.OfFlag("inferscoped --help", err)
	})
	cmd.CompletionOptions.DisableDefaultCmd = true
	f.register(cmd.Flags(), p.environ)
	cmd.AddCommand(candidates(p), examine(p, &f))
	manpage.Add(cmd)
	return cmd
}

func versionLine() string {
	v := version.Get()
	line := "inferscoped " + v.Version
	if v.Revision != "" {
		line += " (" + v.Revision + ")"
	}
	return line + " " + v.Go + " " + v.Platform
}

var errNoTarget = errors.New("no process to watch")
