package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/agent"
	"github.com/inferscope/inferscope/internal/daemon/config"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
)

// Variables by which CUDA and NVTX load a library at their start: CUDA driver, CUDA_INJECTION64_PATH;
// NVTX 3, nvtxInitDefs.h.
const (
	injectionEnv = "CUDA_INJECTION64_PATH"
	nvtxEnv      = "NVTX_INJECTION64_PATH"
)

// environment returns what the program gets: ours, that somebody reads its scopes from the start
// (INFERSCOPE_RUN), and, where agents are used, the agent, which CUDA loads when it is initialised. Variables that are
// set already stay as they are. done removes what was made for it.
func (j *job) environment(environ config.Environment, agents bool) (out config.Environment, done func(), err error) {
	out = append(append(out, environ...), "INFERSCOPE_RUN=1")
	done = func() {}
	if !agents {
		return out, done, nil
	}
	if v, _ := environ.Get(injectionEnv); v == "" {
		path, remove, err := placeAgent()
		if err != nil {
			return nil, nil, err
		}
		if done = remove; path != "" {
			out = append(out, injectionEnv+"="+path)
		}
	}
	if v, _ := environ.Get(nvtxEnv); v == "" {
		if path := findCUPTI(j.path); path != "" {
			out = append(out, nvtxEnv+"="+path)
		}
	}
	return out, done, nil
}

// placeAgent writes the agent where the program can load it from; "" where no program could: the
// daemon brings it in at the first CUDA call then.
func placeAgent() (path string, remove func(), err error) {
	image, err := agent.Image(runtime.GOARCH)
	if err != nil {
		return "", func() {}, nil //nolint:nilerr // there is none for this machine
	}
	dir, err := os.MkdirTemp("", "inferscope-agent-")
	if err != nil {
		return "", nil, fmt.Errorf("making a folder for the agent: %w", err)
	}
	remove = func() { _ = os.RemoveAll(dir) }
	path = filepath.Join(dir, agent.FileName)
	// The program may change its user before it initialises CUDA: anybody may read it.
	err = errors.Join(os.Chmod(dir, 0o755), os.WriteFile(path, image, 0o644)) //nolint:gosec // see above
	if err == nil {
		err = mayExecute(path)
	}
	if err != nil {
		remove()
		return "", func() {}, nil //nolint:nilerr // no program could load it from there
	}
	return path, remove, nil
}

// mayExecute reports whether code can be loaded from a file: the folder for temporary files may be
// mounted noexec, and what CUDA does with a library that it cannot load is not known.
func mayExecute(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	mem, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	return unix.Munmap(mem)
}

// findCUPTI returns the CUPTI that a program will use, as far as that can be said before it runs: of
// the Python environment that it belongs to, else the toolkit's. NVTX hands ranges to that one.
func findCUPTI(program string) string {
	bin := filepath.Dir(program) // its links are not followed: a virtual environment is where they are
	for _, pattern := range []string{
		filepath.Join(bin, "../lib/python3*/site-packages/nvidia/cu13/lib/libcupti.so.13"),
		filepath.Join(bin, "../lib/python3*/site-packages/nvidia/cuda_cupti/lib/libcupti.so.1[0-9]"),
		"/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.1[0-9]",
	} {
		if found, err := filepath.Glob(pattern); err == nil && len(found) == 1 { // of several nobody knows which
			return filepath.Clean(found[0])
		}
	}
	return ""
}

var errManyGPUs = errors.New("more than one GPU is visible to the program")

// oneGPU heeds single_gpu before a program starts: more than one GPU that it could see is an error.
func oneGPU(s config.Settings, environ config.Environment) error {
	if n := environ.VisibleGPUs(config.DevicesDir); s.SingleGPU && n > 1 {
		return tooManyGPUs(n)
	}
	return nil
}

func tooManyGPUs(n int) error {
	return clierror.New(
		clierror.Usage,
		"set CUDA_VISIBLE_DEVICES=0 for the program, or leave single_gpu (INFERSCOPE_SINGLE_GPU) out: each GPU is analysed then",
		fmt.Errorf("single_gpu: %w: %d", errManyGPUs, n),
	)
}

// oneDevice heeds single_gpu where a recording says what was used.
func (g *global) oneDevice(rec *recording.Recording) error {
	if !g.single || rec.Meta.GPU == nil {
		return nil
	}
	devices := map[string]bool{}
	for _, d := range rec.Meta.GPU.Devices {
		id := d.UUID
		if id == "" {
			id = fmt.Sprintf("%d/%d", d.PID, d.ID)
		}
		devices[id] = true
	}
	if len(devices) > 1 {
		return tooManyGPUs(len(devices))
	}
	return nil
}
