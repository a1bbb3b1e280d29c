package profile

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// packetsOf encodes traces as the helper does.
func packetsOf(t testing.TB, traces ...*trace) [][]byte {
	t.Helper()
	var out [][]byte
	e := newEncoder(func(p []byte) error {
		if len(p) > maxPacket {
			t.Errorf("a packet of %d bytes", len(p))
		}
		out = append(out, append([]byte(nil), p...))
		return nil
	})
	for _, tr := range traces {
		must.NoError(t, e.trace(tr))
	}
	must.NoError(t, e.flush(1))
	return out
}

func TestWire(t *testing.T) {
	libc := &module{fileKey: fileKey{inode: 7, path: "/lib/libc.so"}}
	python := &module{fileKey: fileKey{inode: 8, path: "/bin/python"}}
	twice := &frame{kind: nativeFrame, module: libc, addr: 1 << 63}
	first := &unwound{cut: "a reason", frames: []*frame{twice, {kind: nativeFrame, module: python, addr: 2}}}
	third := &unwound{
		frames: []*frame{
			{kind: nativeFrame, addr: 9, pid: 3},
			{kind: nativeFrame, name: "gone.so", addr: 10, pid: 3},
			twice,
		},
	}
	sent := []*trace{
		{pid: 1, tid: 2, at: 1 << 60, stack: first},
		{pid: 3, tid: 4, at: 5, stack: &unwound{}},
		{pid: 3, tid: 4, at: 6, stack: third},
		{pid: 8, tid: 9, at: 7, stack: first},
	}
	d := decoder{convert: newConverter(newModules())}
	var got []trace
	for _, p := range packetsOf(t, sent...) {
		var err error
		if got, err = d.traces(p, got); err != nil {
			t.Fatal(err)
		}
	}
	if len(got) != len(sent) {
		t.Fatalf("%d traces of %d arrived", len(got), len(sent))
	}
	for i := range got {
		if diff := cmp.Diff(spelledTrace(sent[i]), spelledTrace(&got[i])); diff != "" {
			t.Errorf("trace %d: %s", i, diff)
		}
	}
	if got[0].stack != got[3].stack || got[0].stack.frames[0] != got[2].stack.frames[2] {
		t.Error("what was said once is there twice")
	}
}

func spelledTrace(tr *trace) []string {
	out := []string{fmt.Sprint(tr.pid, tr.tid, tr.at), tr.stack.cut}
	for _, f := range tr.stack.frames {
		file := f.name
		if f.module != nil {
			file = fmt.Sprint(f.module.inode, f.module.path)
		}
		out = append(out, fmt.Sprint(file, f.addr, f.pid))
	}
	return out
}

// Files come and go for as long as the unwinder runs, more than have numbers at a time.
func TestWireOfManyFiles(t *testing.T) {
	var sent []*trace
	for i := range maxWired + 10 {
		mod := &module{fileKey: fileKey{inode: uint64(i + 1), path: "/lib"}}
		sent = append(sent, &trace{stack: &unwound{frames: []*frame{{kind: nativeFrame, module: mod, addr: 1}}}})
	}
	d := decoder{convert: newConverter(newModules())}
	n := 0
	for _, p := range packetsOf(t, sent...) {
		got, err := d.traces(p, nil)
		must.NoError(t, err)
		for i := range got {
			n++
			if f := got[i].stack.frames[0]; f.module != nil && f.module.inode != uint64(n) {
				t.Fatalf("trace %d has a frame of file %d", n, f.module.inode)
			}
		}
	}
	if n != len(sent) {
		t.Errorf("%d traces of %d arrived", n, len(sent))
	}
}

// Numbers begin anew before there are too many; the stacks stay what they are.
func TestWireForgets(t *testing.T) {
	mod := &module{fileKey: fileKey{inode: 7, path: "/lib/libc.so"}}
	d := decoder{convert: newConverter(newModules())}
	e := newEncoder(func(p []byte) error {
		traces, err := d.traces(p, nil)
		for _, tr := range traces {
			for i, f := range tr.stack.frames {
				if f.addr != tr.at+uint64(i) {
					t.Fatalf("frame %d of trace %d is %+v", i, tr.at, f)
				}
			}
		}
		return err
	})
	for at := range uint64(3 * maxStacks) {
		s := &unwound{}
		for i := range uint64(7) {
			s.frames = append(s.frames, &frame{kind: nativeFrame, module: mod, addr: at + i})
		}
		must.NoError(t, e.trace(&trace{at: at, stack: s}))
	}
	must.NoError(t, e.flush(1))
	if len(d.stacks) == 0 || len(d.stacks) > maxStacks || len(d.frames) > maxNumbered || len(d.modules) != 1 {
		t.Errorf("%d stacks, %d frames, %d modules", len(d.stacks), len(d.frames), len(d.modules))
	}
}

// Packets stay packets, whatever the traces are.
func TestWireBounds(t *testing.T) {
	long := &trace{pid: 1, tid: 1, stack: &unwound{}}
	for range 2 * maxFrames {
		long.stack.frames = append(
			long.stack.frames,
			&frame{kind: nativeFrame, module: &module{fileKey: fileKey{path: strings.Repeat("x", 2*maxText)}}},
		)
	}
	unknown := &trace{pid: 1, tid: 1, stack: &unwound{}}
	for range 2 * maxFrames {
		unknown.stack.frames = append(unknown.stack.frames,
			&frame{kind: nativeFrame, name: strings.Repeat("y", maxNameLength)})
	}
	d := decoder{convert: newConverter(newModules())}
	n := 0
	for _, p := range packetsOf(t, long, unknown, long) {
		traces, err := d.traces(p, nil)
		must.NoError(t, err)
		n += len(traces)
	}
	if n != 3 {
		t.Errorf("%d traces arrived", n)
	}
}

func FuzzWire(f *testing.F) {
	mod := &module{fileKey: fileKey{inode: 7, path: "/lib/libc.so"}}
	for _, p := range packetsOf(
		f,
		&trace{
			pid: 1, tid: 2, stack: &unwound{cut: "x", frames: []*frame{{module: mod, addr: 5}, {name: "y", addr: 6}}},
		},
	) {
		f.Add(p)
	}
	f.Add([]byte{wireFailed, 1, 0, 'x'})
	f.Add([]byte{wireTrace})
	fuzzing.Run(f, func(t *testing.T, packet []byte) {
		d := decoder{convert: newConverter(newModules())}
		traces, err := d.traces(packet, nil)
		for _, tr := range traces {
			if err != nil || tr.stack == nil || len(tr.stack.frames) > maxFrames {
				t.Errorf("%+v, %v", tr, err)
			}
		}
	})
}
