package recording

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

var honest, hostile = Owner{UID: 1000, Target: 10}, Owner{UID: 65534, Target: 20}

// TestHostileTargetKeepsHistoryOfOthers has a target append what cannot be packed, ten times as fast as another user's
// target makes events, in a recorder a twelfth of the usual size for a twelfth of the usual minute.
func TestHostileTargetKeepsHistoryOfOthers(t *testing.T) {
	const keep, minute = 5 * time.Second, 12
	r, err := NewRecorder(73_000_000/minute, keep)
	must.NoError(t, err)
	r.Assign(10, 1, honest)
	r.Assign(20, 1, hostile)
	m := mixes(t)[0]
	garbage := rand.NewPCG(1, 2)
	batch := make([]event.Event, 250)
	now, n, sent := uint64(second), 0, uint64(0)
	for range 3 * uint64(keep) / 5_000_000 { // passes of 5 ms: 50,000 events a second, and 500,000
		r.Pass(now)
		for i := range batch {
			batch[i] = m.events[n%len(m.events)]
			batch[i].PID, batch[i].TS, batch[i].Dur = 10, now+uint64(i)*20_000, 1000
			n++
		}
		r.Append(batch...)
		for range 10 {
			for i := range batch {
				fill(&batch[i], garbage)
				batch[i].PID, batch[i].TS, batch[i].Dur = 20, now+second, 0 // as far ahead as it may lie
			}
			r.Append(batch...)
			sent += uint64(len(batch))
		}
		now += 5_000_000
	}
	s := r.Snapshot(now-uint64(keep), now, honest)
	defer s.Release()
	reach := float64(now-max(s.Since(), now-uint64(keep))) / second * minute
	t.Logf("the honest target's history reaches %.1f of 60 s; a hostile one made %d events beside its %d",
		reach, sent, n)
	if reach < 50 {
		t.Errorf("the honest target's history reaches %.1f of 60 s", reach)
	}
	if got := s.Losses(); len(got) != 0 {
		t.Errorf("the honest target has lost %v", got)
	}
	for e := range s.Events(nil) {
		if e[0].PID != 10 {
			t.Fatal("a snapshot of one target shows events of another's")
		}
	}
	if got := r.Losses(); len(got) != 1 || got[0].Reason != loss.Overwritten || got[0].Where != "pid 20" {
		t.Errorf("losses are %v, want those of the hostile target alone", got)
	}
}

// TestOneOwnerHasAllOfTheMemory: shares are for those who are there.
func TestOneOwnerHasAllOfTheMemory(t *testing.T) {
	r := tiny(0)
	r.Assign(10, 1, honest)
	for i := range uint64(10_000) {
		r.Append(event.Event{TS: i + 1, PID: 10})
	}
	if h := r.find(honest); len(h.live) != r.maxLive {
		t.Errorf("it has %d segments of %d", len(h.live), r.maxLive)
	}
}

// TestTargetsOfOneUserShare: a second target of a user costs others nothing.
func TestTargetsOfOneUserShare(t *testing.T) {
	r := tiny(0)
	second := Owner{UID: hostile.UID, Target: 30}
	r.Assign(10, 1, honest)
	r.Assign(20, 1, hostile)
	r.Assign(30, 1, second)
	for i := range uint64(30_000) {
		r.Append(event.Event{TS: i + 1, PID: 10 * (1 + uint32(i%3))})
	}
	if a, b, c := r.find(honest).segments(), r.find(hostile).segments(), r.find(second).segments(); a < b+c-2 ||
		a > b+c+2 {
		t.Errorf("one user has %d segments, another one's two targets %d and %d", a, b, c)
	}
}

// TestLimitIsPerTarget drops and counts what is beyond.
func TestLimitIsPerTarget(t *testing.T) {
	r := tiny(0)
	r.Limit(1000)
	r.Assign(10, 1, honest)
	r.Assign(20, 1, hostile)
	for pass := range uint64(10) {
		r.Pass((pass + 1) * second / 10)
		for i := range uint64(300) {
			r.Append(event.Event{TS: i + 1, PID: 20})
		}
		r.Append(event.Event{TS: 1, PID: 10})
	}
	got := r.Losses()
	throttled := uint64(0)
	for _, l := range got {
		if l.Reason == loss.EventsThrottled {
			throttled = l.Count
			if l.Where != "pid 20" {
				t.Errorf("%+v, want it to name the target", l)
			}
		}
	}
	if throttled < 1000 || throttled > 1200 ||
		r.Stats().Throttled != throttled { // a second's worth at once, then 100 in each pass
		t.Errorf("%d of 3,000 were dropped", throttled)
	}
}

// TestPidsThatAreUsedAgain: events of before the birth are the last owner's, later ones the new one's.
func TestPidsThatAreUsedAgain(t *testing.T) {
	r := tiny(0)
	r.Assign(10, 1, honest)
	r.Unassign(10)
	r.Assign(10, 100, hostile)
	r.Append(event.Event{TS: 50, PID: 10}, event.Event{TS: 150, PID: 10}, event.Event{TS: 60, PID: 10})
	for owner, want := range map[Owner]int{honest: 2, hostile: 1} {
		s := r.Snapshot(0, 1000, owner)
		if got := collect(s.Events(nil)); len(got) != want {
			t.Errorf("%v has %d events, want %d", owner, len(got), want)
		}
		s.Release()
	}
}

// TestOwnersAreBounded: a target that nothing is held of makes room for another, and says later that something is
// missing.
func TestOwnersAreBounded(t *testing.T) {
	r := tiny(10)
	for pid := range uint32(10 * maxHistories) {
		r.Assign(pid+1, 1, Owner{UID: 5, Target: pid + 1})
		for i := range uint64(300) {
			r.Append(event.Event{TS: 1000*uint64(pid) + i + 1, PID: pid + 1})
		}
	}
	if n := len(r.histories); n > maxHistories {
		t.Errorf("%d histories are kept", n)
	}
	s := r.Snapshot(0, 1<<62, Owner{UID: 5, Target: 1})
	defer s.Release()
	if s.Since() == 0 {
		t.Error("the history of a target that made room claims to be complete")
	}
}

// TestEndedTargetsLeaveNothing: what many targets at a time took is given back when their events have expired, and a
// target now and then takes no more after 5,000 than after a few.
func TestEndedTargetsLeaveNothing(t *testing.T) {
	const keep = 10 // targets whose events are held: one comes each second
	r, err := newRecorder(MinBudget, keep*time.Second, 8<<10)
	must.NoError(t, err)
	now, next := uint64(second), uint32(1)
	target := func() {
		pid := next
		next++
		r.Pass(now)
		r.Assign(pid, now, Owner{UID: 5, Target: pid})
		for i := range uint64(5) {
			r.Append(event.Event{TS: now + i, PID: pid})
		}
		r.Unassign(pid)
	}
	packers := func() int {
		n := len(r.states)
		for _, h := range r.histories {
			if h.state != nil {
				n++
			}
		}
		return n
	}
	for range maxHistories - 1 {
		target()
	}
	if n := packers(); n < maxHistories-1 {
		t.Fatalf("%d packers for %d targets at a time", n, maxHistories-1)
	}
	for i := range 5000 {
		now += second
		target()
		if n := packers(); i > 2*keep && (n > keep+2+spare || len(r.ended) > maxEnded || len(r.of) > maxEnded) {
			t.Fatalf("after %d more targets: %d packers, %d processes, %d ended", i, n, len(r.of), len(r.ended))
		}
	}
}
