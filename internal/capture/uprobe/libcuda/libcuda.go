// Package libcuda puts BPF programs on functions of the CUDA driver's library in a process.
package libcuda

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/capture/uprobe/elffile"
	"github.com/inferscope/inferscope/internal/cuda"
)

// maxPlaces and maxPerfPlaces bound the probes: those of perf events take 0.1 s each to remove. maxFiles bounds the
// libraries.
const (
	maxPlaces     = 400
	maxPerfPlaces = 40
	maxFiles      = 4
)

// ErrNone means that a process maps no library of the driver's that can be probed.
var ErrNone = errors.New("it maps no CUDA driver that can be probed")

// named returns whether an exported name is one of functions, with or without a version and a per-thread suffix.
func named(name string, functions []string) bool {
	base, _, _ := strings.Cut(name, "_")
	switch strings.TrimPrefix(name, base) {
	case "", "_v2", "_v3", "_ptsz", "_ptds", "_v2_ptsz", "_v2_ptds":
		return slices.Contains(functions, base)
	}
	return false
}

// Attach puts prog, which must have been loaded for mode, on the entries (link holder and mode: see
// uprobe.AttachProgram) of the driver's functions in p. The error wraps uprobe.ErrNoProcess where p has gone, and else,
// unless its mappings cannot be read, ErrNone: it says for each library why.
func Attach(
	p *proc.Process,
	linkHolder *uprobe.LinkHolder,
	mode uprobe.Mode,
	prog *ebpf.Program,
	functions []string,
) ([]*uprobe.Attachment, error) {
	libraries, err := proc.Libraries(p, cuda.IsDriverFile)
	if err != nil {
		return nil, fmt.Errorf("list its CUDA libraries: %w", err)
	}
	errs := []error{ErrNone}
	var out []*uprobe.Attachment
	for _, m := range libraries[:min(len(libraries), maxFiles)] {
		a, err := attachTo(p, m, linkHolder, mode, prog, functions)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", m.Path, err))
			continue
		}
		out = append(out, a)
	}
	if len(out) > 0 {
		return out, nil
	}
	return nil, errors.Join(errs...)
}

func attachTo(
	p *proc.Process,
	m proc.Mapping,
	linkHolder *uprobe.LinkHolder,
	mode uprobe.Mode,
	prog *ebpf.Program,
	functions []string,
) (*uprobe.Attachment, error) {
	file, err := proc.Open(p, m)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	most := maxPlaces
	if mode == uprobe.Perf {
		most = maxPerfPlaces
	}
	sites, err := sitesIn(file, functions, most)
	if err != nil {
		return nil, err
	}
	if len(sites) == 0 {
		return nil, errors.New("it exports none of the functions to probe")
	}
	return uprobe.AttachProgram(linkHolder, mode, prog, file, p.PID, sites)
}

func sitesIn(file *os.File, functions []string, most int) ([]uprobe.Site, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("stat: %w", err)
	}
	lib, err := elffile.Open(file, info.Size())
	if err != nil {
		return nil, err
	}
	all, err := lib.Named(func(name string) bool { return named(name, functions) })
	if err != nil {
		return nil, err
	}
	var sites []uprobe.Site
	for _, fn := range all {
		if fn.Indirect || len(sites) == most {
			continue
		}
		at := uprobe.Choose(fn.Code, fn.Addr, lib.Machine)
		sites = append(sites, uprobe.Site{Offset: fn.Offset + at.Offset})
	}
	slices.SortFunc(sites, func(a, b uprobe.Site) int { return cmp.Compare(a.Offset, b.Offset) })
	return slices.Compact(sites), nil // several names may share an address
}
