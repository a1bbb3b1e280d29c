package procfile

import (
	"bytes"
	"iter"
	"os"
	"strconv"
	"strings"
)

// Status is the text of /proc/PID/status or /proc/PID/task/TID/status. A comm cannot forge a line: the kernel escapes
// newlines.
type Status []byte

// maxStatus bounds it: a process may be in 65,536 groups of 11 bytes.
const maxStatus = 1 << 20

// ReadStatus reads a status file.
func ReadStatus(path string) (Status, error) { return Head(path, maxStatus) }

// Lines yields the name and the value of each line.
func (s Status) Lines() iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		for line := range bytes.Lines(s) {
			name, value, ok := bytes.Cut(line, []byte(":"))
			if ok && !yield(name, bytes.TrimSpace(value)) {
				return
			}
		}
	}
}

// Field returns the value of the line of a name; empty where there is none.
func (s Status) Field(name string) string {
	for key, value := range s.Lines() {
		if string(key) == name {
			return string(value)
		}
	}
	return ""
}

// maxComm bounds a comm: it has 15 bytes, those of kernel threads 63.
const maxComm = 64

// Comm returns the text of a comm file, for people: a thread may call itself anything.
func Comm(path string) (string, error) {
	text, err := Head(path, maxComm)
	return strings.ToValidUTF8(strings.TrimSuffix(string(text), "\n"), "?"), err
}

// Memory is what /proc/PID/statm says (proc_pid_statm(5)), in bytes.
type Memory struct {
	Resident int64
	Shared   int64 // of them: files, and what is shared
}

// ParseStatm reads the text of /proc/PID/statm.
func ParseStatm(text []byte) (m Memory, ok bool) {
	fields := bytes.Fields(text)
	if len(fields) < 3 {
		return m, false
	}
	page := int64(os.Getpagesize())
	resident, err := strconv.ParseInt(string(fields[1]), 10, 48)
	shared, err2 := strconv.ParseInt(string(fields[2]), 10, 48)
	return Memory{resident * page, shared * page}, err == nil && err2 == nil
}
