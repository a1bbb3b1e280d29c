package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/parquet-go/parquet-go"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/s3test"
)

// store is a real S3 server, with a link to it that has faults on request.
type store struct {
	*s3test.Store
	t *testing.T
}

func newStore(t *testing.T) *store { return &store{s3test.Start(t), t} }

// configOf is the configuration of an uploader into the store, by the link.
func configOf(endpoint string) UploadConfig {
	return UploadConfig{
		Endpoint: endpoint,
		Region:   s3test.Region,
		Bucket:   s3test.Bucket,
		Prefix:   "fleet/a",
		Node:     "node-1",
		Raw:      RawAlways,
	}
}

func newTestUploader(t *testing.T, endpoint, dir string, log *zap.Logger) (*uploader, *api.Kept) {
	t.Helper()
	shelf, err := openShelf(dir, 1<<40, 0, 0)
	must.NoError(t, err)
	kept := &api.Kept{}
	u, err := newUploader(configOf(endpoint), shelf, log, func(f func(*api.Kept)) { f(kept) })
	must.NoError(t, err)
	u.low = time.Microsecond
	u.lines = newLiner(t, shelf)
	return u, kept
}

func (s *store) uploader(dir string, log *zap.Logger) (*uploader, *api.Kept) {
	s.t.Helper()
	return newTestUploader(s.t, s.URL(), dir, log)
}

// made writes a recording of so many calls, and returns its name.
func made(t *testing.T, s *shelf, i, calls int) string {
	t.Helper()
	from := uint64(i) * 100_000_000_000
	rec := &recording.Recording{Meta: recording.Meta{
		Schema: recording.SchemaVersion, Target: uint32(100 + i), From: from,
		To: from + 60_000_000_000, WallFrom: 1_764_028_800_000_000_000 + int64(i)*60_000_000_000,
		Functions: []recording.Function{
			{Name: "cuLaunchKernel", Base: "cuLaunchKernel", Group: "launch", Library: "driver"},
			{Name: "cuMemAlloc"},
		},
	}}
	for k := range calls {
		rec.Events = append(rec.Events, event.Event{
			Kind: event.Call,
			TS:   from + uint64(k),
			PID:  uint32(100 + i),
			TID:  1,
			Func: uint16(k % 2),
			Args: [4]uint64{rand.Uint64()},
		})
	}
	w, err := s.create(fmt.Sprintf("2025112%dT000000.000Z-%d-python", i, 100+i))
	must.NoError(t, err)
	must.NoError(t, w.append(rec))
	path, err := w.finish()
	must.NoError(t, err)
	return filepath.Base(path)
}

// whole checks that the store has each recording exactly once, and that what it has is what was recorded.
func (s *store) whole(calls map[string]int) {
	s.t.Helper()
	there := s.Recordings()
	for name, r := range there {
		want, known := calls[name]
		rec, err := archive.Read(r.Folder, archive.DefaultLimits())
		if err != nil {
			s.t.Fatalf("%s from the store: %v", name, err)
		}
		if !known || len(rec.Events) != want {
			s.t.Errorf("%s holds %d events, want %d", name, len(rec.Events), want)
		}
		if r.Lines == nil {
			s.t.Fatalf("%s has no JSON lines", name)
		}
		if got := linesIn(s.t, r.Lines); got != want {
			s.t.Errorf("%s has %d JSON lines, want %d", name, got, want)
		}
	}
	if len(there) != len(calls) {
		s.t.Errorf("the store has %d of %d recordings", len(there), len(calls))
	}
}

