package gpu

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/inferscope/inferscope/agent"
	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/proc"
)

// Bounds of waiting for an agent that CUDA loads (CUDA_INJECTION64_PATH).
const (
	maxEnviron = 1 << 20                // bytes: more than programs have
	startEvery = 200 * time.Millisecond // an agent waits 8.5 s for its daemon; a look takes 3 ms with PyTorch
	startBound = 2 * time.Second        // from when the driver is open until the agent must be there
	maxFiles   = 1 << 16                // descriptors that are looked at
)

// comesByItself reports whether p was started so that CUDA loads an agent, as `inferscope run` does it:
// a second one is not to be injected.
func comesByItself(p *proc.Process) bool {
	f, err := os.Open(procPath(p, "environ"))
	if err != nil {
		return false
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxEnviron))
	if err != nil || !p.Alive() {
		return false
	}
	for entry := range bytes.SplitSeq(raw, []byte{0}) {
		if path, ok := bytes.CutPrefix(entry, []byte("CUDA_INJECTION64_PATH=")); ok {
			return filepath.Base(string(path)) == agent.FileName
		}
	}
	return false
}

// awaitStart waits for an agent that CUDA loads when it is initialised. It returns errNoRing where
// that has happened and no agent has come: the library cannot be read from where the program is.
func (s *Source) awaitStart(ctx context.Context, p *proc.Process) (*ring, error) {
	var open time.Time
	for {
		r, err := s.takeOver(ctx, p)
		if !errors.Is(err, errNoRing) {
			return r, err
		}
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case open.IsZero() && driverOpen(p):
			open = time.Now()
		case !open.IsZero() && time.Since(open) > startBound:
			return nil, errNoRing
		}
		sleep(ctx, startEvery)
	}
}

// awaitAge returns when p is old enough for an agent, or ctx is done.
func (s *Source) awaitAge(ctx context.Context, p *proc.Process) {
	if age := since(clock.Monotonic(), p.Born); age < s.opts.MinAge {
		sleep(ctx, s.opts.MinAge-age)
	}
}

// uvm is the device that cuInit opens; NVML, which frameworks ask before, opens others only.
const uvm = "/dev/nvidia-uvm"

// driverOpen reports whether p has opened the NVIDIA driver, as cuInit does.
func driverOpen(p *proc.Process) bool {
	dir, err := os.Open(procPath(p, "fd"))
	if err != nil {
		return false
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(maxFiles) // what could be read is looked at
	for _, name := range names {
		if path, err := os.Readlink(filepath.Join(dir.Name(), name)); err == nil && path == uvm {
			return true
		}
	}
	return false
}
