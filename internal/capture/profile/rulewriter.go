package profile

import (
	"encoding/binary"
	"errors"
	"unsafe"

	"go.opentelemetry.io/ebpf-profiler/support"
	"golang.org/x/sys/unix"
)

// ruleFlags are those of an array of rules (include/uapi/linux/bpf.h): it lies in a map of arrays that need
// not all be of one length (5.10), and it is written through a mapping (5.5). Handed to
// the kernel by BPF_MAP_UPDATE_BATCH, which copies and checks each rule by itself, the 1.8 million rules
// of libtorch_cpu took longer than reading them out of the file.
const ruleFlags = bpfInnerMap | bpfMmapable

const (
	bpfMmapable = 1 << 10
	bpfInnerMap = 1 << 12
)

// ruleStride is how far apart rules are in an array: BPF rounds values up to 8 bytes.
const ruleStride = 8

// ruleWindow is how much of an array is mapped at a time, in bytes: what is mapped counts as memory
// of this process.
const ruleWindow = 1 << 20

// ruleWriter writes the rules of a file into an array, one after the other.
type ruleWriter struct {
	fd     int
	total  int    // rules that there is room for
	at     int    // rules written
	memory []byte // the window, from the rule that is written next on
	window []byte
	err    error
}

// put writes the next rule: from the address with these low 16 bits on, rule holds.
func (w *ruleWriter) put(addr, rule uint16) {
	if len(w.memory) == 0 {
		w.slide()
	}
	if w.err != nil {
		return
	}
	ne := binary.NativeEndian
	ne.PutUint16(w.memory[unsafe.Offsetof(support.StackDelta{}.AddrLow):], addr)
	ne.PutUint16(w.memory[unsafe.Offsetof(support.StackDelta{}.UnwindInfo):], rule)
	w.memory = w.memory[ruleStride:]
	w.at++
}

// slide maps the next window.
func (w *ruleWriter) slide() {
	if w.err != nil {
		return
	}
	if w.at >= w.total {
		w.err = errors.New("there are more than were counted")
		return
	}
	if w.err = w.unmap(); w.err != nil {
		return
	}
	from := w.at * ruleStride
	w.window, w.err = unix.Mmap(w.fd, int64(from), min(ruleWindow, w.total*ruleStride-from),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	w.memory = w.window
}

func (w *ruleWriter) unmap() error {
	if w.window == nil {
		return nil
	}
	err := unix.Munmap(w.window)
	w.window, w.memory = nil, nil
	return err
}

// close ends the writing, and reports whether all went well.
func (w *ruleWriter) close() error { return errors.Join(w.err, w.unmap()) }
