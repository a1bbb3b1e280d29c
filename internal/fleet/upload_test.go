package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/parquet-go/parquet-go"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/recording/event"
)

const (
	accessKey = "test-access-key"
	secretKey = "test-secret-key-of-nobody"
	bucket    = "recordings"
)

// store is a real S3 server, with a link to it that has faults on request.
type store struct {
	t      *testing.T
	direct *minio.Client
	link   *httptest.Server

	failing  atomic.Int64 // percent of requests that are answered with 500
	dropping atomic.Int64 // percent of requests that the server carries out and whose answer is lost
	down     atomic.Bool
	slow     atomic.Int64 // bytes a second; 0: as fast as it goes
	puts     atomic.Int64
}

// slowly reads at a pace.
type slowly struct {
	io.ReadCloser
	rate int64
}

// Read sleeps for as long as the bytes take.
func (s slowly) Read(b []byte) (int, error) {
	n, err := s.ReadCloser.Read(b[:min(len(b), 4096)])
	time.Sleep(time.Duration(n) * time.Second / time.Duration(s.rate))
	return n, err
}

func newStore(t *testing.T) *store {
	t.Helper()
	program, err := exec.LookPath("versitygw")
	if err != nil {
		if program, err = filepath.Abs("../../bin/tools/versitygw"); err == nil {
			_, err = os.Stat(program)
		}
		if err != nil {
			t.Skip("needs versitygw, an S3 server: scripts/tools.sh versitygw installs it")
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	cmd := exec.Command(
		program,
		"--access",
		accessKey,
		"--secret",
		secretKey,
		"--port",
		address,
		"--quiet",
		"posix",
		"--sidecar",
		t.TempDir(),
		t.TempDir(),
	)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("versitygw said: %.2000s", out.String())
		}
	})
	s := &store{t: t}
	s.direct, err = minio.New(
		address,
		&minio.Options{Creds: credentials.NewStaticV4(accessKey, secretKey, ""), Region: "us-east-1"},
	)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err := s.direct.MakeBucket(t.Context(), bucket, minio.MakeBucketOptions{Region: "us-east-1"})
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("versitygw does not answer: %v", err)
		}
	}
	upstream := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: address})
			r.Out.Host = r.In.Host
		},
		ErrorLog: log.New(io.Discard, "", 0),
	}
	s.link = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			s.puts.Add(1)
		}
		if s.down.Load() {
			panic(http.ErrAbortHandler)
		}
		if rand.Int64N(100) < s.failing.Load() {
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		if rate := s.slow.Load(); rate > 0 {
			r.Body = slowly{r.Body, rate}
		}
		if rand.Int64N(100) < s.dropping.Load() {
			upstream.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		upstream.ServeHTTP(w, r)
	}))
	s.link.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(s.link.Close)
	t.Setenv("AWS_ACCESS_KEY_ID", accessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", secretKey)
	return s
}

// config is that of an uploader into the store, by the link.
func (s *store) config() UploadConfig {
	return UploadConfig{
		Endpoint: s.link.URL,
		Region:   "us-east-1",
		Bucket:   bucket,
		Prefix:   "fleet/a",
		Node:     "node-1",
		Raw:      RawAlways,
	}
}

