package api

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

func pidsOf(targets []Target) []uint32 {
	var out []uint32
	for _, t := range targets {
		out = append(out, t.PID)
	}
	return out
}

func TestWhoSeesWhichTargets(t *testing.T) {
	socket := serve(t, newFake(), patient())
	for _, c := range []struct {
		name string
		uid  uintptr
		want []uint32
	}{
		{"root", 0, []uint32{alicePID, bobPID}},
		{"alice", alice, []uint32{alicePID}},
		{"bob", bob, []uint32{bobPID}},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := dialAs(t, socket, c.uid)
			got, err := client.Targets(context.Background())
			must.NoError(t, err)
			if d := cmp.Diff(c.want, pidsOf(got)); d != "" {
				t.Errorf("targets (-want +got):\n%s", d)
			}
			st, err := client.Status(context.Background())
			must.NoError(t, err)
			if d := cmp.Diff(c.want, pidsOf(st.Targets)); d != "" {
				t.Errorf("targets of the status (-want +got):\n%s", d)
			}
		})
	}
}

func TestStatusHidesOthersLibrariesAndLosses(t *testing.T) {
	socket := serve(t, newFake(), patient())
	st, err := dialAs(t, socket, alice).Status(context.Background())
	must.NoError(t, err)
	var paths []string
	for _, l := range st.Libraries {
		paths = append(paths, l.Path)
	}
	if d := cmp.Diff([]string{"/a", "/ac"}, paths); d != "" {
		t.Errorf("libraries (-want +got):\n%s", d)
	}
	for _, l := range st.Losses {
		if l.Where != "pid 101" && l.Where != "cpu 1" && (l.Where != "" || l.Detail != "") {
			t.Errorf("loss %+v tells of another's process", l)
		}
	}
	if len(st.Losses) != 4 || st.Losses[0].Where != "cpu 1" || st.Losses[3].Detail != "/ac" {
		t.Errorf("losses = %+v, want all counted, and the own one whole", st.Losses)
	}
	if len(st.Agents) != 1 || st.Agents[0].PID != aliceChild {
		t.Errorf("agents = %+v", st.Agents)
	}
	if len(st.Targets) != 1 || st.Targets[0].Withheld != 1 || len(st.Targets[0].Processes) != 2 {
		t.Errorf("targets = %+v, want one without its child that runs as root, which is counted", st.Targets)
	}
}

func TestOtherUsersAreRefused(t *testing.T) {
	b := newFake()
	client := dialAs(t, serve(t, b, patient()), otherThread)
	ctx := context.Background()
	_, statusErr := client.Status(ctx)
	_, targetsErr := client.Targets(ctx)
	_, recErr := client.Recording(ctx, alicePID, Window{})
	_, unknownErr := client.Recording(ctx, unknown, Window{})
	for _, err := range []error{statusErr, targetsErr, recErr, unknownErr} {
		wantFault(t, err, clierror.Permission)
		if !strings.Contains(err.Error(), "user 40003 owns none") {
			t.Errorf("error %q does not say who asked", err)
		}
	}
	if recErr.Error() != unknownErr.Error() {
		t.Error("a stranger can tell watched pids from others")
	}
	if len(b.recorded) != 0 {
		t.Error("a recording was made for a stranger")
	}
	if v, err := client.Version(ctx); err != nil || v.API != level {
		t.Errorf("version = %+v, %v: it is open to all", v, err)
	}
}

func TestRecordingsOfOthersAreRefused(t *testing.T) {
	b := newFake()
	client := dialAs(t, serve(t, b, patient()), alice)
	if _, err := client.Recording(context.Background(), alicePID, Window{}); err != nil {
		t.Errorf("own target: %v", err)
	}
	_, err := client.Recording(context.Background(), bobPID, Window{})
	wantFault(t, err, clierror.Permission)
	_, err = client.Recording(context.Background(), unknown, Window{})
	wantFault(t, err, clierror.NoProcess)
	if len(b.recorded) != 1 {
		t.Errorf("%d recordings were made, want 1", len(b.recorded))
	}
}

