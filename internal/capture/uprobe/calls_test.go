package uprobe_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// Parts of a cookie, see bpf/event.h.
const deref = 1 << 40

func sel(params ...uint64) (cookie uint64) {
	for i, p := range params {
		cookie |= p << (16 + 4*i)
	}
	return cookie
}

func aux(param uint64) uint64 { return param << 32 }
func shape(s uint64) uint64   { return s << 36 }

// args is the part of an event that a call's arguments decide.
type args struct {
	Func  uint16
	Flags event.Flags
	Ret   int32
	Args  [4]uint64
}

func argsOf(es []event.Event) (out []args) {
	for _, e := range es {
		out = append(out, args{e.Func, e.Flags, e.Ret, e.Args})
	}
	return out
}

func block(x, y, z, shared uint64) uint64 { return x | y<<11 | z<<22 | shared<<32 }
func grid(x, y, z uint64) uint64          { return x | y<<32 | z<<48 }

func TestLaunchArguments(t *testing.T) {
	dir := buildVictim(t)
	eachMode(t, func(t *testing.T, mode uprobe.Mode) {
		v, r := startVictim(t, dir), newRings(t, 1<<20)
		thunk := want{name: "v_tick"} // stands in where there is no thunk
		if v.elf().Machine.String() == "EM_X86_64" {
			thunk = want{name: "v_thunk_launch", cookie: shape(1)}
		}
		attach(t, newAttacher(t, mode, r), v, want{name: "v_launch", cookie: shape(1)}, thunk,
			want{name: "v_launch_ex", cookie: shape(2)}, want{name: "v_rt_launch", cookie: shape(3)},
			want{name: "v_rt_launch_ex", cookie: shape(4)}, want{name: "v_many", cookie: sel(15, 7, 1, 9) | aux(12)})
		v.do("launches")
		want := []args{
			{0, 0, 0, [4]uint64{0xf1, 0x7fff12345678, grid(100000, 65535, 65534), block(1024, 512, 64, 49152)}},
			{1, 0, 0, [4]uint64{0xf2, 8, grid(1, 2, 3), block(4, 5, 6, 7)}},
			{0, 0, 0, [4]uint64{0xf2, 8, grid(1, 2, 3), block(4, 5, 6, 7)}}, // the thunk jumps to v_launch
			{2, 0, 0, [4]uint64{0xf3, 0x51, grid(1, 2, 3), block(4, 5, 6, 777)}},
			{3, 0, 0, [4]uint64{0xf4, 0x53, grid(21, 22, 23), block(24, 25, 26, 999)}},
			{4, 0, 0, [4]uint64{0xf5, 0x52, grid(7, 8, 9), block(10, 11, 12, 888)}},
			{2, event.Fault, 0, [4]uint64{0xf6}},
			{5, 0, 12, [4]uint64{15, 7, 1, 9}},
		}
		if thunk.name == "v_tick" {
			want = append(want[:1], want[3:]...)
		}
		if diff := cmp.Diff(want, argsOf(r.events())); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		r.noLosses()
	})
}

// Copies are timed where they block: the same layout must come out of the return.
func TestCopyArguments(t *testing.T) {
	dir := buildVictim(t)
	const h2d, d2d, byPointers = 1 << 56, 3 << 56, 4 << 56
	eachMode(t, func(t *testing.T, mode uprobe.Mode) {
		for _, timed := range []bool{false, true} {
			v, r := startVictim(t, dir), newRings(t, 1<<20)
			attach(t, newAttacher(t, mode, r), v,
				want{name: "v_copy_2d", cookie: shape(5) | sel(0, 0, 0, 2), timed: timed},
				want{name: "v_copy_3d", cookie: shape(6), timed: timed})
			v.do("copies")
			flags := event.Flags(0)
			if timed {
				flags = event.Timed
			}
			want := []args{
				{0, flags, 0, [4]uint64{0xa2, 0xa1, 2000, 0x61 | h2d}},
				{1, flags, 0, [4]uint64{0xb2, 0xb1, 6000, 0 | d2d}}, // no selector: no stream
				{1, flags, 0, [4]uint64{0xb3, 0xb1, 6000, 0 | byPointers}},
				{0, flags | event.Fault, 0, [4]uint64{0, 0, 0, 0x64 | byPointers}},
			}
			if diff := cmp.Diff(want, argsOf(r.events())); diff != "" {
				t.Errorf("timed %v: events (-want +got):\n%s", timed, diff)
			}
			r.noLosses()
		}
	})
}

