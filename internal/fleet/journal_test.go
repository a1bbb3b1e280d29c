package fleet

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// again opens a directory as a process does that comes after one that was killed.
func again(t *testing.T, before *shelf) *shelf {
	t.Helper()
	_ = before.held.Close()
	s := locked(t, before.dir)
	s.journal.add(started, "")
	s.recover()
	return s
}

// TestJournalThroughKills: wherever a process was killed, each recording is counted once, and what it was about to
// delete is deleted.
func TestJournalThroughKills(t *testing.T) {
	s := locked(t, t.TempDir())
	put(t, s.dir, "older-than-the-journal.isc", 1, 0)
	s = again(t, s)
	for _, name := range []string{
		"stays", "deleted", "half-deleted", "to-be-deleted", "uploaded", "to-be-deleted-when-uploaded",
	} {
		s.journal.add(begun, name+".isc")
		put(t, s.dir, name+".isc", 1, 0)
	}
	must.NoError(t, s.delete("deleted.isc"))
	s.journal.add(removed, "half-deleted.isc")
	half := filepath.Join(s.dir, "half-deleted.isc")
	must.NoError(t, os.Rename(half, filepath.Join(s.dir, deleted+"half-deleted.isc")))
	s.journal.add(removed, "to-be-deleted.isc")
	s.journal.add(uploaded, "uploaded.isc") // and its events stay
	s.journal.add(uploaded, "to-be-deleted-when-uploaded.isc")
	s.journal.add(removed, "to-be-deleted-when-uploaded.isc")
	if _, err := s.create("just-begun"); err != nil {
		t.Fatal(err)
	}
	s.journal.add(failed, "")
	want := counts{Made: 8, Uploaded: 2, Deleted: 3, Lost: 1, Failed: 1}
	for range 3 { // a second time, nothing is left to be found
		s = again(t, s)
		want.Killed++
		if got := s.journal.counted(); got != want {
			t.Errorf("counted %+v, want %+v", got, want)
		}
		if found, err := list(s.dir); err != nil || len(found) != 3 {
			t.Errorf("on the disk: %v %v, want what stays, what was uploaded and what is older", found, err)
		}
	}
	s.journal.add(stopped, "")
	if got := again(t, s).journal.counted(); got != want {
		t.Errorf("after an end in order: %+v, want %+v", got, want)
	}
}

// TestJournalOnAFullDisk: losses are counted there, too, and through a kill.
func TestJournalOnAFullDisk(t *testing.T) {
	needs.Root(t, "it mounts a file system")
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=512k,mode=0700"); err != nil {
		t.Skipf("needs a file system of its own: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	s := locked(t, dir)
	if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	const losses = 1000
	for range losses {
		s.journal.add(failed, "")
	}
	s = again(t, s) // it cannot write a new one, and goes on with the old one
	if got := s.journal.counted().Failed; got != losses {
		t.Errorf("%d of %d losses are counted", got, losses)
	}
}

// TestJournalStaysSmall: it is as long as the recordings that are there make it, and no more is lost of one that was
// cut off in the middle of a line than that line.
func TestJournalStaysSmall(t *testing.T) {
	s := locked(t, t.TempDir())
	for range maxEntries + 10 {
		s.journal.add(failed, "")
	}
	path := filepath.Join(s.dir, journalName)
	if info, err := os.Stat(path); err != nil || info.Size() > 4096 {
		t.Errorf("the journal takes %d bytes, %v", info.Size(), err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		_, err = f.WriteString("fai")
	}
	must.NoError(t, err)
	if got := again(t, s).journal.counted().Failed; got != maxEntries+10 {
		t.Errorf("%d of %d losses are counted", got, maxEntries+10)
	}
}

// TestWhenARecordingBegins: it covers what was watched before the process that keeps recordings looked, and nothing
// that was recorded before.
func TestWhenARecordingBegins(t *testing.T) {
	s := locked(t, t.TempDir())
	w := &Worker{shelf: s, left: map[uint32]time.Time{}}
	watched := &api.Target{PID: 7, Watched: 5}
	ago := func() time.Duration { return time.Since(w.since(watched)).Round(time.Second) }
	if got := ago(); got != 5*time.Second {
		t.Errorf("at the first look it begins %v ago, want 5s", got)
	}
	w.left[7] = time.Now().Add(-2 * time.Second)
	if got := ago(); got != 2*time.Second {
		t.Errorf("after an earlier one that ended 2 s ago it begins %v ago", got)
	}
	clear(w.left)
	s.journal.add(started, "")
	s.journal.add(started, "") // after one that was killed
	if got := ago(); got != 0 {
		t.Errorf("after a process that was killed it begins %v ago: that one may have recorded it", got)
	}
	if w.looked = true; ago() != 5*time.Second {
		t.Errorf("a target that came later begins %v ago, want 5s", ago())
	}
}
