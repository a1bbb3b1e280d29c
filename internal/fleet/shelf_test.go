package fleet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// put makes a folder that takes so many bytes on the disk.
func put(t *testing.T, dir, name string, bytes int, age time.Duration) {
	t.Helper()
	path := filepath.Join(dir, name)
	must.NoError(t, os.MkdirAll(path, 0o700))
	must.NoError(t, os.WriteFile(filepath.Join(path, "f"), make([]byte, bytes), 0o600))
	at := time.Now().Add(-age)
	must.NoError(t, os.Chtimes(path, at, at))
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must.NoError(t, err)
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func open(t *testing.T, quota, reserve int64, maxAge time.Duration) *shelf {
	t.Helper()
	s, err := openShelf(filepath.Join(t.TempDir(), "deep", "dir"), quota, reserve, maxAge)
	must.NoError(t, err)
	return s
}

// Room for a stretch is made before it is written: the oldest go, but one that is being read, and nothing that is no
// recording.
func TestQuota(t *testing.T) {
	s := open(t, intervalBytes+5<<19, 0, 0)
	for _, n := range []string{"1.isc", "2.isc", "3.isc", "4.isc", partial + "5.isc", "notes"} {
		put(t, s.dir, n, 1<<20, 0)
	}
	s.settle()
	release := s.pin("1.isc")
	must.NoError(t, s.room())
	if got, want := names(t, s.dir), []string{partial + "5.isc", "1.isc", "notes"}; !slices.Equal(got, want) {
		t.Errorf("left: %v, want %v", got, want)
	}
	if n := s.journal.counted().Deleted; n != 3 {
		t.Errorf("%d deletions are counted, want 3", n)
	}
	release()
	s.quota = intervalBytes - 1
	if err := s.room(); !errors.Is(err, errFull) || len(names(t, s.dir)) != 2 {
		t.Errorf("%v, left %v: want no room, and all but the partial one deleted", err, names(t, s.dir))
	}
}

// Recordings of all users are read by nobody else, and a directory that others may write to is refused.
func TestAccess(t *testing.T) {
	s := open(t, 1<<40, 0, 0)
	if _, err := s.create("a"); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{s.dir, filepath.Join(s.dir, partial+"a.isc")} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v %v, want only its owner to read it", path, info.Mode(), err)
		}
	}
	must.NoError(t, os.Chmod(s.dir, 0o770))
	if _, err := openShelf(s.dir, 1<<40, 0, 0); err == nil || clierror.HintOf(err) == "" {
		t.Errorf("a directory that others may write to: %v", err)
	}
}

// One process writes recordings here at a time: another waits for it.
func TestLock(t *testing.T) {
	s := open(t, 1<<40, 0, 0)
	must.NoError(t, s.lock(0))
	other, err := openShelf(s.dir, 1<<40, 0, 0)
	must.NoError(t, err)
	if err := other.lock(100 * time.Millisecond); err == nil || clierror.HintOf(err) == "" {
		t.Errorf("a second one: %v", err)
	}
	waited := make(chan error, 1)
	go func() { waited <- other.lock(time.Minute) }()
	_ = s.held.Close()
	if err := <-waited; err != nil {
		t.Errorf("after the first: %v", err)
	}
}

// What others need of the disk stays free.
func TestReserve(t *testing.T) {
	var st unix.Statfs_t
	s := open(t, 1<<60, 0, 0)
	must.NoError(t, unix.Statfs(s.dir, &st))
	s.reserve = int64(st.Bavail)*st.Bsize + 1<<40
	put(t, s.dir, "1.isc", 1, 0)
	err := s.room()
	if !errors.Is(err, errFull) || len(names(t, s.dir)) != 0 {
		t.Errorf("%v, left %v", err, names(t, s.dir))
	}
	says := fmt.Sprintf("%d MB of them stay so (--record-free-mb)", s.reserve/1e6)
	if !strings.Contains(err.Error(), says) {
		t.Errorf("%v lacks %q", err, says)
	}
}

func TestAge(t *testing.T) {
	s := open(t, 1<<60, 0, time.Hour)
	put(t, s.dir, "old.isc", 1, 2*time.Hour)
	put(t, s.dir, "new.isc", 1, time.Minute)
	s.settle()
	s.tidy(time.Now())
	if n := s.journal.counted().Deleted; n != 1 || !slices.Equal(names(t, s.dir), []string{"new.isc"}) {
		t.Errorf("%d deleted, left %v", n, names(t, s.dir))
	}
}

