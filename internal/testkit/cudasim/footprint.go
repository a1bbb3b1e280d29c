package cudasim

import (
	"fmt"
	"os"
	"strings"
)

// Footprint is what a process holds.
type Footprint struct {
	FDs, Maps, Threads int
	RSS                int // resident, KiB
}

// Footprint returns what the victim holds now.
func (v *Victim) Footprint() Footprint {
	v.tb.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", v.PID))
	if err != nil {
		v.tb.Fatalf("cudasim: the victim is gone: %v", err)
	}
	f := Footprint{FDs: len(fds), Maps: strings.Count(v.proc("maps"), "\n")}
	for line := range strings.Lines(v.proc("status")) {
		_, _ = fmt.Sscanf(line, "Threads: %d", &f.Threads)
		_, _ = fmt.Sscanf(line, "VmRSS: %d", &f.RSS)
	}
	return f
}

func (v *Victim) proc(name string) string {
	v.tb.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", v.PID, name))
	if err != nil {
		v.tb.Fatalf("cudasim: the victim is gone: %v", err)
	}
	return string(text)
}

// Grew reports whether there is more of something than there was n attachments ago, by more than chance has it: new
// threads now and then get an arena of malloc's of their own, two mappings, of which there are at most 8 for each CPU.
func (f Footprint) Grew(from Footprint, n int) bool {
	return f.FDs > from.FDs || f.Threads > from.Threads || f.Maps > from.Maps+8+n/50 || f.RSS > from.RSS+4096
}
