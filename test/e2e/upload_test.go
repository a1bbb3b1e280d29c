package e2e

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
	"github.com/inferscope/inferscope/internal/testkit/s3test"
)

// uploading is a daemon that keeps short recordings of a busy program and uploads them.
type uploading struct {
	t      *testing.T
	store  *s3test.Store
	dir    string
	victim *cudasim.Victim
	daemon *daemon
	client *api.Client
}

func startUploading(t *testing.T, dir string) *uploading {
	t.Helper()
	needs.Root(t, "it loads BPF programs and attaches probes")
	u := &uploading{t: t, store: s3test.Start(t), dir: dir}
	u.victim = cudasim.Start(t, cudasim.Options{Lib: "driver"}, "wait",
		"until { launch 10; sleep 20ms }", "print done", "wait")
	u.start()
	return u
}

func (u *uploading) start() {
	u.t.Helper()
	u.daemon = startDaemon(u.t, u.victim.PID, append([]string{
		"--record-dir", u.dir, "--record-length", "2s", "--record-free-mb", "1", "--overhead-budget", "0",
		"--upload", "s3://" + s3test.Bucket + "/fleet", "--upload-endpoint", u.store.URL(),
		"--upload-region", s3test.Region, "--upload-after", "0s",
	}, probesOnly...)...)
	u.client = u.daemon.client()
}

// kept is what the daemon says about its recordings.
func (u *uploading) kept() api.Kept {
	u.t.Helper()
	s, err := u.client.Status(u.t.Context())
	if err != nil || s.Kept == nil {
		u.t.Fatalf("the daemon says nothing about recordings: %v", err)
	}
	return *s.Kept
}

// until waits for what the daemon says about its recordings.
func (u *uploading) until(what string, ok func(api.Kept) bool) {
	u.t.Helper()
	waitFor(u.t, what, func() bool { return ok(u.kept()) })
}

// more waits for uploads after those that there are.
func (u *uploading) more(n uint64) {
	u.t.Helper()
	before := u.kept().Uploaded
	u.until("more uploads", func(k api.Kept) bool { return k.Uploaded >= before+n })
}

// inMidUpload waits until a file is on its way over a slow link.
func (u *uploading) inMidUpload() {
	u.t.Helper()
	u.store.Slow.Store(16 << 10)
	before := u.store.Puts.Load()
	waitFor(u.t, "an upload", func() bool { return u.store.Puts.Load() > before })
}

// launches counts those in the store and on the disk: each recording is whole, and in one place.
func (u *uploading) launches() int {
	u.t.Helper()
	here, partial := kept(u.dir)
	there := u.store.Recordings(here...)
	if len(there) < 3 {
		u.t.Errorf("the store has %d recordings", len(there))
	}
	if len(partial) > 0 {
		u.t.Errorf("%v are left after the end", partial)
	}
	for _, path := range here {
		if _, both := there[filepath.Base(path)]; both {
			u.t.Errorf("%s is in the store and on the disk", path)
		}
	}
	for _, r := range there {
		here = append(here, r.Folder)
	}
	return launchesIn(u.t, here)
}

// TestUpload: through an outage of the store, errors, lost answers, a slow link and a store that is killed in the
// middle of an upload and comes back, each launch is in one recording, in the store or on the disk.
func TestUpload(t *testing.T) {
	u := startUploading(t, t.TempDir())
	u.store.Down.Store(true)
	u.victim.Go()
	u.until("uploads to fail",
		func(k api.Kept) bool { return k.UploadFailed > 0 && k.Pending > 0 && k.UploadError != "" })
	u.store.Down.Store(false)
	u.store.Failing.Store(2)
	u.store.Dropping.Store(1)
	u.store.Slow.Store(256 << 10)
	u.more(1)
	u.store.Failing.Store(0)
	u.store.Dropping.Store(0)
	u.inMidUpload()
	failed := u.kept().UploadFailed
	u.store.Kill()
	u.until("the dead store to be noticed", func(k api.Kept) bool { return k.UploadFailed > failed })
	u.store.Restart()
	u.store.Slow.Store(0)
	u.more(2)
	u.victim.Go()
	u.victim.WaitLine("done")
	truth := u.victim.Truth()
	if s := u.kept(); s.Failed != 0 || s.Deleted != 0 {
		t.Errorf("recordings were lost: %+v", s)
	}
	u.daemon.stop()
	if got, want := u.launches(), int(truth.Count("cuLaunchKernel")); got != want {
		t.Errorf("store and disk have %d launches, want %d", got, want)
	}
	u.victim.Go()
	u.victim.Finish()
}