// TestWriter: a recording is not seen before it is whole, and one without events never.
func TestWriter(t *testing.T) {
	s := open(t, 1<<40, 0, 0)
	rec := &recording.Recording{
		Meta: recording.Meta{
			Schema:    recording.SchemaVersion,
			From:      1000,
			To:        2000,
			Functions: []recording.Function{{Name: "cuInit"}},
		},
	}
	w, err := s.create("a")
	must.NoError(t, err)
	other, err := s.create("b")
	must.NoError(t, err)
	must.NoError(t, other.append(rec))
	if path, err := other.finish(); path != "" || err != nil {
		t.Errorf("a recording of nothing: %q %v", path, err)
	}
	rec.Events = []event.Event{{Kind: event.Call, TS: 1500, PID: 1, TID: 1}}
	must.NoError(t, w.append(rec))
	if found, err := Recordings(s.dir); len(found) != 0 || err != nil {
		t.Errorf("before the end: %v %v", found, err)
	}
	if n := s.recover(); n != 0 {
		t.Error("what is being written is taken for what was left behind")
	}
	path, err := w.finish()
	if found, _ := Recordings(s.dir); err != nil || !slices.Equal(found, []string{path}) {
		t.Errorf("%v %v, want %s", found, err, path)
	}
}

// TestFullDisk: what was written before the disk ran full is kept, and deleted in its turn.
func TestFullDisk(t *testing.T) {
	needs.Root(t, "it mounts a file system")
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=512k,mode=0700"); err != nil {
		t.Skipf("needs a file system of its own: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	s, err := openShelf(dir, 1<<40, 0, 0)
	must.NoError(t, err)
	name := made(t, s, 1, 10)
	w, err := s.create("a")
	must.NoError(t, err)
	rec, err := archive.Read(filepath.Join(dir, name), archive.DefaultLimits())
	must.NoError(t, err)
	must.NoError(t, w.append(rec))
	if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	if _, err := w.finish(); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the end of the recording is written to a full disk: %v", err)
	}
	if got, err := archive.Read(filepath.Join(dir, "a.isc"), archive.DefaultLimits()); err != nil || len(got.Events) != 10 {
		t.Errorf("what was written before: %v", err)
	}
	for s.deleteOldest() {
	}
	if got := names(t, dir); !slices.Equal(got, []string{"filler"}) {
		t.Errorf("what others need is not given back: %v", got)
	}
}

// TestRecover: what a killed process has left is kept as far as it counts.
func TestRecover(t *testing.T) {
	s := open(t, 1<<40, 0, 0)
	rec := &recording.Recording{
		Meta: recording.Meta{
			Schema:    recording.SchemaVersion,
			From:      1000,
			To:        2000,
			Functions: []recording.Function{{Name: "cuInit"}},
		},
		Events: []event.Event{{Kind: event.Call, TS: 1500, PID: 1, TID: 1}},
	}
	w, err := s.create("a")
	must.NoError(t, err)
	must.NoError(t, w.append(rec))
	if _, err := s.create("b"); err != nil {
		t.Fatal(err)
	}
	next, err := openShelf(s.dir, 1<<40, 0, 0)
	must.NoError(t, err)
	if n := next.recover(); n != 1 || !slices.Equal(names(t, s.dir), []string{"a.isc"}) {
		t.Errorf("%d recovered, left %v", n, names(t, s.dir))
	}
}

func TestClip(t *testing.T) {
	rec := &recording.Recording{
		Meta: recording.Meta{
			From:     100,
			To:       200,
			WallFrom: 5000,
			GPU: &recording.GPU{
				Windows: []recording.GPUWindow{{From: 110, To: 130}, {From: 140, To: 160}, {From: 170, To: 180}},
			},
		},
		Events: []event.Event{
			{Kind: event.Call, TS: 120},
			{Kind: event.Call, TS: 149},
			{Kind: event.Call, TS: 150},
			{Kind: event.Call, TS: 199},
			{Kind: event.OffCPU, Flags: event.Open, TS: 105},
		},
	}
	old, next := clip(rec, 0, 150), clip(rec, 150, 200)
	if old.Meta.From != 100 || old.Meta.To != 150 || old.Meta.WallFrom != 5000 || len(old.Events) != 3 ||
		len(old.Meta.GPU.Windows) != 2 ||
		old.Meta.GPU.Windows[1].To != 150 {
		t.Errorf("the first part is %+v with %d events", old.Meta, len(old.Events))
	}
	if next.Meta.From != 150 || next.Meta.WallFrom != 5050 || len(next.Events) != 3 ||
		len(next.Meta.GPU.Windows) != 2 ||
		next.Meta.GPU.Windows[0].From != 150 {
		t.Errorf("the second part is %+v with %d events", next.Meta, len(next.Events))
	}
}

// The program is part of the names that the daemon chooses, and of no others.
func TestRowOf(t *testing.T) {
	for name, want := range map[string]string{
		"20261129T013012.112Z-28011-python3":               "python3",
		"20261129T013012.112Z-28011-my-app":                "my-app",
		"20261129T013012.112Z-28011-my-app-flight-manual":  "my-app",
		"20261129T013012.112Z-28011-a-flight-b-flight-oom": "a-flight-b",
		"before-the-change":                                "",
		"inferscope-28011":                                 "",
	} {
		if got := RowOf(name, "", &archive.Manifest{Target: 28011}).Comm; got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
