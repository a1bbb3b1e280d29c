package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/dump"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// family is a target of user 7 with children: a plain one, one that runs a setuid program for a while, and one that is
// root's all the time. Their real user is 7, as that of setuid programs is.
func family() (main proc.Process, children []proc.Process) {
	main = process(10, 0, second)
	plain, visitor, foreign := process(11, 10, second), process(12, 10, second), process(13, 10, second)
	visitor.Owned = []proc.Stay{
		{From: second, Owner: 7},
		{From: 1010 * second, Owner: proc.Root},
		{From: 1020 * second, Owner: 7},
	}
	foreign.Owner, foreign.Cmdline = proc.Root, "secret"
	return main, []proc.Process{plain, visitor, foreign}
}

// fetchAs records pid 10 as a user.
func fetchAs(t *testing.T, d *Daemon, uid uint32) (*recording.Recording, error) {
	t.Helper()
	r, err := d.Record(context.Background(), api.Asker{UID: uid}, 10, 0, 0)
	if err != nil {
		return nil, err
	}
	defer r.Release()
	var buf bytes.Buffer
	must.NoError(t, recording.WriteStream(&buf, r.Meta(), r.Events()))
	return recording.ReadStream(&buf, recording.DefaultLimits())
}

// TestRecordingsShowNobodyElsesProcesses: what a child does as root is for root alone, before and after it the owner's.
func TestRecordingsShowNobodyElsesProcesses(t *testing.T) {
	w := newWorld(t)
	main, children := family()
	d, _ := w.start(Options{}, append([]proc.Process{main}, children...)...)
	w.source.maps(13, "/secret.so", 1001*second)
	for _, pid := range []uint32{10, 11, 12, 13} {
		w.rings.put(call(pid, 1005*second), call(pid, 1015*second), call(pid, 1025*second))
		w.watcher.setThreads(pid, recording.Thread{PID: pid, TID: pid, Name: "t"})
	}
	w.watcher.mu.Lock()
	w.watcher.losses = []loss.Loss{{Reason: loss.LibraryRefused, Count: 1, PID: 13, Where: "pid 13", Detail: "/secret"}}
	w.watcher.mu.Unlock()
	w.now.Store(1030 * second)

	whole := fetch(t, d, 10, 0, 0)
	if len(whole.Events) != 12 || len(whole.Meta.Processes) != 4 {
		t.Errorf("root sees %d events of %d processes, want 12 of 4", len(whole.Events), len(whole.Meta.Processes))
	}
	rec, err := fetchAs(t, d, 7)
	must.NoError(t, err)
	var got []string
	for _, e := range rec.Events {
		got = append(got, fmt.Sprintf("%d@%d", e.PID, e.TS/second))
	}
	slices.Sort(got)
	want := []string{"10@1005", "10@1015", "10@1025", "11@1005", "11@1015", "11@1025", "12@1005", "12@1025"}
	if !slices.Equal(got, want) {
		t.Errorf("the owner sees %v, want %v", got, want)
	}
	for _, p := range rec.Meta.Processes {
		if p.PID == 13 {
			t.Errorf("the owner is told of %+v", p)
		}
	}
	for _, th := range rec.Meta.Threads {
		if th.PID == 13 {
			t.Errorf("the owner is told of %+v", th)
		}
	}
	for _, l := range rec.Meta.Libraries {
		if l.PID == 13 {
			t.Errorf("the owner is told of %+v", l)
		}
	}
	withheld := uint64(0)
	for _, l := range rec.Meta.Losses {
		if l.Where == "pid 13" {
			t.Errorf("the owner is told of %+v", l)
		}
		if l.Reason == loss.OthersWithheld {
			withheld = l.Count
		}
	}
	if withheld != 2 {
		t.Errorf("%d processes are said to be left out, want 2", withheld)
	}
	if _, err := fetchAs(t, d, 8); clierror.CodeOf(err) != clierror.Permission {
		t.Errorf("another user's recording: %v", err)
	}
}

