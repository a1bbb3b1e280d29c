package callers

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// words is memory that holds some words.
type words map[uint64]uint64

var errNoMemory = errors.New("no memory there")

func (w words) Word(addr uint64) (uint64, error) {
	v, ok := w[addr]
	if !ok {
		return 0, errNoMemory
	}
	return v, nil
}

// build assembles a library whose functions' call frame information is written by hand.
func build(t testing.TB) *os.File {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil || runtime.GOARCH != "amd64" {
		t.Skip("needs gcc for x86-64")
	}
	path := filepath.Join(t.TempDir(), "lib.so")
	if out, err := exec.Command("gcc", "-shared", "-nostdlib", "-Wl,--eh-frame-hdr", "-o", path, "testdata/frames.S").CombinedOutput(); err != nil { //nolint:noctx // short
		t.Fatalf("%v\n%s", err, out)
	}
	f, err := os.Open(path)
	must.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// symbol returns the address of a function of the library by `nm`'s listing.
func symbol(t *testing.T, f *os.File, name string) uint64 {
	t.Helper()
	out, err := exec.Command("nm", f.Name()).Output() //nolint:noctx // short
	if err != nil {
		t.Skipf("needs nm: %v", err)
	}
	for line := range lines(out) {
		if len(line) > 19 && line[19:] == name {
			b := make([]byte, 8)
			for i := range 16 {
				b[i/2] = b[i/2]<<4 | digit(line[i])
			}
			return binary.BigEndian.Uint64(b)
		}
	}
	t.Fatalf("no %s in the library", name)
	return 0
}

func lines(b []byte) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		from := 0
		for i, c := range b {
			if c == '\n' {
				if !yield(string(b[from:i])) {
					return
				}
				from = i + 1
			}
		}
	}
}

func digit(c byte) byte {
	if c >= 'a' {
		return c - 'a' + 10
	}
	return c - '0'
}

const (
	rbx, rbp, rsp = 3, 6, 7
	sp            = 0x7000
)

func TestCaller(t *testing.T) {
	f := build(t)
	file, err := Open(f)
	must.NoError(t, err)
	for _, tt := range []struct {
		name   string
		offset uint64 // of the code in the function
		memory words
		want   Registers // those that are not 0
		signal bool
		err    error
	}{
		{
			"plain", 0,
			words{sp: 0x111},
			Registers{PC: 0x111, R: [columns]uint64{rsp: sp + 8, rbp: 0x66, rbx: 0x33}},
			false, nil,
		},
		{
			"plain", 1,
			words{sp + 8: 0x111, sp: 0x99},
			Registers{PC: 0x111, R: [columns]uint64{rsp: sp + 16, rbp: 0x99, rbx: 0x33}},
			false, nil,
		},
		// restored state
		{
			"plain", 2,
			words{sp: 0x111},
			Registers{PC: 0x111, R: [columns]uint64{rsp: sp + 8, rbp: 0x66, rbx: 0x33}},
			false, nil,
		},
		{
			"by_expression", 0,
			words{0x66 - 8: 0x7800, 0x7800 - 8: 0x222},
			Registers{PC: 0x222, R: [columns]uint64{rsp: 0x7800, rbp: 0x66, rbx: 0x33}},
			false, nil,
		},
		{"in_register", 0, words{}, Registers{PC: 0x33, R: [columns]uint64{rsp: sp, rbp: 0x66, rbx: 0x33}}, false, nil},
		{
			"value", 0,
			words{sp: 0x111},
			Registers{PC: 0x111, R: [columns]uint64{rsp: sp + 8, rbp: 0x66, rbx: sp}},
			false, nil,
		},
		{
			"interrupted", 0,
			words{sp + 8: 0x333},
			Registers{PC: 0x333, R: [columns]uint64{rsp: sp + 16, rbp: 0x66, rbx: 0x33}},
			true, nil,
		},
		{"first", 0, words{}, Registers{}, false, ErrEnd},
		{"null_return", 0, words{sp: 0}, Registers{}, false, ErrEnd},
		{"plain", 0, words{}, Registers{}, false, errNoMemory},
		{"untold", 0, words{}, Registers{}, false, ErrNoEntry},
	} {
		regs := Registers{PC: 0x5555, R: [columns]uint64{rsp: sp, rbp: 0x66, rbx: 0x33}}
		got, signal, err := file.Caller(symbol(t, f, tt.name)+tt.offset, &regs, tt.memory)
		if !errors.Is(err, tt.err) {
			t.Errorf("%s+%d: %v, want %v", tt.name, tt.offset, err, tt.err)
		}
		tt.want.R[16] = tt.want.PC
		if err == nil && (got != tt.want || signal != tt.signal) {
			t.Errorf("%s+%d: %+v, signal %v; want %+v, %v", tt.name, tt.offset, got, signal, tt.want, tt.signal)
		}
	}
}