func (s *store) uploader(dir string, log *zap.Logger) (*uploader, *api.Kept) {
	s.t.Helper()
	shelf, err := openShelf(dir, 1<<40, 0, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	kept := &api.Kept{}
	u, err := newUploader(s.config(), shelf, log, func(f func(*api.Kept)) { f(kept) })
	if err != nil {
		s.t.Fatal(err)
	}
	u.low = time.Microsecond
	u.lines = newLiner(s.t, shelf)
	return u, kept
}

// keys returns all keys of the bucket.
func (s *store) keys() []string {
	s.t.Helper()
	var out []string
	for o := range s.direct.ListObjects(s.t.Context(), bucket, minio.ListObjectsOptions{Recursive: true}) {
		if o.Err != nil {
			s.t.Fatal(o.Err)
		}
		out = append(out, o.Key)
	}
	return out
}

func (s *store) get(key string) []byte {
	s.t.Helper()
	o, err := s.direct.GetObject(s.t.Context(), bucket, key, minio.GetObjectOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	defer o.Close()
	b, err := io.ReadAll(o)
	if err != nil {
		s.t.Fatalf("%s: %v", key, err)
	}
	return b
}

// made writes a recording of so many calls, and returns its name.
func made(t *testing.T, s *shelf, i, calls int) string {
	t.Helper()
	from := uint64(i) * 100_000_000_000
	rec := &recording.Recording{Meta: recording.Meta{
		Schema: recording.SchemaVersion, Target: uint32(100 + i), From: from, To: from + 60_000_000_000, WallFrom: 1_764_028_800_000_000_000 + int64(i)*60_000_000_000,
		Functions: []recording.Function{
			{Name: "cuLaunchKernel", Base: "cuLaunchKernel", Group: "launch", Library: "driver"},
			{Name: "cuMemAlloc"},
		},
	}}
	for k := range calls {
		rec.Events = append(
			rec.Events,
			event.Event{
				Kind: event.Call,
				TS:   from + uint64(k),
				PID:  uint32(100 + i),
				TID:  1,
				Func: uint16(k % 2),
				Args: [4]uint64{rand.Uint64()},
			},
		)
	}
	w, err := s.create(fmt.Sprintf("2025112%dT000000.000Z-%d-python", i, 100+i))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.append(rec); err != nil {
		t.Fatal(err)
	}
	path, err := w.finish()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Base(path)
}

// whole checks that the store has each recording exactly once, and that what it has is what was recorded.
func (s *store) whole(calls map[string]int) {
	s.t.Helper()
	manifests := 0
	seen := map[string]bool{}
	for _, key := range s.keys() {
		if !strings.Contains(key, "/_manifest/") {
			continue
		}
		manifests++
		var m Uploaded
		if err := json.Unmarshal(s.get(key), &m); err != nil {
			s.t.Fatalf("%s: %v", key, err)
		}
		folder := filepath.Join(s.t.TempDir(), m.Recording+archive.Extension)
		for _, o := range m.Objects {
			seen[o.Key] = true
			to := filepath.Join(folder, o.Name)
			if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
				s.t.Fatal(err)
			}
			if err := os.WriteFile(to, s.get(o.Key), 0o600); err != nil {
				s.t.Fatal(err)
			}
		}
		for _, o := range m.Small {
			seen[o.Key] = true
		}
		seen[key] = true
		if m.Lines == nil {
			s.t.Fatalf("%s has no JSON lines", m.Recording)
		}
		seen[m.Lines.Key] = true
		if got, want := linesIn(s.t, s.get(m.Lines.Key)), calls[m.Recording+archive.Extension]; got != want {
			s.t.Errorf("%s has %d JSON lines, want %d", m.Recording, got, want)
		}
		text, err := json.Marshal(m.Manifest)
		if err != nil {
			s.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, "manifest.json"), text, 0o600); err != nil {
			s.t.Fatal(err)
		}
		rec, err := archive.Read(folder, archive.DefaultLimits())
		if err != nil {
			s.t.Fatalf("%s from the store: %v", m.Recording, err)
		}
		if want, known := calls[m.Recording+archive.Extension]; !known || len(rec.Events) != want {
			s.t.Errorf("%s holds %d events, want %d", m.Recording, len(rec.Events), want)
		}
	}
	if manifests != len(calls) {
		s.t.Errorf("%d manifests, want one for each of %d recordings", manifests, len(calls))
	}
	for _, key := range s.keys() {
		if !seen[key] {
			s.t.Errorf("%s belongs to no recording", key)
		}
	}
}

