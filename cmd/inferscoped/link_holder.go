package main

import (
	"errors"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/format/clierror"
)

// linkHolder starts the process that holds the probe links and ends with the daemon. The daemon needs it: if it were
// killed, its probes would stay in the targets.
func linkHolder(logger *zap.Logger, command string) (*uprobe.LinkHolder, error) {
	k, err := uprobe.StartLinkHolder([]string{command})
	if err != nil {
		return nil, linkHolderFault(err)
	}
	go func() {
		<-k.Gone()
		logger.Error("no CUDA call is seen any more, and no window of GPU activity opens: restart the daemon",
			zap.Error(k.Err()))
	}()
	return k, nil
}

// linkHolderFault adds a hint to the error of a link holder that could not be started.
func linkHolderFault(err error) error {
	advice := func(code clierror.Code, hint string) error { return clierror.New(code, hint, err) }
	switch {
	case errors.Is(err, unix.EAGAIN):
		return advice(
			clierror.General,
			"the daemon may have no more processes: raise the limit of its control group (pids.max, TasksMax of the systemd unit, the container's pids limit) or user (ulimit -u)",
		)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return advice(
			clierror.Permission,
			"let the daemon start its own program: put inferscoped on a file system that is not mounted noexec, and see whether a seccomp, AppArmor or SELinux policy forbids it",
		)
	case errors.Is(err, unix.ENOENT):
		return advice(clierror.General,
			"mount /proc where the daemon runs: it starts its own program as /proc/self/exe")
	case errors.Is(err, unix.ENOMEM):
		return advice(
			clierror.General,
			"give the daemon more memory: its machine or control group has none left for another process of it",
		)
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return advice(clierror.General, "let the daemon open more files (ulimit -n, LimitNOFILE of the systemd unit)")
	}
	return advice(
		clierror.General,
		"the daemon cannot start its own program once more: see the machine's log (journalctl -k), and report it",
	)
}