func TestNoEntryForForeignAddresses(t *testing.T) {
	file, err := Open(build(t))
	must.NoError(t, err)
	for _, addr := range []uint64{0, 1, 1 << 40, ^uint64(0)} {
		if _, _, err := file.Caller(addr, &Registers{}, words{}); !errors.Is(err, ErrNoEntry) {
			t.Errorf("%#x: %v, want ErrNoEntry", addr, err)
		}
	}
}

func TestExpressions(t *testing.T) {
	r := &Registers{R: [columns]uint64{rsp: sp, 16: 0x104b}}
	memory := words{sp + 16: 77}
	for _, tt := range []struct {
		name string
		expr []byte
		want uint64
	}{
		// What ld writes for a PLT: rsp + 8 + ((rip & 15) >= 11 ? 8 : 0).
		{"plt", []byte{0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22}, sp + 16},
		{"deref", []byte{0x77, 16, 0x06}, 77},
		{"constants", []byte{0x08, 200, 0x09, 0xff, 0x22}, 199},
		{"u16 and s16", []byte{0x0a, 0x34, 0x12, 0x0b, 0xfe, 0xff, 0x22}, 0x1232},
		{"uleb and sleb", []byte{0x10, 0x80, 0x01, 0x11, 0x7f, 0x22}, 127},
		{"swap minus", []byte{0x33, 0x35, 0x16, 0x1c}, 2},
		{"dup over drop", []byte{0x32, 0x33, 0x14, 0x12, 0x13, 0x1e, 0x22}, 2 + 3*2},
		{"xor or not neg", []byte{0x31, 0x33, 0x27, 0x34, 0x21, 0x20, 0x1f}, 7},
		{"shra", []byte{0x11, 0x70, 0x32, 0x26}, ^uint64(3)},
		{"bregx plus uconst", []byte{0x92, 7, 0x7c, 0x23, 4}, sp},
	} {
		got, err := evaluate(tt.expr, r, memory)
		if err != nil || got != tt.want {
			t.Errorf("%s: %#x, %v; want %#x", tt.name, got, err, tt.want)
		}
	}
	for name, expr := range map[string][]byte{
		"nothing": {}, "empty stack": {0x22}, "cut off": {0x0e, 1, 2}, "unknown": {0xff}, "register 99": {0x92, 99, 0},
		"jump": {0x2f, 0, 0},
	} {
		if _, err := evaluate(expr, r, memory); err == nil {
			t.Errorf("%s is a value", name)
		}
	}
	deep := make([]byte, maxStack+1)
	for i := range deep {
		deep[i] = 0x31
	}
	if _, err := evaluate(deep, r, memory); !errors.Is(err, errMalformed) {
		t.Errorf("a stack of %d values: %v", len(deep), err)
	}
}

// everything is memory that holds a word at every address.
type everything struct{}

func (everything) Word(addr uint64) (uint64, error) { return addr + 16, nil }

// FuzzCaller holds that no file makes the reader fail, read without end, or take memory without bounds.
func FuzzCaller(f *testing.F) {
	file := build(f)
	whole, err := os.ReadFile(file.Name())
	must.NoError(f, err)
	f.Add(whole, uint64(0x1000))
	f.Add(whole[:len(whole)/2], uint64(0x1001))
	fuzzing.Run(f, func(t *testing.T, b []byte, addr uint64) {
		opened, err := Open(readerAt(b))
		if opened == nil {
			if err == nil {
				t.Fatal("neither a file nor an error")
			}
			return
		}
		_, _, _ = opened.Caller(addr, &Registers{PC: addr}, everything{})
		for _, s := range opened.loads {
			_, _, _ = opened.Caller(s.addr, &Registers{}, everything{})
		}
	})
}

func FuzzExpression(f *testing.F) {
	f.Add([]byte{0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22})
	fuzzing.Run(f, func(_ *testing.T, b []byte) { _, _ = evaluate(b, &Registers{}, everything{}, 1) })
}

type readerAt []byte

func (r readerAt) ReadAt(p []byte, off int64) (int, error) {
	if off >= int64(len(r)) {
		return 0, errNoMemory
	}
	n := copy(p, r[off:])
	if n < len(p) {
		return n, errNoMemory
	}
	return n, nil
}

// BenchmarkCaller finds a caller in a large library.
func BenchmarkCaller(b *testing.B) {
	path, _ := filepath.Glob("/usr/lib/*/libc.so.6")
	if len(path) == 0 {
		b.Skip("needs a libc.so.6")
	}
	f, err := os.Open(path[0])
	must.NoError(b, err)
	defer f.Close()
	file, err := Open(f)
	must.NoError(b, err)
	low, err := file.at(file.table+8*(file.count/2), 4)
	must.NoError(b, err)
	addr := file.base + uint64(int64(int32(binary.LittleEndian.Uint32(low))))
	for b.Loop() {
		if _, _, err := file.Caller(addr, &Registers{R: [columns]uint64{rsp: sp}}, everything{}); err != nil {
			b.Fatal(err)
		}
	}
}
