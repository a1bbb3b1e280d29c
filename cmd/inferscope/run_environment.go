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

// Variables that make CUDA and NVTX load a library at start: CUDA driver, CUDA_INJECTION64_PATH; NVTX 3,
// nvtxInitDefs.h.
const (
	injectionEnv = "CUDA_INJECTION64_PATH"
	nvtxEnv      = "NVTX_INJECTION64_PATH"
)

// environment returns the environment of the program: this one, INFERSCOPE_RUN (scopes are read from the start) and, if
// agents are used, the agent that CUDA loads at initialization. Variables that are already set are kept. done cleans
// up.
func (j *job) environment(environ config.Environment, agents bool) (out config.Environment, done func(), err error) {
	out = append(append(out, environ...), "INFERSCOPE_RUN=1")
	done = func() {}
	if !agents {
		return out, done, nil
	}
	if v, _ := environ.Get(injectionEnv); v == "" {
		path, remove, err := placeAgent(j.flags.cupti)
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

// placeAgent writes the agent to a file that the program can load, and returns its path; "" if there is no such place:
// the daemon then injects the agent at the first CUDA call. cupti is the value of --cupti.
func placeAgent(cupti string) (path string, remove func(), err error) {
	image, err := agent.Image(runtime.GOARCH)
	if err != nil {
		return "", func() {}, nil //nolint:nilerr // there is none for this machine
	}
	if err := agent.SetCUPTI(image, cupti); err != nil {
		return "", nil, clierror.New(clierror.Usage, "see --cupti in inferscope run --help", err)
	}
	dir, err := os.MkdirTemp("", "inferscope-agent-")
	if err != nil {
		return "", nil, fmt.Errorf("making a folder for the agent: %w", err)
	}
	remove = func() { _ = os.RemoveAll(dir) }
	path = filepath.Join(dir, agent.FileName)
	// The program may change its user before it initializes CUDA: everyone may read it.
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

// mayExecute reports whether code can be loaded from a file: the temporary directory may be mounted noexec, and it is
// unknown what CUDA does with a library that it cannot load.
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

// findCUPTI returns the CUPTI that a program will probably use: that of its Python environment, else that of the
// toolkit. NVTX passes its ranges to it.
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

// oneGPU enforces single_gpu before a program starts: it is an error if the program could see several GPUs.
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

// oneDevice enforces single_gpu on a recording that shows which GPUs were used.
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
