package sampler

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// packetsOf encodes traces as the helper does.
func packetsOf(t testing.TB, traces ...*trace) [][]byte {
	t.Helper()
	var out [][]byte
	e := encoder{numbers: map[*module]uint32{}, send: func(p []byte) error {
		if len(p) > maxPacket {
			t.Errorf("a packet of %d bytes", len(p))
		}
		out = append(out, append([]byte(nil), p...))
		return nil
	}}
	for _, tr := range traces {
		if err := e.trace(tr); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.flush(1); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestWire(t *testing.T) {
	libc := &module{fileKey: fileKey{inode: 7, path: "/lib/libc.so"}}
	python := &module{fileKey: fileKey{inode: 8, path: "/bin/python"}}
	sent := []*trace{
		{pid: 1, tid: 2, at: 1 << 60, cut: "a reason", frames: []frame{
			{kind: nativeFrame, module: libc, addr: 1 << 63}, {kind: nativeFrame, module: python, addr: 2},
		}},
		{pid: 3, tid: 4, at: 5},
		{pid: 3, tid: 4, at: 6, frames: []frame{
			{kind: nativeFrame, addr: 9, pid: 3}, {kind: nativeFrame, name: "gone.so", addr: 10}, {kind: nativeFrame, module: libc, addr: 11},
		}},
	}
	d := decoder{convert: newConverter(newModules())}
	var got []*trace
	for _, p := range packetsOf(t, sent...) {
		traces, err := d.traces(p)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, traces...)
	}
	text := func(traces []*trace) (out [][]string) {
		for _, tr := range traces {
			words := []string{strings.Join([]string{tr.cut}, "")}
			for _, f := range tr.frames {
				word := f.name
				if f.module != nil {
					word = f.module.path
				}
				words = append(words, word)
			}
			out = append(out, words)
		}
		return out
	}
	if diff := cmp.Diff(text(sent), text(got)); diff != "" {
		t.Error(diff)
	}
	for i, tr := range got {
		if tr.at != sent[i].at || tr.pid != sent[i].pid || tr.tid != sent[i].tid || len(tr.eval) != len(tr.frames) {
			t.Errorf("trace %d is %+v", i, tr)
		}
		for k := range tr.frames {
			if tr.frames[k].addr != sent[i].frames[k].addr || tr.frames[k].pid != sent[i].frames[k].pid {
				t.Errorf("frame %d of trace %d is %+v", k, i, tr.frames[k])
			}
		}
	}
}

// Packets stay packets, whatever the traces are.
func TestWireBounds(t *testing.T) {
	long := &trace{pid: 1, tid: 1}
	for range 2 * maxFrames {
		long.frames = append(long.frames, frame{kind: nativeFrame, module: &module{fileKey: fileKey{path: strings.Repeat("x", 2*maxText)}}})
	}
	unknown := &trace{pid: 1, tid: 1}
	for range 2 * maxFrames {
		unknown.frames = append(unknown.frames, frame{kind: nativeFrame, name: strings.Repeat("y", maxNameLength)})
	}
	d := decoder{convert: newConverter(newModules())}
	n := 0
	for _, p := range packetsOf(t, long, unknown, long) {
		traces, err := d.traces(p)
		if err != nil {
			t.Fatal(err)
		}
		n += len(traces)
	}
	if n != 3 {
		t.Errorf("%d traces arrived", n)
	}
}

func FuzzWire(f *testing.F) {
	mod := &module{fileKey: fileKey{inode: 7, path: "/lib/libc.so"}}
	for _, p := range packetsOf(f, &trace{pid: 1, tid: 2, cut: "x", frames: []frame{{module: mod, addr: 5}, {name: "y", addr: 6}}}) {
		f.Add(p)
	}
	f.Add([]byte{wireFailed, 1, 0, 'x'})
	f.Add([]byte{wireTrace})
	f.Fuzz(func(t *testing.T, packet []byte) {
		d := decoder{convert: newConverter(newModules())}
		traces, err := d.traces(packet)
		for _, tr := range traces {
			if err != nil || len(tr.frames) > maxFrames || len(tr.eval) != len(tr.frames) {
				t.Errorf("%d frames, %d of the loop, %v", len(tr.frames), len(tr.eval), err)
			}
		}
	})
}