func TestResults(t *testing.T) {
	dir := buildVictim(t)
	eachMode(t, func(t *testing.T, mode uprobe.Mode) {
		v, r := startVictim(t, dir), newRings(t, 1<<20)
		attach(t, newAttacher(t, mode, r), v, want{name: "v_alloc", cookie: sel(1, 2) | deref, timed: true},
			want{name: "v_many", cookie: sel(15, 7, 1, 9) | aux(12), timed: true})
		v.do("alloc 4096")
		v.do("alloc 0")
		v.do("launches")
		es := argsOf(r.events())
		if len(es) != 3 {
			t.Fatalf("%d events, want 3", len(es))
		}
		es[1].Args[0] = 0 // an address on the victim's stack: the call failed and gave no result
		want := []args{
			{0, event.Timed | event.Deref, 0, [4]uint64{0x7f0000001000, 4096}},
			{0, event.Timed, 2, [4]uint64{0, 0}},
			{1, event.Timed, 120, [4]uint64{15, 7, 1, 9 | 12<<56}},
		}
		if diff := cmp.Diff(want, es); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		r.noLosses()
	})
}

// checkTimes compares an event with what the victim measured: the call lay within
// the victim's command, and took at least what it measured inside.
func checkTimes(t *testing.T, e event.Event, a answer) {
	t.Helper()
	if e.TS < a.from || e.End() > a.to || e.Dur < uint64(a.n) {
		t.Errorf("func %d: %d ns from %d to %d; the victim measured %d ns between %d and %d",
			e.Func, e.Dur, e.TS, e.End(), a.n, a.from, a.to)
	}
}

func TestNestedAndTailCalls(t *testing.T) {
	dir := buildVictim(t)
	eachMode(t, func(t *testing.T, mode uprobe.Mode) {
		v, r := startVictim(t, dir), newRings(t, 1<<20)
		attach(t, newAttacher(t, mode, r), v, want{name: "v_wait", timed: true},
			want{name: "v_outer", timed: true}, want{name: "v_tail", timed: true})
		for command, ret := range map[string][2]int32{"outer": {7, 8}, "tail": {7, 7}} {
			for range 20 {
				a := v.do("%s 20000", command)
				es := r.events()
				if len(es) != 2 || es[0].Func != 0 || es[1].Func == 0 || es[0].Ret != ret[0] || es[1].Ret != ret[1] {
					t.Fatalf("%s: %+v", command, es)
				}
				inner, outer := es[0], es[1]
				checkTimes(t, inner, a)
				checkTimes(t, outer, a)
				if outer.TS > inner.TS || outer.End() < inner.End() {
					t.Errorf("%s: the inner call, %d to %d, is not inside the outer, %d to %d",
						command, inner.TS, inner.End(), outer.TS, outer.End())
				}
			}
		}
		r.noLosses()
	})
}

// TestAgentIsNotSeen: what the agent's thread calls to get out of CUPTI is none of the program's calls, and no loss
// either.
func TestAgentIsNotSeen(t *testing.T) {
	dir := buildVictim(t)
	eachMode(t, func(t *testing.T, mode uprobe.Mode) {
		v, r := startVictim(t, dir), newRings(t, 1<<20)
		attach(t, newAttacher(t, mode, r), v, want{name: "v_wait", timed: true})
		v.do("agent 1000")
		a := v.do("wait 1000")
		v.do("agent 1000")
		es := r.events()
		if len(es) != 1 {
			t.Fatalf("%d events, want 1: %+v", len(es), es)
		}
		checkTimes(t, es[0], a)
		r.noLosses()
	})
}

func TestThunkIsTimed(t *testing.T) {
	dir := buildVictim(t)
	eachMode(t, func(t *testing.T, mode uprobe.Mode) {
		v, r := startVictim(t, dir), newRings(t, 1<<20)
		if v.elf().Machine.String() != "EM_X86_64" {
			t.Skip("the thunk is x86-64")
		}
		fn := v.function("v_thunk_wait")
		if at := uprobe.Choose(fn.Code, fn.Addr, v.elf().Machine); at.Offset != 10 || !at.Cheap {
			t.Fatalf("point %+v, want +10", at)
		}
		attach(t, newAttacher(t, mode, r), v, want{name: "v_thunk_wait", cookie: sel(1, 2), timed: true})
		a := v.do("thunkwait 30000")
		es := r.events()
		if len(es) != 1 || es[0].Ret != 7 || es[0].Args[0] != 30000 {
			t.Fatalf("%+v", es)
		}
		checkTimes(t, es[0], a)
		r.noLosses()
	})
}

