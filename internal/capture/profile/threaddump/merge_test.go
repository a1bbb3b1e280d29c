package threaddump

import (
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/profile"
	"github.com/inferscope/inferscope/internal/recording/dump"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// stacks are made of letters: E is the interpreter's loop, I other code of the
// interpreter, and everything else code of a library.
func letters(s string) (native, *space) {
	interpreter := &module{Mapping: proc.Mapping{Inode: 1, Path: "/bin/python3"}}
	library := &module{Mapping: proc.Mapping{Inode: 2, Path: "/lib/lib.so"}}
	sp := &space{names: map[place]string{}}
	var n native
	for i, c := range s {
		p := place{library, uint64(i)}
		switch c {
		case 'E':
			p = place{interpreter, loopAt}
		case 'I':
			p = place{interpreter, uint64(i)}
		}
		sp.names[p] = string(c)
		n.frames = append(n.frames, p)
	}
	return n, sp
}

const loopAt = 1000

// pythonLetters makes frames of letters; a capital one was called by C code.
func pythonLetters(s string) []profile.PythonFrame {
	var out []profile.PythonFrame
	for _, c := range s {
		out = append(out, profile.PythonFrame{Frame: recordtest.Python(string(c), "f.py", 1), Entry: c < 'a'})
	}
	return out
}

func TestMerge(t *testing.T) {
	for _, tt := range []struct{ native, python, want string }{
		{"ab", "", "ab"},
		{"abEIc", "pQ", "abpQ[I]c"},            // two Python frames in one call of the loop
		{"aEIbIEIc", "PqR", "aP[I]b[I]qR[I]c"}, // C code between Python functions
		{"aI", "pQ", "aIpQ"},                   // cut off before the loop
		{"aEIb", "", "aIb"},                    // the interpreter has no frame yet
		{"aEbEc", "Pqr", "aPbqrc"},             // the entry of the last is not marked
		{"aEbEc", "Pqrs", "aPbqrsc"},           // none is lost where the two do not agree
		{"aEbEc", "p", "apbc"},
	} {
		n, sp := letters(tt.native)
		m := &merger{space: sp, interp: &interpreter{
			module: proc.Mapping{
				Inode: 1,
				Path:  "/bin/python3",
			}, runs: func(addr uint64) bool { return addr == loopAt },
		}}
		got := ""
		for _, f := range m.merge(n, pythonLetters(tt.python)) {
			name := f.Name
			if f.Internal {
				name = "[" + name + "]"
			}
			got += name
		}
		if got != tt.want {
			t.Errorf("%s with %s: %s, want %s", tt.native, tt.python, got, tt.want)
		}
	}
}

func TestLabels(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("has the numbers of system calls of amd64")
	}
	taking := []dump.Frame{
		{Frame: recordtest.Native("pthread_cond_timedwait", "libc.so.6")},
		{Frame: recordtest.Native("take_gil", "python3")},
	}
	for _, tt := range []struct {
		raw    raw
		frames []dump.Frame
		want   dump.Thread
	}{
		{raw{State: 0, OnCpu: 1}, nil, dump.Thread{State: dump.Active}},
		{raw{State: 0}, nil, dump.Thread{State: dump.Runnable}},
		{raw{State: 4, Syscall: 202}, nil, dump.Thread{State: dump.Stopped}},
		{raw{State: 1, ExitState: 16}, nil, dump.Thread{State: dump.Exited}},
		{
			raw{State: 1, Syscall: 202, Arguments: [2]uint64{0xabc0}},
			nil,
			dump.Thread{State: dump.Idle, Reason: "lock or condition", Doing: "a lock or condition (futex 0xabc0)"},
		},
		{
			raw{State: 1, Syscall: 202},
			taking,
			dump.Thread{
				State: dump.Idle, Reason: "lock or condition", Doing: "a lock or condition (futex 0x0)",
				Activity: "waiting for the GIL",
			},
		},
		{raw{State: 1, Syscall: 230}, nil, dump.Thread{State: dump.Idle, Reason: "sleep", Doing: "clock_nanosleep"}},
		{
			raw{State: 2, Syscall: -1},
			nil,
			dump.Thread{State: dump.Idle, Reason: "page fault (minor)", Doing: "page fault (minor)"},
		},
		{
			raw{State: 1, Syscall: 232, Arguments: [2]uint64{3}},
			nil,
			dump.Thread{State: dump.Idle, Reason: "poll", Doing: "epoll_wait"},
		},
		{
			raw{State: 1, Syscall: 0, Arguments: [2]uint64{1 << 19}},
			nil,
			dump.Thread{State: dump.Idle, Reason: "system call", Doing: "read of descriptor 524288"},
		},
	} {
		got := dump.Thread{State: stateOf(&tt.raw), Frames: tt.frames}
		describe(threads.Describe).label(1, &tt.raw, &got)
		got.Frames = nil
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", tt.raw, diff)
		}
	}
}

func TestNames(t *testing.T) {
	var r raw
	for i, c := range []byte("a\xffb\x00junk") {
		r.Comm[i] = int8(c)
	}
	if got := name(&r); got != "a?b" {
		t.Errorf("name %q, want a?b", got)
	}
	var full raw
	for i := range full.Comm {
		full.Comm[i] = 'x'
	}
	if got := name(&full); len(got) != len(full.Comm) {
		t.Errorf("name %q, want %d letters", got, len(full.Comm))
	}
}

func TestFileTypes(t *testing.T) {
	for name, want := range map[string]uint64{
		"pipe:[1]": 1, "socket:[2]": 12, "anon_inode:[eventfd]": 0, "/dev/nvidia0": 2, "/dev/shm/x": 8, "/models/w": 8,
		"/memfd:x (deleted)": 8,
	} {
		if got := fileType(name); got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
}

func TestOneDumpOfATargetAtATime(t *testing.T) {
	taker := New(nil, threads.Describe)
	if !taker.enter(1) || taker.enter(1) {
		t.Error("one dump of a target, not two")
	}
	for pid := uint32(2); pid <= maxAtATime; pid++ {
		if !taker.enter(pid) {
			t.Errorf("target %d is kept out", pid)
		}
	}
	if taker.enter(99) {
		t.Error("more dumps at a time than allowed")
	}
	taker.leave(1)
	if !taker.enter(99) {
		t.Error("no place became free")
	}
}
