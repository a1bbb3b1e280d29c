package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// oomKills returns the number of OOM kills in the cgroup of this process and the program (version 2, else version 1),
// or of the whole machine in the root cgroup. It returns 0 if that is unknown.
func oomKills() uint64 {
	for _, path := range oomCounters("/proc/self/cgroup", "/sys/fs/cgroup") {
		if n, ok := oomKillsOf(path); ok {
			return n
		}
	}
	return 0
}

// oomCounters returns the files that may have the count, the most specific first: cgroups(7), and of the kernel's
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

// oomKillsOf parses the line "oom_kill N", which all of these files have.
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