// TestUploadThroughFaults: through errors, lost answers, a slow link and an outage, each recording arrives whole and
// once, and is on the disk until then.
func TestUploadThroughFaults(t *testing.T) {
	s := newStore(t)
	dir := t.TempDir()
	var said bytes.Buffer
	log := zap.New(
		zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(&said),
			zap.DebugLevel))
	u, kept := s.uploader(dir, log)
	calls := map[string]int{}
	for i := range 4 {
		calls[made(t, u.shelf, i, 2000)] = 2000
	}
	s.Down.Store(true)
	u.pass(t.Context(), time.Now())
	if found, _ := list(dir); len(found) != 4 || u.shelf.journal.counted().Uploaded != 0 || kept.UploadFailed != 4 || kept.Pending != 4 ||
		kept.UploadError == "" {
		t.Fatalf("in an outage: %d are on the disk, %+v", len(found), kept)
	}
	s.Down.Store(false)
	s.Failing.Store(25)
	s.Dropping.Store(15)
	s.Slow.Store(2 << 20)
	passes := 0
	for found, _ := list(dir); len(found) > 0; found, _ = list(dir) {
		if passes++; passes > 400 {
			t.Fatalf("after %d passes %d recordings are still here: %+v", passes, len(found), kept)
		}
		u.pass(t.Context(), time.Now().Add(time.Duration(passes)*time.Hour))
	}
	t.Logf("%d passes, %+v", passes, *kept)
	if u.shelf.journal.counted().Uploaded != 4 || kept.Pending != 0 || kept.UploadError != "" {
		t.Errorf("%+v", kept)
	}
	s.whole(calls)
	for _, key := range s.Keys() {
		if !strings.HasPrefix(key, "fleet/a/v=1/") || !strings.Contains(key, "date=2025-11-25/") ||
			!strings.Contains(key, "node=node-1/") {
			t.Errorf("key %s", key)
		}
	}
	if text := said.String(); strings.Contains(text, s3test.SecretKey) || strings.Contains(text, s3test.AccessKey) {
		t.Errorf("the log holds credentials: %s", text)
	}
}

// TestUploadOfLargeFiles: a file of several parts arrives whole, and one that is there is not sent again.
func TestUploadOfLargeFiles(t *testing.T) {
	s := newStore(t)
	u, _ := s.uploader(t.TempDir(), zap.NewNop())
	data := make([]byte, 2*partSize+12345)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	// What a process that was killed in the middle has left is not kept for ever.
	core := minio.Core{Client: s.Client}
	id, err := core.NewMultipartUpload(t.Context(), s3test.Bucket, "large", minio.PutObjectOptions{})
	if err == nil {
		_, err = core.PutObjectPart(t.Context(), s3test.Bucket, "large", id, 1, bytes.NewReader(data[:partSize]), partSize,
			minio.PutObjectPartOptions{})
	}
	must.NoError(t, err)
	u.unsure = true // as after a start
	o, err := u.put(t.Context(), "large", bytesFile(data))
	must.NoError(t, err)
	for left := range s.Client.ListIncompleteUploads(t.Context(), s3test.Bucket, "", true) {
		t.Errorf("the parts of upload %s of %s stay in the store: %v", left.UploadID, left.Key, left.Err)
	}
	if !bytes.Equal(s.Get("large"), data) {
		t.Error("another file arrived")
	}
	before := s.Puts.Load()
	if again, err := u.put(t.Context(), "large", bytesFile(data)); err != nil || again != o || s.Puts.Load() != before {
		t.Errorf("%+v %v, %d requests: want %+v and none", again, err, s.Puts.Load()-before, o)
	}
	data[7]++
	if _, err := u.put(t.Context(), "large", bytesFile(data)); err == nil {
		t.Error("another file is said to be uploaded under the same key")
	}
	if data[7]--; !bytes.Equal(s.Get("large"), data) {
		t.Error("the first file was replaced")
	}
}

// TestUploadTriggered: of other recordings only the small tables are uploaded, and the rest stays.
func TestUploadTriggered(t *testing.T) {
	s := newStore(t)
	u, kept := s.uploader(t.TempDir(), zap.NewNop())
	u.cfg.Raw = RawTriggered
	name := made(t, u.shelf, 1, 100)
	for range 2 {
		u.pass(t.Context(), time.Now())
	}
	if found, _ := list(u.shelf.dir); len(found) != 1 || u.shelf.journal.counted().Uploaded != 1 || kept.Pending != 0 {
		t.Errorf("%d on the disk, %+v", len(found), kept)
	}
	recordings := ""
	for _, key := range s.Keys() {
		switch {
		case strings.Contains(key, "table=recordings/"):
			recordings = key
		case strings.Contains(key, "table=calls/"),
			strings.Contains(key, "table=launches/"),
			strings.Contains(key, "jsonl"):
			t.Errorf("%s: events are uploaded", key)
		}
	}
	data := s.Get(recordings)
	rows, err := parquet.Read[Row](bytes.NewReader(data), int64(len(data)))
	if err != nil || len(rows) != 1 || rows[0].Events != 100 || rows[0].Node != "node-1" || rows[0].Comm != "python" {
		t.Errorf("rows %+v %v", rows, err)
	}
	if _, err := archive.Read(filepath.Join(u.shelf.dir, name), archive.DefaultLimits()); err != nil {
		t.Errorf("what stays: %v", err)
	}
}