// TestUploadThroughFaults: through errors, lost answers, a slow link and an outage, each recording arrives whole and once,
// and is on the disk until then.
func TestUploadThroughFaults(t *testing.T) {
	s := newStore(t)
	dir := t.TempDir()
	var said bytes.Buffer
	log := zap.New(
		zapcore.NewCore(
			zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()),
			zapcore.AddSync(&said),
			zap.DebugLevel,
		),
	)
	u, kept := s.uploader(dir, log)
	calls := map[string]int{}
	for i := range 4 {
		calls[made(t, u.shelf, i, 2000)] = 2000
	}
	s.down.Store(true)
	u.pass(t.Context(), time.Now())
	if found, _ := list(dir); len(found) != 4 || kept.Uploaded != 0 || kept.UploadFailed != 4 || kept.Pending != 4 ||
		kept.UploadError == "" {
		t.Fatalf("in an outage: %d are on the disk, %+v", len(found), kept)
	}
	s.down.Store(false)
	s.failing.Store(25)
	s.dropping.Store(15)
	s.slow.Store(2 << 20)
	passes := 0
	for found, _ := list(dir); len(found) > 0; found, _ = list(dir) {
		if passes++; passes > 400 {
			t.Fatalf("after %d passes %d recordings are still here: %+v", passes, len(found), kept)
		}
		u.pass(t.Context(), time.Now().Add(time.Duration(passes)*time.Hour))
	}
	t.Logf("%d passes, %+v", passes, *kept)
	if kept.Uploaded != 4 || kept.Pending != 0 || kept.UploadError != "" {
		t.Errorf("%+v", kept)
	}
	s.whole(calls)
	for _, key := range s.keys() {
		if !strings.HasPrefix(key, "fleet/a/v=1/") || !strings.Contains(key, "date=2025-11-25/") ||
			!strings.Contains(key, "node=node-1/") {
			t.Errorf("key %s", key)
		}
	}
	if text := said.String(); strings.Contains(text, secretKey) || strings.Contains(text, accessKey) {
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
	o, err := u.put(t.Context(), "large", bytesFile(data))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(s.get("large"), data) {
		t.Error("another file arrived")
	}
	before := s.puts.Load()
	if again, err := u.put(t.Context(), "large", bytesFile(data)); err != nil || again != o || s.puts.Load() != before {
		t.Errorf("%+v %v, %d requests: want %+v and none", again, err, s.puts.Load()-before, o)
	}
	data[7]++
	if _, err := u.put(t.Context(), "large", bytesFile(data)); err == nil {
		t.Error("another file is said to be uploaded under the same key")
	}
	if data[7]--; !bytes.Equal(s.get("large"), data) {
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
	if found, _ := list(u.shelf.dir); len(found) != 1 || kept.Uploaded != 1 || kept.Pending != 0 {
		t.Errorf("%d on the disk, %+v", len(found), kept)
	}
	recordings := ""
	for _, key := range s.keys() {
		switch {
		case strings.Contains(key, "table=recordings/"):
			recordings = key
		case strings.Contains(key, "table=calls/"),
			strings.Contains(key, "table=launches/"),
			strings.Contains(key, "jsonl"):
			t.Errorf("%s: events are uploaded", key)
		}
	}
	data := s.get(recordings)
	rows, err := parquet.Read[Row](bytes.NewReader(data), int64(len(data)))
	if err != nil || len(rows) != 1 || rows[0].Events != 100 || rows[0].Node != "node-1" || rows[0].Comm != "python" {
		t.Errorf("rows %+v %v", rows, err)
	}
	if _, err := archive.Read(filepath.Join(u.shelf.dir, name), archive.DefaultLimits()); err != nil {
		t.Errorf("what stays: %v", err)
	}
}

// TestUploadKilled kills the process in mid-upload, again and again.
func TestUploadKilled(t *testing.T) {
	if dir := os.Getenv("FLEET_TEST_UPLOAD"); dir != "" {
		uploadForever(t, dir)
		return
	}
	s := newStore(t)
	dir := t.TempDir()
	shelf, err := openShelf(dir, 1<<40, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string]int{}
	for i := range 3 {
		calls[made(t, shelf, i, 20_000)] = 20_000
	}
	s.slow.Store(1 << 20)
	kills := 0
	for found, _ := list(dir); len(found) > 0; found, _ = list(dir) {
		if kills > 60 {
			t.Fatal("it does not come to an end")
		}
		cmd := exec.Command(os.Args[0], "-test.run=^TestUploadKilled$")
		cmd.Env = append(os.Environ(), "FLEET_TEST_UPLOAD="+dir, "FLEET_TEST_ENDPOINT="+s.link.URL)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		before := s.puts.Load()
		wait := 1 + rand.Int64N(3)
		for s.puts.Load() < before+wait {
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
}

func uploadForever(t *testing.T, dir string) {
	s := &store{t: t, link: &httptest.Server{URL: os.Getenv("FLEET_TEST_ENDPOINT")}}
	u, _ := s.uploader(dir, zap.NewNop())
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
