package sampler

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// entryProgram is the name of the library's program for a sample. The kernel keeps 15
// bytes of it (BPF_OBJ_NAME_LEN), and where the program has BTF, the whole.
const entryProgram = "native_tracer_entry"

const keptName = 15

var errNoEntry = errors.New("it has loaded no program " + entryProgram)

// openEntry returns the library's entry program, out of the files of this process.
// The library tells nobody of it, and what it offers instead (tracer.Probe) wants
// every unwinder loaded a second time, for kprobes: 2.4 s of the verifier.
//
// Of several the one that was loaded last is taken, so two libraries must not be
// started at the same moment in one process.
func openEntry() (*ebpf.Program, error) {
	names, err := listFiles()
	if err != nil {
		return nil, err
	}
	var found *ebpf.Program
	var newest ebpf.ProgramID
	for _, name := range names {
		program, id := entryAt(name)
		switch {
		case program == nil:
		case id > newest:
			_ = found.Close() // nothing but a number is let go of
			found, newest = program, id
		default:
			_ = program.Close()
		}
	}
	if found == nil {
		return nil, errNoEntry
	}
	return found, nil
}

const ownFiles = "/proc/self/fd"

func listFiles() ([]string, error) {
	dir, err := os.Open(ownFiles)
	if err != nil {
		return nil, fmt.Errorf("list the own files: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list the own files: %w", err)
	}
	return names, nil
}

// entryAt returns a descriptor of its own for the entry program, nil where that file
// is something else.
func entryAt(name string) (*ebpf.Program, ebpf.ProgramID) {
	if link, err := os.Readlink(ownFiles + "/" + name); err != nil || link != "anon_inode:bpf-prog" {
		return nil, 0
	}
	fd, err := strconv.Atoi(name)
	if err != nil {
		return nil, 0
	}
	// Another goroutine may close the file at any moment: what is looked at is the copy.
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, 0
	}
	program, err := ebpf.NewProgramFromFD(own) // closes own where it fails
	if err != nil {
		return nil, 0
	}
	info, err := program.Info()
	if err == nil && (info.Name == entryProgram || info.Name == entryProgram[:keptName]) && info.Type == ebpf.PerfEvent {
		if id, ok := info.ID(); ok {
			return program, id
		}
	}
	_ = program.Close()
	return nil, 0
}
