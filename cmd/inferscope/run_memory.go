package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// oomKills returns how many processes the kernel has killed for want of memory in our cgroup, where the program is,
// too: of version 2, else of version 1; of the whole machine where we are in the uppermost one. 0 where that is not
// known.
func oomKills() uint64 {
	for _, path := range oomCounters("/proc/self/cgroup", "/sys/fs/cgroup") {
		if n, ok := oomKillsOf(path); ok {
			return n
		}
	}
	return 0
}

// oomCounters returns the files that may have the count, the narrowest first: cgroups(7), and of the kernel's
// documentation admin-guide/cgroup-v2 (memory.events) and cgroup-v1/memory (memory.oom_control); proc_vmstat(5).
func oomCounters(self, root string) []string {
	text, err := os.ReadFile(self)
	if err != nil {
		return nil
	}
	var out []string
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(fields) < 3:
		case fields[0] == "0" && fields[1] == "":
			out = append(out, filepath.Join(root, fields[2], "memory.events"))
		case fields[1] == "memory":
			out = append(out, filepath.Join(root, "memory", fields[2], "memory.oom_control"))
		}
	}
	return append(out, "/proc/vmstat")
}

// oomKillsOf reads the line "oom_kill N", which all of these have.
func oomKillsOf(path string) (n uint64, ok bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "oom_kill %d", &n); err == nil {
			return n, true
		}
	}
	return 0, false
}
