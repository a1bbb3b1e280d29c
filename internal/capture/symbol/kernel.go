package symbol

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"sync"
)

const (
	kernelModule = "kernel"
	// maxKernelLines bounds /proc/kallsyms; a 6.18 kernel with few modules has 122,000 lines.
	maxKernelLines = 4 << 20
	// maxKernelNames bounds the addresses that are remembered.
	maxKernelNames = 1 << 14
)

// ErrHidden means that the kernel shows its symbols' addresses as 0.
var ErrHidden = errors.New("the kernel hides its symbols (kernel.kptr_restrict): give CAP_SYSLOG, or set it to 0 or 1")

// Kernel names kernel addresses by /proc/kallsyms. Its table is not kept: it is read
// through once for all addresses that are new, 60 ms for 122,000 symbols. It is safe
// for concurrent use.
type Kernel struct {
	open func() (io.ReadCloser, error)

	mu    sync.Mutex
	known map[uint64]Symbol
}

// NewKernel returns the names of the running kernel.
func NewKernel() *Kernel {
	return &Kernel{
		open:  func() (io.ReadCloser, error) { return os.Open("/proc/kallsyms") },
		known: map[uint64]Symbol{},
	}
}

// Resolve names addresses: the i-th symbol is of the i-th address. Module is "kernel"
// or the kernel module's name. Ask for many at a time. Where it fails, with ErrHidden
// or because the table cannot be read, the symbols have no Name.
func (k *Kernel) Resolve(addrs []uint64) ([]Symbol, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var unknown []uint64
	for _, a := range addrs {
		if _, ok := k.known[a]; !ok {
			unknown = append(unknown, a)
		}
	}
	var err error
	var fresh map[uint64]Symbol
	if len(unknown) > 0 {
		fresh, err = k.read(unknown)
	}
	out := make([]Symbol, len(addrs))
	for i, a := range addrs {
		out[i] = Symbol{Offset: a, Module: kernelModule}
		for _, from := range []map[uint64]Symbol{fresh, k.known} {
			if s, ok := from[a]; ok {
				out[i] = s
			}
		}
	}
	k.remember(fresh)
	return out, err
}

// remember keeps names, within bounds.
func (k *Kernel) remember(fresh map[uint64]Symbol) {
	if len(k.known)+len(fresh) > maxKernelNames {
		clear(k.known)
	}
	for a, s := range fresh {
		if len(k.known) < maxKernelNames {
			k.known[a] = s
		}
	}
}

func (k *Kernel) read(addrs []uint64) (map[uint64]Symbol, error) {
	f, err := k.open()
	if err != nil {
		return nil, fmt.Errorf("reading the kernel's symbols: %w", err)
	}
	defer f.Close()
	slices.Sort(addrs)
	return readKernel(f, slices.Compact(addrs))
}

// readKernel gives each of the ascending addresses the symbol that begins nearest
// before it. The lines come in no order, so each only betters the first address that
// it may name; what lies behind has it passed on at the end. Further than a function
// is long, in code that has no line (BPF programs), nothing is named.
func readKernel(r io.Reader, sorted []uint64) (map[uint64]Symbol, error) {
	best := make([]kernelLine, len(sorted))
	lines := bufio.NewScanner(r)
	shown := false
	for n := 0; n < maxKernelLines && lines.Scan(); n++ {
		l, ok := parseKernel(lines.Bytes())
		if !ok {
			continue
		}
		shown = true
		i, _ := slices.BinarySearch(sorted, l.addr)
		if i < len(sorted) && l.addr > best[i].addr {
			best[i] = l.clone()
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading the kernel's symbols: %w", err)
	}
	if !shown {
		return nil, ErrHidden
	}
	out := make(map[uint64]Symbol, len(sorted))
	for i, a := range sorted {
		if i > 0 && best[i-1].addr > best[i].addr {
			best[i] = best[i-1]
		}
		out[a] = Symbol{Offset: a, Module: kernelModule}
		if best[i].addr != 0 && a-best[i].addr <= maxReach {
			out[a] = Symbol{Name: string(best[i].name), Offset: a - best[i].addr, Module: string(best[i].module)}
		}
	}
	return out, nil
}

type kernelLine struct {
	addr         uint64
	name, module []byte
}

func (l kernelLine) clone() kernelLine {
	return kernelLine{l.addr, bytes.Clone(l.name), bytes.Clone(l.module)}
}

// parseKernel reads "ffffffff81000000 T name\t[module]" of a function.
func parseKernel(line []byte) (kernelLine, bool) {
	if len(line) < 20 || line[16] != ' ' || line[18] != ' ' {
		return kernelLine{}, false
	}
	if kind := line[17] | 0x20; kind != 't' && kind != 'w' {
		return kernelLine{}, false
	}
	addr, err := strconv.ParseUint(string(line[:16]), 16, 64)
	if err != nil || addr == 0 {
		return kernelLine{}, false
	}
	name, module, _ := bytes.Cut(line[19:], []byte("\t"))
	if module = bytes.Trim(module, "[]"); len(module) == 0 {
		module = []byte(kernelModule)
	}
	return kernelLine{addr, name, module}, true
}