// kill ends the daemon as kill -9 does, and with it the process that keeps recordings if all is true: else that one
// finishes what it can without a daemon.
func (u *uploading) kill(all bool) {
	u.t.Helper()
	if all {
		for _, pid := range childrenOf(u.t, u.daemon.cmd.Process.Pid) {
			if comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); strings.HasPrefix(string(comm), "iscope-record") {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
	must.NoError(u.t, u.daemon.cmd.Process.Kill())
	if err := <-u.daemon.done; err == nil {
		u.t.Fatal("a daemon that was killed ended as if it had been asked to")
	}
	u.start()
}

// interval is a time of a recording, or of several that follow on one another, in ns of CLOCK_MONOTONIC.
type interval struct{ from, to uint64 }

// recorded returns the intervals that recordings are of, in the store or on the disk, and how many launches they hold.
func (u *uploading) recorded(paths []string) (out []interval, launches int) {
	u.t.Helper()
	for _, path := range paths {
		rec, err := archive.Read(path, archive.DefaultLimits())
		if err != nil {
			u.t.Fatalf("%s: %v", path, err)
		}
		launches += kernelLaunches(rec)
		out = append(out, interval{rec.Meta.From, rec.Meta.To})
	}
	slices.SortFunc(out, func(a, b interval) int { return cmp.Compare(a.from, b.from) })
	joined := out[:0]
	for _, r := range out {
		if n := len(joined); n > 0 && r.from <= joined[n-1].to {
			joined[n-1].to = max(joined[n-1].to, r.to)
			continue
		}
		joined = append(joined, r)
	}
	return joined, launches
}

// reconciled checks that every recording that was made is in the store, on the disk, or counted as lost, and that every
// launch is in one of them, or in a hole that is counted.
func (u *uploading) reconciled(k api.Kept, truth *cudasim.Truth) {
	u.t.Helper()
	here, partial := kept(u.dir)
	there := u.store.Recordings(here...)
	u.t.Logf("%d in the store, %d on the disk, %+v", len(there), len(here), k)
	if len(partial) > 0 {
		u.t.Errorf("%v are left", partial)
	}
	if k.Recordings != uint64(len(there)+len(here))+k.Deleted+k.Lost {
		u.t.Errorf("%d recordings were made: %d are in the store, %d on the disk, %d deleted, %d lost",
			k.Recordings, len(there), len(here), k.Deleted, k.Lost)
	}
	if k.Uploaded != uint64(len(there)) || k.Kept != len(here) {
		u.t.Errorf("counted %d in the store and %d on the disk, there are %d and %d",
			k.Uploaded, k.Kept, len(there), len(here))
	}
	paths := here
	for name, r := range there {
		if slices.ContainsFunc(here, func(path string) bool { return filepath.Base(path) == name }) {
			u.t.Errorf("%s is in the store and on the disk", name)
		}
		paths = append(paths, r.Folder)
	}
	spans, launches := u.recorded(paths)
	if truth.Dropped > 0 || len(spans) == 0 {
		u.t.Fatalf("%d calls of the truth were dropped, %d intervals were recorded", truth.Dropped, len(spans))
	}
	missing, holes, last := 0, map[int]bool{}, 0
	for _, c := range truth.CallsOf("cuLaunchKernel") {
		for last < len(spans) && c.Enter >= spans[last].to {
			last++
		}
		if last == len(spans) || c.Enter < spans[last].from {
			missing++
			holes[last] = true
		}
	}
	const edge = 20 // launches whose entry the program and the probe may see on two sides of an edge
	all := int(truth.Count("cuLaunchKernel"))
	if got := all - launches; got < missing-edge*len(spans) || got > missing+edge*len(spans) || got <= 0 {
		u.t.Errorf("%d of %d launches are not recorded, %d were made in %d holes", got, all, missing, len(holes))
	}
	if n := uint64(len(holes)); n == 0 || n > k.Failed+k.Killed+k.Deleted+k.Lost {
		u.t.Errorf("%d holes, and losses are counted %d + %d + %d + %d times", n, k.Failed, k.Killed, k.Deleted, k.Lost)
	}
}

// TestUploadThroughKillsAndAFullDisk: a daemon that is killed in the middle of an upload, and a disk that others fill,
// cost what was not written, and no more: what is in the store or on the disk is whole and there once, and each loss is
// counted, by whichever daemon.
func TestUploadThroughKillsAndAFullDisk(t *testing.T) {
	needs.Long(t)
	needs.Root(t, "it loads BPF programs and attaches probes")
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=96m,mode=0700"); err != nil {
		t.Skipf("needs a file system of its own: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	u := startUploading(t, dir)
	u.victim.Go()
	u.more(1)
	for _, all := range []bool{false, true} {
		u.inMidUpload()
		u.kill(all)
		u.store.Slow.Store(0)
		u.more(1)
	}
	filler, err := os.Create(filepath.Join(dir, "filler"))
	must.NoError(t, err)
	for block := make([]byte, 1<<20); err == nil; {
		_, err = filler.Write(block)
	}
	_ = filler.Close()
	u.until("the full disk to be counted", func(k api.Kept) bool { return k.Failed > 0 && k.Error != "" })
	if said, _, _ := u.daemon.inferscope("status"); !strings.Contains(
		strings.Join(strings.Fields(said), " "),
		"not written: writing a recording: no room for recordings",
	) {
		t.Errorf("status does not say why recordings have a hole:\n%s", said)
	}
	before := u.kept()
	u.kill(true)
	u.until("what was lost before to be known", func(k api.Kept) bool { return k.Killed > before.Killed })
	if now := u.kept(); now.Failed < before.Failed || now.Recordings < before.Recordings {
		t.Errorf("after a kill on a full disk %+v is counted, before it %+v", now, before)
	}
	must.NoError(t, os.Remove(filler.Name()))
	u.more(2)
	u.until("the error to be over", func(k api.Kept) bool { return k.Error == "" })
	u.victim.Go()
	u.victim.WaitLine("done")
	truth := u.victim.Truth()
	u.victim.Go()
	u.victim.Finish() // no recording is made any more
	var last api.Kept
	u.until("everything to be uploaded, and counted", func(k api.Kept) bool {
		last = k
		finished, partial := kept(dir)
		return len(finished)+len(partial)+k.Kept+k.Pending == 0
	})
	u.reconciled(last, truth)
}
