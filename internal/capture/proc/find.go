package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/format/clierror"
)

// candidate is a process that uses CUDA, as far as its mapped files tell.
type candidate struct {
	PID       uint32   `json:"pid"` // in the initial pid namespace
	UID       uint32   `json:"uid"` // real user id of the owner
	Comm      string   `json:"comm"`
	Cmdline   string   `json:"cmdline"`   // at most 4,096 bytes
	Libraries []string `json:"libraries"` // paths as the process sees them, each file once, sorted
}

// maxCandidates bounds the answer of find.
const maxCandidates = 4096

// find returns every process that has a CUDA library mapped, ordered by pid.
// Processes of other users cannot be read without CAP_SYS_PTRACE, and some not
// even with it: if there are any, find returns the candidates among those that
// could be read TOGETHER WITH a clierror.Permission that says how many could not.
// Costs a read of /proc/PID/maps of each process.
func find(ctx context.Context) ([]candidate, error) {
	return newProcfs(procRoot).find(ctx)
}

func (fs *procfs) find(ctx context.Context) ([]candidate, error) {
	var pids []uint32
	if err := fs.pids(func(pid uint32) { pids = append(pids, pid) }); err != nil {
		return nil, fmt.Errorf("looking for processes: %w", err)
	}
	slices.Sort(pids)
	var found []candidate
	hidden := 0
	for _, pid := range pids {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("looking for processes with CUDA: %w", err)
		}
		libraries, err := fs.cudaLibraries(pid)
		if errors.Is(err, os.ErrPermission) && !fs.isKernelThread(pid) {
			hidden++
		}
		if err != nil || len(libraries) == 0 || len(found) == maxCandidates {
			continue
		}
		if c, ok := fs.candidate(pid, libraries); ok {
			found = append(found, c)
		}
	}
	return found, hiddenError(hidden)
}

func hiddenError(n int) error {
	if n == 0 {
		return nil
	}
	return clierror.New(clierror.Permission, hintPtrace,
		fmt.Errorf("%d processes could not be looked into", n))
}

// cudaLibraries looks into a process by its number alone: a list for people may
// be a moment old, and whoever acts on it asks Describe first.
func (fs *procfs) cudaLibraries(pid uint32) ([]string, error) {
	f, err := os.Open(fs.path(pid, "maps"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	type file struct{ dev, inode uint64 }
	seen := make(map[file]string)
	root := ""
	err = scanMaps(f, func(line mapsLine) error {
		if !isCUDA(line.base()) || len(seen) == maxMappings {
			return nil
		}
		if root == "" {
			root = fs.rootOf(pid)
		}
		seen[file{line.dev, line.inode}] = line.mapping(root).Path
		return nil
	})
	libraries := make([]string, 0, len(seen))
	for _, path := range seen {
		libraries = append(libraries, path)
	}
	slices.Sort(libraries)
	return libraries, err
}

// isCUDA reports whether a file of this name is the driver's library or may be a runtime.
func isCUDA(base string) bool { return cuda.IsDriverFile(base) || cuda.IsRuntimeFile(base) }

func (fs *procfs) candidate(pid uint32, libraries []string) (candidate, bool) {
	s, err := fs.stat(pid)
	if err != nil {
		return candidate{}, false
	}
	more, err := fs.status(pid)
	if err != nil {
		return candidate{}, false
	}
	return candidate{PID: pid, UID: more.uid, Comm: s.comm, Cmdline: fs.cmdline(pid), Libraries: libraries}, true
}

func (fs *procfs) isKernelThread(pid uint32) bool {
	s, err := fs.stat(pid)
	return err == nil && s.flags&pfKthread != 0
}