// TestUploadKilled kills the process in mid-upload, again and again: each recording arrives once, and is counted once.
func TestUploadKilled(t *testing.T) {
	if dir := os.Getenv("FLEET_TEST_UPLOAD"); dir != "" {
		uploadForever(t, dir)
		return
	}
	s := newStore(t)
	dir := t.TempDir()
	shelf := locked(t, dir)
	calls := map[string]int{}
	for i := range 3 {
		calls[made(t, shelf, i, 20_000)] = 20_000
	}
	_ = shelf.held.Close()
	s.Slow.Store(1 << 20)
	kills := 0
	for found, _ := list(dir); len(found) > 0; found, _ = list(dir) {
		if kills > 60 {
			t.Fatal("it does not come to an end")
		}
		cmd := exec.Command(os.Args[0], "-test.run=^TestUploadKilled$")
		cmd.Env = append(os.Environ(), "FLEET_TEST_UPLOAD="+dir, "FLEET_TEST_ENDPOINT="+s.URL())
		must.NoError(t, cmd.Start())
		before := s.Puts.Load()
		wait := 1 + rand.Int64N(3)
		for s.Puts.Load() < before+wait {
			if left, _ := list(dir); len(left) == 0 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Duration(rand.Int64N(20)) * time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		kills++
	}
	t.Logf("%d kills", kills)
	s.whole(calls)
	shelf = locked(t, dir)
	shelf.recover()
	got := shelf.journal.counted()
	if got.Killed == 0 || got.Killed > uint64(kills) {
		t.Errorf("%d of %d kills are counted", got.Killed, kills)
	}
	if got.Killed = 0; got != (counts{Made: 3, Uploaded: 3}) {
		t.Errorf("counted: %+v, want 3 recordings that were uploaded", got)
	}
}

// locked opens a directory as the process that keeps recordings does.
func locked(t *testing.T, dir string) *shelf {
	t.Helper()
	s, err := openShelf(dir, 1<<40, 0, 0)
	if err == nil {
		err = s.lock(time.Minute)
	}
	must.NoError(t, err)
	t.Cleanup(func() { _ = s.held.Close() })
	return s
}

func uploadForever(t *testing.T, dir string) {
	u, _ := newTestUploader(t, os.Getenv("FLEET_TEST_ENDPOINT"), dir, zap.NewNop())
	must.NoError(t, u.shelf.lock(time.Minute))
	u.shelf.journal.add(started, "")
	u.shelf.recover()
	u.look = time.Millisecond
	u.run(context.Background())
}

// TestBackoff: attempts become rarer, and those of many nodes do not fall together.
func TestBackoff(t *testing.T) {
	u := &uploader{log: zap.NewNop(), retry: map[string]*attempt{}, update: func(func(*api.Kept)) {}, low: backoffLow}
	now := time.Now()
	last := time.Duration(0)
	for i := range 12 {
		u.failed("a", errors.New("no"), now)
		wait := u.retry["a"].next.Sub(now)
		longest := min(backoffHigh, backoffLow<<(i+1))
		if wait < longest/2 || wait > longest {
			t.Errorf("after %d failures it waits %v, want %v to %v", i+1, wait, longest/2, longest)
		}
		last = wait
	}
	for range 10 {
		u.failed("b", errors.New("no"), now)
	}
	if u.retry["b"].next.Sub(now) == last {
		t.Error("two recordings wait equally long")
	}
}

func TestDestination(t *testing.T) {
	for text, want := range map[string][2]string{
		"s3://b": {"b", ""}, "s3://b/": {"b", ""}, "s3://b/p/q/": {"b", "p/q"}, "s3://b/../p": {"b", "p"},
	} {
		if b, p, err := ParseDestination(text); err != nil || b != want[0] || p != want[1] {
			t.Errorf("%s: %s %s %v", text, b, p, err)
		}
	}
	for _, text := range []string{"", "b/p", "https://b/p", "s3:///p", "s3://user:pass@b/p", "s3://b?x=1"} {
		if _, _, err := ParseDestination(text); clierror.CodeOf(err) != clierror.Usage {
			t.Errorf("%q: %v", text, err)
		}
	}
}
