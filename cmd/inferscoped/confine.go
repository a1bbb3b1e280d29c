package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/inferscope/inferscope/internal/capture/feature"
	"github.com/inferscope/inferscope/internal/daemon/confine"
)

// needed lists the capabilities of all parts of the daemon; docs/gpu-agent.md lists them by part.
var needed = []cap.Value{
	cap.BPF, cap.PERFMON, cap.SYS_PTRACE, cap.DAC_READ_SEARCH, cap.CHECKPOINT_RESTORE,
	cap.SYS_NICE, // real-time priority while a thread of the target is stopped
	cap.SYSLOG,   // addresses in /proc/kallsyms where kptr_restrict is 1
}

// confined drops the capabilities and system calls that this daemon does not need, before it attaches to anything.
func confined(f *flags) error {
	if err := errors.Join(confine.Capabilities(kept(f)...), confine.Syscalls()); err != nil {
		return fmt.Errorf("giving up what the daemon does not need: %w", err)
	}
	return nil
}

// kept returns the capabilities that a daemon with these flags keeps, if it has them.
func kept(f *flags) []cap.Value {
	keep := slices.Clone(needed)
	if perfOnly(f.probeMode) {
		keep = append(keep, cap.SYS_ADMIN)
	}
	if _, port, err := net.SplitHostPort(f.metricsAddr); err == nil {
		if n, err := strconv.Atoi(port); err == nil && n > 0 && n < 1024 {
			keep = append(keep, cap.NET_BIND_SERVICE)
		}
	}
	if foreign(f.socket) || foreign(f.record.dir) {
		keep = append(keep, cap.DAC_OVERRIDE)
	}
	return keep
}

// perfOnly reports whether probes are attached only by perf events, which takes CAP_SYS_ADMIN: by a flag, or on a
// kernel before 6.6.
func perfOnly(mode string) bool {
	if mode == "perf" {
		return true
	}
	host := feature.Prober{}.Detect()
	return host.Of(feature.UprobeMulti).Answer == feature.No
}

// foreign reports whether a file is to be created in another user's folder.
func foreign(path string) bool {
	if path == "" {
		return false
	}
	for {
		var st unix.Stat_t
		switch err := unix.Stat(path, &st); {
		case err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR:
			return st.Uid != uint32(os.Geteuid()) && st.Mode&0o2 == 0
		case path == filepath.Dir(path):
			return false
		}
		path = filepath.Dir(path)
	}
}

// recorderConfined confines the process that stores and uploads recordings: it inspects no other process and writes to
// one folder.
func recorderConfined(dir string) error {
	keep := []cap.Value{}
	if foreign(dir) {
		keep = append(keep, cap.DAC_OVERRIDE)
	}
	return errors.Join(confine.Capabilities(keep...), confine.Syscalls(), confine.Files(dir, os.TempDir()))
}