// TestTheTargetIsAskedItself: a target that runs as somebody else since the daemon looked at it is not handed out.
func TestTheTargetIsAskedItself(t *testing.T) {
	w := newWorld(t)
	d, _ := w.start(Options{}, process(10, 0, second))
	if _, err := fetchAs(t, d, 7); err != nil {
		t.Fatal(err)
	}
	d.follower.guard = func(*proc.Process, uint32) (guard, error) { return nil, errors.New("it has changed") }
	if _, err := fetchAs(t, d, 7); clierror.CodeOf(err) != clierror.Permission {
		t.Errorf("it belongs to another now: %v", err)
	}
	d.follower.guard = fakeGuardOf
	// The watcher knows it before the change has come here.
	w.watcher.mu.Lock()
	for id, p := range w.watcher.procs {
		p.Owner, p.Owned = proc.Root, []proc.Stay{{From: second, Owner: 7}, {From: 1001 * second, Owner: proc.Root}}
		w.watcher.procs[id] = p
	}
	w.watcher.mu.Unlock()
	if _, err := fetchAs(t, d, 7); clierror.CodeOf(err) != clierror.Permission {
		t.Errorf("the watcher knows that it belongs to another: %v", err)
	}
}

// changingDumper returns a dump of what it is asked for.
type changingDumper struct{}

func (changingDumper) Take(_ context.Context, pid uint32, processes []*proc.Process) (*dump.Dump, error) {
	d := dump.New("test", pid)
	for _, p := range processes {
		d.Processes = append(d.Processes, dump.Process{PID: p.PID})
	}
	return d, nil
}

// TestDumpsAreCheckedAfterwards: what was read is not shown of a process that has changed meanwhile.
func TestDumpsAreCheckedAfterwards(t *testing.T) {
	w := newWorld(t)
	main, children := family()
	d, _ := w.start(Options{}, append([]proc.Process{main}, children...)...)
	d.parts.Dumper = changingDumper{}
	d.follower.guard = func(p *proc.Process, uid uint32) (guard, error) {
		if p.PID == 11 {
			return &fakeGuard{err: errors.New("it has replaced its program")}, nil
		}
		return fakeGuardOf(p, uid)
	}
	out, err := d.Dump(context.Background(), api.DumpRequest{PID: 10, Children: true, Asker: api.Asker{UID: 7}})
	must.NoError(t, err)
	var pids []uint32
	for _, p := range out.Processes {
		pids = append(pids, p.PID)
	}
	if !slices.Equal(pids, []uint32{10, 12}) || out.Withheld != 2 {
		t.Errorf("stacks of %v, %d left out; want those of 10 and 12, 2 left out", pids, out.Withheld)
	}
}

// TestStatusHasOwners: the server cuts the status down by them.
func TestStatusHasOwners(t *testing.T) {
	w := newWorld(t)
	main, children := family()
	d, _ := w.start(Options{}, append([]proc.Process{main}, children...)...)
	targets := d.Status().Targets
	if len(targets) != 1 || targets[0].Owner != 7 || len(targets[0].Others) != 1 || !targets[0].Others[13] {
		t.Errorf("targets %+v", targets)
	}
	if !d.Owns(7) || d.Owns(8) {
		t.Error("who owns a target is not known")
	}
	hidden := main
	hidden.Owner = proc.Root
	w.watcher.emit(proc.Renewed, hidden, 1001*second)
	until(func() bool { o, _ := d.Lookup(10); return o.UID == proc.Root })
	if d.Owns(7) {
		t.Error("a target that came to run as somebody else is its user's still")
	}
}

// TestLossesAreAttributed: to the target whose process they concern.
func TestLossesAreAttributed(t *testing.T) {
	w := newWorld(t)
	main, children := family()
	w.watcher.losses = []loss.Loss{
		{Reason: loss.ProcessesSkipped, Count: 5, PID: 10, Where: "pid 10"},
		{Reason: loss.LibraryRefused, Count: 1, PID: 12, Where: "pid 12", Detail: "/x"},
		{Reason: loss.RingFull, Count: 1, CPU: loss.CPUOf(1), Where: "cpu 1"},
		{Reason: loss.AgentRefused, Count: 1, PID: 20, Where: "pid 20"},
	}
	d, _ := w.start(Options{}, append([]proc.Process{main, process(20, 0, second)}, children...)...)
	for _, tt := range d.Status().Targets {
		var got []loss.Reason
		for _, l := range tt.Losses {
			got = append(got, l.Reason)
		}
		want := []loss.Reason{loss.ProcessesSkipped, loss.LibraryRefused}
		if tt.PID == 20 {
			want = []loss.Reason{loss.AgentRefused}
		}
		if !slices.Equal(got, want) {
			t.Errorf("target %d has lost %v, want %v", tt.PID, got, want)
		}
	}
}
