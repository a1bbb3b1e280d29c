package profile

import (
	"github.com/cilium/ebpf"
	"go.opentelemetry.io/ebpf-profiler/libpf"
)

// unwound makes a stack of the frames that the library's programs wrote, and reports whether
// it would make the same one of them at any time. A file that the stack ends in for want
// of its unwind tables is read next.
func (l *loader) unwound(frames []uint64, pid uint32) (out *unwound, lasting bool) {
	out, lasting = &unwound{frames: make([]*frame, 0, len(frames)/2)}, true
	last := uint64(0)
	for f := libpf.EbpfFrame(frames); len(f) > 0; {
		n := int(f.Length())
		if n == 0 || n > len(f) {
			break // the programs write no such frame
		}
		switch {
		case f.Flags().Error():
			out.cut = l.whyCut(f.Data(), last)
			lasting = lasting && !l.better(f.Data(), last)
		case n > 1 && f.Type() == libpf.NativeFrame:
			last = f.Variable(0)
			addr := f.Data()
			if f.Flags().ReturnAddress() {
				addr-- // into the call, which can be the last instruction of its function
			}
			frame := l.frame(last, addr, pid)
			out.frames = append(out.frames, frame)
			lasting = lasting && frame.module != nil
		}
		f = f[n:]
	}
	return out, lasting
}

// frame is the frame of native code in the file of a number.
func (l *loader) frame(number, addr uint64, pid uint32) *frame {
	l.mu.Lock()
	x := l.images[number]
	l.mu.Unlock()
	if x == nil || x.module == nil {
		return &frame{kind: nativeFrame, addr: addr, pid: pid}
	}
	return l.convert.native(x.module, addr)
}

// whyCut reports why the stack ended with an error in the file of a number.
func (l *loader) whyCut(code, number uint64) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if x := l.images[number]; code == noTables && x != nil && x.state == refused {
		return x.cut
	}
	return whyCut(code)
}

// better reports whether the stack that ended with an error in the file of a number may be
// a longer one a little later.
func (l *loader) better(code, number uint64) bool {
	switch code {
	case noMapping:
		return true
	case noTables:
		return l.want(number)
	}
	return false
}

// unwinder unwinds native stacks. There is one (library.go), or none.
type unwinder interface {
	// entry is the program that samples go on to.
	entry() *ebpf.Program
	// take returns the traces that have come since the last call, in no order. They are
	// good until the next one.
	take() []trace
	// err reports why it has stopped; nil while it runs.
	err() error
	close()
}