// Deeper than the per-thread stack: counted, not timed, and said so.
func TestDepth(t *testing.T) {
	dir := buildVictim(t)
	eachMode(t, func(t *testing.T, mode uprobe.Mode) {
		v, r := startVictim(t, dir), newRings(t, 1<<20)
		attach(t, newAttacher(t, mode, r), v, want{name: "v_nest", cookie: sel(1), timed: true})
		v.do("nest 7")
		v.do("nest 1")
		var got []args
		for _, e := range argsOf(r.events()) {
			got = append(got, args{Flags: e.Flags, Ret: e.Ret, Args: e.Args})
		}
		want := []args{
			{0, 0, 0, [4]uint64{3}},
			{0, 0, 0, [4]uint64{2}},
			{0, 0, 0, [4]uint64{1}},
			{0, event.Timed, 4, [4]uint64{4}},
			{0, event.Timed, 5, [4]uint64{5}},
			{0, event.Timed, 6, [4]uint64{6}},
			{0, event.Timed, 7, [4]uint64{7}},
			{0, event.Timed, 1, [4]uint64{1}},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([4]uint64{1: 3}, r.losses()); diff != "" {
			t.Errorf("losses (-want +got):\n%s", diff)
		}
	})
}

// A call that never returns leaves nothing that a later call could be taken for.
func TestLongjmpOverTimedCall(t *testing.T) {
	dir := buildVictim(t)
	eachMode(t, func(t *testing.T, mode uprobe.Mode) {
		v, r := startVictim(t, dir), newRings(t, 1<<20)
		attach(t, newAttacher(t, mode, r), v, want{name: "v_jump", timed: true},
			want{name: "v_tick", cookie: sel(1), timed: true}, want{name: "v_wait", timed: true})
		if a := v.do("jump 50"); a.n != 50 {
			t.Fatalf("the victim came back from %d of 50 jumps", a.n)
		}
		a := v.do("wait 5000")
		es := r.events()
		if len(es) != 51 {
			t.Fatalf("%d events, want 50 ticks and 1 wait", len(es))
		}
		for i, e := range es[:50] {
			if e.Func != 1 || e.Args[0] != uint64(i) || e.Ret != int32(i) || e.Flags != event.Timed {
				t.Errorf("event %d: %+v", i, e)
			}
		}
		checkTimes(t, es[50], a)
		r.noLosses()
	})
}

// A call that is running when the probes come has no entry: it yields no event, and
// the next is seen whole.
func TestAttachInsideCall(t *testing.T) {
	dir := buildVictim(t)
	eachMode(t, func(t *testing.T, mode uprobe.Mode) {
		v, r := startVictim(t, dir), newRings(t, 1<<20)
		a := newAttacher(t, mode, r)
		v.send("outer 300000000")
		attach(t, a, v, want{name: "v_wait", timed: true}, want{name: "v_outer", timed: true})
		v.receive()
		missed := r.events()
		if len(missed) != 0 {
			t.Skip("the probes came before the call: ", missed)
		}
		answer := v.do("outer 1000")
		es := r.events()
		if len(es) != 2 {
			t.Fatalf("%d events, want 2: %+v", len(es), es)
		}
		checkTimes(t, es[1], answer)
	})
}

func TestFullRing(t *testing.T) {
	dir := buildVictim(t)
	eachMode(t, func(t *testing.T, mode uprobe.Mode) {
		v, r := startVictim(t, dir), newRings(t, 4096)
		attach(t, newAttacher(t, mode, r), v, want{name: "v_tick"}, want{name: "v_alloc", timed: true})
		v.do("tick 1000")
		v.do("alloc 1")
		n, lost := len(r.events()), r.losses()
		if lost[0] == 0 || uint64(n)+lost[0] != 1001 || lost[1]+lost[2]+lost[3] != 0 {
			t.Errorf("%d events, losses %v: want 1,001 in sum, and nothing lost for another reason", n, lost)
		}
	})
}
