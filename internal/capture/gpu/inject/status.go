package inject

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/inferscope/inferscope/internal/capture/procfile"
)

// status is what is used of /proc/PID/task/TID/status.
type status struct {
	tgid     uint32
	tracer   uint32   // 0: nobody
	state    byte     // R, S, D, T, t, Z, X
	blocked  uint64   // signal n is bit n-1
	caught   uint64   // have a handler
	seccomp  int      // 0 off, 1 strict, 2 filters
	nspids   []uint32 // of the process, the outermost pid namespace first
	nstids   []uint32 // of the thread, likewise
	features string   // x86_Thread_features
}

// readStatus reads the status of one thread.
func readStatus(pid, tid int) (status, error) {
	text, err := procfile.ReadStatus(fmt.Sprintf("/proc/%d/task/%d/status", pid, tid))
	if err != nil {
		return status{}, err
	}
	return parseStatus(text), nil
}

func parseStatus(text procfile.Status) status {
	var s status
	for key, value := range text.Lines() {
		s.take(string(key), string(value))
	}
	return s
}

func (s *status) take(key, value string) {
	switch key {
	case "State":
		if value != "" {
			s.state = value[0]
		}
	case "Tgid":
		s.tgid = number(value)
	case "TracerPid":
		s.tracer = number(value)
	case "Seccomp":
		s.seccomp = int(number(value))
	case "SigBlk":
		s.blocked = mask(value)
	case "SigCgt":
		s.caught = mask(value)
	case "NStgid":
		s.nspids = numbers(value)
	case "NSpid":
		s.nstids = numbers(value)
	case "x86_Thread_features":
		s.features = value
	}
}

func numbers(fields string) []uint32 {
	var all []uint32
	for field := range strings.FieldsSeq(fields) {
		all = append(all, number(field))
	}
	return all
}

func number(digits string) uint32 {
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}

// mask reads a signal set; one that cannot be read is full, so that nothing is sent.
func mask(hex string) uint64 {
	n, err := strconv.ParseUint(hex, 16, 64)
	if err != nil {
		return ^uint64(0)
	}
	return n
}

// comm returns the name of a process, for people.
func comm(pid uint32) string {
	name, err := procfile.Comm(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return "unknown"
	}
	return name
}
