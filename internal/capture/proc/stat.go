package proc

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/inferscope/inferscope/internal/capture/procfile"
)

// stat is what is used of /proc/PID/stat.
type stat struct {
	comm   string
	state  byte // R, S, D, Z, ...
	parent uint32
	flags  uint64 // PF_* of include/linux/sched.h
	start  uint64 // clock ticks since boot
}

// pfKthread marks kernel threads in stat.flags (include/linux/sched.h, unchanged since 2.6.27).
const pfKthread = 0x00200000

// maxStat bounds a read of /proc/PID/stat: 52 numbers of at most 20 digits and a comm.
const maxStat = 2048

// parseStat reads /proc/PID/stat. The comm is the process's own choice: it may
// hold parentheses, spaces and newlines, so it ends at the last parenthesis.
func parseStat(line []byte) (stat, error) {
	open, end := bytes.IndexByte(line, '('), bytes.LastIndexByte(line, ')')
	if open < 0 || end < open {
		return stat{}, errors.New("stat without a comm in parentheses")
	}
	// fields[0] is field 3 of proc(5), the state.
	fields := procfile.StatFields(line)
	if len(fields) < 20 || len(fields[0]) != 1 {
		return stat{}, fmt.Errorf("stat with %d fields after the comm, want at least 20", len(fields))
	}
	parent, err := strconv.ParseUint(string(fields[1]), 10, 32)
	if err != nil {
		return stat{}, fmt.Errorf("stat, parent: %w", err)
	}
	flags, err := strconv.ParseUint(string(fields[6]), 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("stat, flags: %w", err)
	}
	start, err := strconv.ParseUint(string(fields[19]), 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("stat, start time: %w", err)
	}
	comm := strings.ToValidUTF8(string(line[open+1:end]), "?")
	return stat{comm, fields[0][0], uint32(parent), flags, start}, nil
}

// status is what is used of /proc/PID/status.
type status struct {
	tgid  uint32
	uid   uint32 // real
	mixed bool   // its ids are not all of one user and one group
	caps  bool   // it has capabilities, of its user namespace
	nspid uint32 // in the innermost pid namespace
	exec  uint64 // KiB mapped executable: VmExe + VmLib
	alive bool   // it has memory: VmSize
}

func parseStatus(text procfile.Status) status {
	var s status
	for key, value := range text.Lines() {
		s.take(key, value)
	}
	return s
}

func (s *status) take(key, value []byte) {
	fields := bytes.Fields(value)
	if len(fields) == 0 {
		return
	}
	switch string(key) {
	case "Tgid":
		s.tgid = number(fields[0])
	case "Uid":
		s.uid = number(fields[0])
		s.mixed = s.mixed || !uniform(fields)
	case "Gid":
		s.mixed = s.mixed || !uniform(fields)
	case "CapPrm":
		s.caps = len(bytes.Trim(fields[0], "0")) > 0
	case "NSpid":
		s.nspid = number(fields[len(fields)-1])
	case "VmSize":
		s.alive = true
	case "VmExe", "VmLib":
		s.exec += uint64(number(fields[0]))
	}
}

// uniform reports whether all ids are one: real, effective, saved, and that of the file system.
func uniform(ids [][]byte) bool {
	for _, id := range ids {
		if !bytes.Equal(id, ids[0]) {
			return false
		}
	}
	return true
}

func number(digits []byte) uint32 {
	n, err := strconv.ParseUint(string(digits), 10, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}