// TestOneUserCannotUseUpTheRequestsOfOthers: each has a rate of their own.
func TestOneUserCannotUseUpTheRequestsOfOthers(t *testing.T) {
	limits := patient()
	limits.Rate = 3
	socket := serve(t, newFake(), limits)
	client := dialAs(t, socket, alice)
	var refused error
	for range 4 {
		if _, err := client.Status(context.Background()); err != nil {
			refused = err
		}
	}
	wantFault(t, refused, clierror.General)
	if !strings.Contains(refused.Error(), "busy") {
		t.Errorf("error = %v", refused)
	}
	if _, err := dialAs(t, socket, bob).Status(context.Background()); err != nil {
		t.Errorf("bob is held up by alice: %v", err)
	}
	for range 10 {
		if _, err := dial(t, socket).Status(context.Background()); err != nil {
			t.Fatalf("root is held up: %v", err)
		}
	}
}

// TestUserLimitsAreBounded: a user with 65,536 ids neither grows the daemon nor asks without end.
func TestUserLimitsAreBounded(t *testing.T) {
	p := newUserLimiter(2, 2, 1e9)
	now := time.Unix(1000, 0)
	taken := 0
	for uid := range uint32(65536) {
		if p.take(uid, now) {
			taken++
		}
	}
	if taken != maxLimitedUsers || len(p.byUID) != maxLimitedUsers {
		t.Errorf("%d ids were answered and %d are remembered, want %d", taken, len(p.byUID), maxLimitedUsers)
	}
	if !p.take(70000, now.Add(time.Second)) || len(p.byUID) != 1 {
		t.Errorf("a second later %d ids are remembered: buckets that are full again must make room", len(p.byUID))
	}
	all := newUserLimiter(2, 2, 3)
	for i, want := range []bool{true, true, true, false} {
		if got := all.take(uint32(i), now); got != want {
			t.Errorf("user %d of a rate of 3 for all: %v, want %v", i, got, want)
		}
	}
}

// TestOneRecordingIsRoots: users cannot take every turn.
func TestOneRecordingIsRoots(t *testing.T) {
	s := newSlots(Limits{Recordings: 3, RecordingsPerUser: 2, Queue: time.Millisecond})
	for i, want := range []bool{true, true, false} {
		if _, err := s.enter(t.Context(), peer{uid: uint32(i + 1)}, 0); (err == nil) != want {
			t.Errorf("user %d: %v, want a turn: %v", i+1, err, want)
		}
	}
	leave, err := s.enter(t.Context(), peer{uid: 0}, 0)
	if err != nil {
		t.Fatalf("root is kept out by users: %v", err)
	}
	leave()
}

func TestOneUserCannotTakeAllConnections(t *testing.T) {
	limits := patient()
	limits.Connections, limits.ConnectionsPerUser = 8, 4
	socket := serve(t, newFake(), limits)
	needs.Root(t, "it connects as other users")
	// Each request is answered before the next connection is made, so that the order is certain.
	held := 0
	for range 6 {
		c := dialAs(t, socket, alice)
		if _, err := c.Version(context.Background()); err == nil {
			held++
		}
	}
	if held != 4 {
		t.Errorf("alice holds %d connections, want 4", held)
	}
	if _, err := dialAs(t, socket, bob).Version(context.Background()); err != nil {
		t.Errorf("bob is kept out: %v", err)
	}
	for range 2 {
		if _, err := dialAs(t, socket, 0).Version(context.Background()); err != nil {
			t.Errorf("root is kept out: %v", err)
		}
	}
}

func TestDoorCountsComingAndGoing(t *testing.T) {
	d := newDoor(nil, 0, Limits{Connections: 8, ConnectionsPerUser: 3})
	root, a, b, c := peer{uid: 0}, peer{uid: 1}, peer{uid: 2}, peer{uid: 3}
	for i, step := range []struct {
		p    peer
		want bool
	}{
		{a, true},
		{a, true},
		{a, true},
		{a, false},
		{b, true},
		{b, true},
		{b, true},
		{c, false}, // the last quarter is root's
		{root, true},
		{root, true},
		{root, false},
	} {
		if got := d.enter(step.p); got != step.want {
			t.Errorf("step %d: %s enters: %v, want %v", i, step.p, got, step.want)
		}
	}
	d.leave(a)
	if !d.enter(root) || d.enter(root) {
		t.Error("one place became free, not more")
	}
	for range 3 {
		d.leave(b)
	}
	if len(d.byUID) != 1 {
		t.Errorf("users who left are remembered: %v", d.byUID)
	}
}
