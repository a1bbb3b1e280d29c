package inject

import "encoding/binary"

// frame is a signal frame as the kernel makes it before it runs a handler. A function
// that is entered with the frame's stack pointer and returns comes to rt_sigreturn,
// which gives the thread back every register, its extended state and its signal
// mask, in one system call of its own. So the thread goes on where it was, whatever
// has happened meanwhile to whoever wrote the frame.
type frame struct {
	at   uint64 // address of data in the thread's stack
	data []byte
	sp   uint64 // stack pointer of a function that is to return through the frame
	text uint64 // address of textRoom bytes in data, for a string argument
}

// textRoom is how long a string argument may be, with its NUL.
const textRoom = 256

// setText puts a string argument into the frame.
func (f *frame) setText(s string) {
	room := f.data[f.text-f.at:][:textRoom]
	clear(room)
	copy(room[:textRoom-1], s)
}

func put64(b []byte, at int, v uint64) { binary.LittleEndian.PutUint64(b[at:], v) }
func put32(b []byte, at int, v uint32) { binary.LittleEndian.PutUint32(b[at:], v) }
func put16(b []byte, at int, v uint16) { binary.LittleEndian.PutUint16(b[at:], v) }
func get64(b []byte, at int) uint64    { return binary.LittleEndian.Uint64(b[at:]) }

func down(v, to uint64) uint64 { return v &^ (to - 1) }
