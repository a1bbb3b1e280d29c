package threads

import (
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

func TestCallTables(t *testing.T) {
	amd64, arm64 := callsOf("amd64"), callsOf("arm64")
	for nr, want := range map[uint16]string{
		0: "read", 202: "futex", 232: "epoll_wait", event.NoSyscall: "", 9999: "call 9999",
	} {
		if got := amd64.name(nr); got != want {
			t.Errorf("amd64 %d is %q, want %q", nr, got, want)
		}
	}
	for nr, want := range map[uint16]string{63: "read", 98: "futex", 22: "epoll_pwait"} {
		if got := arm64.name(nr); got != want {
			t.Errorf("arm64 %d is %q, want %q", nr, got, want)
		}
	}
	if got := callsOf("riscv64").name(63); got != "call 63" {
		t.Errorf("an architecture without a table: %q", got)
	}
}

func TestReasons(t *testing.T) {
	const inode = 42
	file := func(typ uint64) []uint64 { return []uint64{0, 0, 3, typ<<48 | inode} }
	for name, c := range map[string]struct {
		object string
		event  event.Event
		want   Reason
		text   string
	}{
		"futex":        {"", off(1, 1, blocked, 202, 0, 0, 0xabc), Futex, "a lock or condition (futex 0xabc)"},
		"pipe":         {"pipe:[42]", off(1, 1, blocked, 0, file(typePipe)...), Pipe, "read of pipe:[42]"},
		"pipe unnamed": {"", off(1, 1, blocked, 1, file(typePipe)...), Pipe, "write of descriptor 3"},
		"socket": {
			"socket:[42]", off(1, 1, blocked, 45, file(typeSocket)...), Socket, "recvfrom of socket:[42]",
		},
		"socket read": {"socket:[42]", off(1, 1, blocked, 0, file(typeSocket)...), Socket, "read of socket:[42]"},
		"file":        {"/data/a", off(1, 1, blocked, 17, file(typeRegular)...), Disk, "pread64 of /data/a"},
		"anonymous": {
			"anon_inode:[eventfd]", off(1, 1, blocked, 0, file(typeRegular)...), Event, "read of anon_inode:[eventfd]",
		},
		"nvidia": {
			"/dev/nvidia0", off(1, 1, blocked, 16, file(typeCharacter)...), Nvidia, "ioctl of /dev/nvidia0",
		},
		"terminal":     {"/dev/pts/0", off(1, 1, blocked, 0, file(typeCharacter)...), Device, "read of /dev/pts/0"},
		"sleep":        {"", off(1, 1, blocked, 35), Sleep, "nanosleep"},
		"child":        {"", off(1, 1, blocked, 61), Child, "wait4"},
		"poll":         {"", off(1, 1, blocked, 7), Poll, "poll"},
		"lock of file": {"/l", off(1, 1, blocked, 73, file(typeRegular)...), FileLock, "flock of /l"},
		"another":      {"", off(1, 1, blocked, 318), Call, "getrandom"},
		"stopped":      {"", off(1, 1, blocked, event.Stopped), Stop, "stopped"},
		"major fault": {
			"", off(1, 1, blocked|event.Uninterruptible|event.MajorFault, event.NoSyscall), MajorFault,
			"page fault (major)",
		},
		"minor fault": {
			"", off(1, 1, blocked|event.Uninterruptible, event.NoSyscall), MinorFault, "page fault (minor)",
		},
		"unknown in D":  {"", off(1, 1, blocked|event.Uninterruptible, 0, 0, 0, 3), Disk, "read of descriptor 3"},
		"unknown call":  {"", off(1, 1, blocked, 9999), Call, "call 9999"},
		"unknown descr": {"", off(1, 1, blocked, 0, 0, 0, 3), Call, "read of descriptor 3"},
	} {
		t.Run(name, func(t *testing.T) {
			rec := &recording.Recording{Meta: recording.Meta{Host: recording.Host{Arch: "amd64"}}}
			if c.object != "" {
				rec.Meta.Objects = []recording.Object{{PID: 7, Inode: inode, Name: c.object}}
			}
			why := newClassifier(rec)
			got := why.reason(&c.event)
			if text := why.text(&c.event, got); got != c.want || text != c.text {
				t.Errorf("%v, %q; want %v, %q", got, text, c.want, c.text)
			}
		})
	}
}

func TestEveryReasonAndStateHasAName(t *testing.T) {
	seen := map[string]bool{}
	for r := None; r < Reasons; r++ {
		if name := r.String(); seen[name] || name == "?" {
			t.Errorf("reason %d is %q", r, name)
		} else {
			seen[name] = true
		}
	}
	if Reasons.String() != "?" || Reason(200).String() != "?" || State(200).String() != "?" ||
		Activity(200).String() != "?" {
		t.Error("what does not exist has a name")
	}
}

func TestWho(t *testing.T) {
	const us, them = 7<<32 | 8, 9<<32 | 10
	for name, c := range map[string]struct {
		event event.Event
		want  Who
	}{
		"a thread of ours": {off(1, 9, blocked, 202, 1, us), Who{PID: 7, TID: 8, Name: "worker"}},
		"another thread":   {off(1, 9, blocked, 202, 1, them), Who{PID: 9, TID: 10, Name: "other", OtherThread: true}},
		"a timer":          {off(1, 9, blocked|event.FromIRQ, 202, 1, 0), Who{Interrupt: true}},
		"nobody seen":      {off(1, 9, blocked, 202, 0, 0), Who{Unknown: true}},
		"a displacer":      {off(1, 9, preempted, 0, 0, them), Who{PID: 9, TID: 10, Name: "other", OtherThread: true}},
	} {
		t.Run(name, func(t *testing.T) {
			rec := recordingOf(c.event)
			rec.Meta.Threads = append(rec.Meta.Threads, recording.Thread{PID: 7, TID: 8, Name: "worker"})
			rec.Meta.OtherThreads = []recording.Thread{{PID: 9, TID: 10, Name: "other"}}
			got, ok := NewWaits(rec).Of(Interval{Wait: 0})
			if !ok || got.By != c.want {
				t.Errorf("%+v, %v; want %+v", got.By, ok, c.want)
			}
		})
	}
	throttled, _ := NewWaits(recordingOf(off(1, 9, preempted, 0))).Of(Interval{Wait: 0})
	if !throttled.Throttled || throttled.Reason != None {
		t.Errorf("a thread off its idle CPU: %+v", throttled)
	}
	if _, ok := NewWaits(recordingOf()).Of(Interval{Wait: 3}); ok {
		t.Error("an index beyond the events has details")
	}
}

func TestStackOfTheSleep(t *testing.T) {
	sample := func(ts, stack uint64, cause event.SampleCause) event.Event {
		return event.Event{Kind: event.Sample, TS: ts, PID: 7, TID: 7, Func: uint16(cause), Args: [4]uint64{stack}}
	}
	const second = 1_000_000_000
	rec := recordingOf(sample(second-sampleSlack-1, 1, event.Switch), sample(second-50, 2, event.Switch),
		sample(second+9000, 3, event.Switch), sample(second, 4, event.Clock), off(second, 500, blocked, 202),
		off(2*second, 500, blocked, 202))
	for i, want := range map[int32]uint64{3: 2, 5: 0} {
		if w, ok := NewWaits(rec).Of(Interval{Wait: i}); !ok || w.Stack != want {
			t.Errorf("event %d: stack %d, want %d", i, w.Stack, want)
		}
	}
}
