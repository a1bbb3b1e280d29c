package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
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
	needRoot(t)
	u := &uploading{t: t, store: s3test.Start(t), dir: dir}
	u.victim = cudasim.Start(
		t,
		cudasim.Options{Lib: "driver"},
		"wait",
		"until { launch 10; sleep 2ms }",
		"print done",
		"wait",
	)
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
	u.until(
		"uploads to fail",
		func(k api.Kept) bool { return k.UploadFailed > 0 && k.Pending > 0 && k.UploadError != "" },
	)
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

// TestUploadThroughKillsAndAFullDisk: a daemon that is killed in the middle of an upload, and a disk that others fill,
// cost what was not written, and no more: what is in the store or on the disk is whole and there once, and each loss is
// counted.
func TestUploadThroughKillsAndAFullDisk(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=96m,mode=0700"); err != nil {
		t.Skipf("needs a file system of its own: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	u := startUploading(t, dir)
	u.victim.Go()
	u.more(1)
	for range 2 {
		u.inMidUpload()
		if err := u.daemon.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := <-u.daemon.done; err == nil {
			t.Fatal("a daemon that was killed ended as if it had been asked to")
		}
		u.start()
		u.store.Slow.Store(0)
		u.more(1)
	}
	filler, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	for block := make([]byte, 1<<20); err == nil; {
		_, err = filler.Write(block)
	}
	_ = filler.Close()
	u.until("the full disk to be counted", func(k api.Kept) bool { return k.Failed > 0 && k.Error != "" })
	if said, _, _ := u.daemon.inferscope("status"); !strings.Contains(
		strings.Join(strings.Fields(said), " "),
		"not written: writing a recording: there is no room on the disk",
	) {
		t.Errorf("status does not say why recordings have a hole:\n%s", said)
	}
	if err := os.Remove(filler.Name()); err != nil {
		t.Fatal(err)
	}
	u.more(2)
	u.until("the error to be over", func(k api.Kept) bool { return k.Error == "" })
	u.victim.Go()
	u.victim.WaitLine("done")
	truth := u.victim.Truth()
	u.daemon.stop()
	if got, all := u.launches(), int(truth.Count("cuLaunchKernel")); got == 0 || got >= all {
		t.Errorf("store and disk have %d of %d launches, and there were holes", got, all)
	} else {
		t.Logf("%d of %d launches", got, all)
	}
	u.victim.Go()
	u.victim.Finish()
}
