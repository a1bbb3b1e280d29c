// Package feature finds out what this kernel and these privileges allow, by trying,
// and keeps "yes", "no" and "could not tell" apart: a probe that was refused for
// want of a capability says nothing about the kernel.
package feature

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
)

// answer is what is known of a feature.
type answer string

// The answers.
const (
	Yes     answer = "yes"
	No      answer = "no"
	Unknown answer = "could not tell"
)

// Name names a kernel feature.
type Name string

// The features, with the kernel that brought them.
const (
	BTF           Name = "BTF (CONFIG_DEBUG_INFO_BTF)"
	RingBuffer    Name = "BPF ring buffers (5.8)"
	TaskStorage   Name = "BPF task storage (5.11)"
	Tracepoint    Name = "BTF tracepoint programs (5.5)"
	PerfCookie    Name = "cookies of perf event links (5.15)"
	UprobeMulti   Name = "uprobe_multi (6.6)"
	UprobeSession Name = "uprobe sessions (6.13)"
	SocketLength  Name = "tracepoints of socket transfers (6.3)"
)

// Finding is the answer for one feature.
type Finding struct {
	Name   Name
	Answer answer
	Err    error // why it is not Yes
}

// Host is all that was found out.
type Host struct {
	Findings     []Finding
	Capabilities capabilities
	Lockdown     string // none, integrity, confidentiality; "" where the kernel does not say
	Paranoid     int    // kernel.perf_event_paranoid; -2 where it cannot be read
	InitialPIDNS answer // whether pids here are those of the whole machine
}

// Prober finds out. The zero value looks at this machine.
type Prober struct {
	// Root is the file system to look at; "" is "/". System calls ignore it.
	Root string
	// tries replace the system calls in tests.
	tries []try
}

// try is one feature and the system calls that show it: nil, an error that wraps
// ebpf.ErrNotSupported, or one that leaves the question open.
type try struct {
	name Name
	call func() error
}

// Detect asks the kernel for every feature. It changes nothing and takes about 10 ms.
func (p Prober) Detect() Host {
	h := Host{
		Findings:     []Finding{p.btf()},
		Capabilities: p.capabilities(),
		Lockdown:     p.lockdown(),
		Paranoid:     p.paranoid(),
		InitialPIDNS: p.initialPIDNS(),
	}
	tries := p.tries
	if tries == nil {
		tries = systemCalls()
	}
	for _, t := range tries {
		h.Findings = append(h.Findings, finding(t.name, t.call()))
	}
	return h
}

func finding(name Name, err error) Finding {
	switch {
	case err == nil:
		return Finding{Name: name, Answer: Yes}
	case errors.Is(err, ebpf.ErrNotSupported):
		return Finding{Name: name, Answer: No, Err: err}
	}
	return Finding{Name: name, Answer: Unknown, Err: err}
}

// Of returns the finding for name; Unknown if it was not asked for.
func (h Host) Of(name Name) Finding {
	for _, f := range h.Findings {
		if f.Name == name {
			return f
		}
	}
	return Finding{Name: name, Answer: Unknown, Err: errors.New("not asked for")}
}

func (p Prober) path(name string) string {
	return filepath.Join("/", p.Root, name)
}

// read returns at most 64 KiB of a file.
func (p Prober) read(name string) (string, error) {
	f, err := os.Open(p.path(name))
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // read only
	b, err := io.ReadAll(io.LimitReader(f, 64<<10))
	return string(b), err
}

const btfFile = "sys/kernel/btf/vmlinux"

// btf looks for the kernel's own BTF: programs are fitted to the kernel by it.
func (p Prober) btf() Finding {
	f, err := os.Open(p.path(btfFile))
	if errors.Is(err, fs.ErrNotExist) {
		return finding(BTF, fmt.Errorf("/%s: %w: %w", btfFile, err, ebpf.ErrNotSupported))
	}
	if err != nil {
		return finding(BTF, err)
	}
	defer f.Close() //nolint:errcheck // read only
	magic := make([]byte, 2)
	if _, err := io.ReadFull(f, magic); err != nil {
		return finding(BTF, fmt.Errorf("read /%s: %w", btfFile, err))
	}
	if !bytes.Equal(magic, []byte{0x9f, 0xeb}) && !bytes.Equal(magic, []byte{0xeb, 0x9f}) {
		return finding(BTF,
			fmt.Errorf("/%s begins with % x, which is not BTF: %w", btfFile, magic, ebpf.ErrNotSupported))
	}
	return finding(BTF, nil)
}

// lockdown reads "none [integrity] confidentiality".
func (p Prober) lockdown() string {
	s, err := p.read("sys/kernel/security/lockdown")
	if err != nil {
		return ""
	}
	_, s, _ = strings.Cut(s, "[")
	s, _, ok := strings.Cut(s, "]")
	if !ok {
		return ""
	}
	return s
}

func (p Prober) paranoid() int {
	s, err := p.read("proc/sys/kernel/perf_event_paranoid")
	if err != nil {
		return -2
	}
	n, err := strconv.Atoi(strings.TrimSpace(s))
	if err != nil {
		return -2
	}
	return n
}

// initialPIDNS compares with PROC_PID_INIT_INO of include/linux/proc_ns.h.
func (p Prober) initialPIDNS() answer {
	s, err := os.Readlink(p.path("proc/self/ns/pid"))
	switch {
	case err != nil:
		return Unknown
	case s == fmt.Sprintf("pid:[%d]", uint32(0xEFFFFFFC)):
		return Yes
	}
	return No
}
