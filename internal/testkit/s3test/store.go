// Package s3test runs a real S3 server, versitygw, for tests of what is uploaded: one that can be killed and started
// again, behind a link with faults on request.
package s3test

import (
	"bytes"
	"encoding/json"
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
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// What the server is asked with: the bucket exists.
const (
	AccessKey = "test-access-key"
	SecretKey = "test-secret-key-of-nobody"
	Region    = "us-east-1"
	Bucket    = "recordings"
)

// Store is the server and the link to it.
type Store struct {
	Address string // of the server itself
	Root    string // the folder that it keeps objects in
	Client  *minio.Client

	Failing  atomic.Int64 // percent of requests that are answered with 500
	Dropping atomic.Int64 // percent of requests that the server carries out and whose answer is lost
	Down     atomic.Bool  // no request is answered
	Slow     atomic.Int64 // bytes a second; 0: as fast as it goes
	Puts     atomic.Int64 // requests that bring something

	t       testing.TB
	program string
	args    []string
	cmd     *exec.Cmd
	said    bytes.Buffer
	link    *httptest.Server
}

// Start starts a server until the end of the test, and puts its credentials into the environment.
func Start(t *testing.T) *Store {
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
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must.NoError(t, err)
	s := &Store{t: t, program: program, Address: l.Addr().String(), Root: t.TempDir()}
	_ = l.Close()
	s.args = []string{
		"--access", AccessKey, "--secret", SecretKey, "--port", s.Address, "--quiet",
		"posix", "--sidecar", t.TempDir(), s.Root,
	}
	s.Client, err = minio.New(s.Address,
		&minio.Options{Creds: credentials.NewStaticV4(AccessKey, SecretKey, ""), Region: Region})
	must.NoError(t, err)
	t.Cleanup(func() {
		s.Kill()
		if t.Failed() {
			t.Logf("versitygw said: %.2000s", s.said.String())
		}
	})
	s.Restart()
	must.NoError(t, s.Client.MakeBucket(t.Context(), Bucket, minio.MakeBucketOptions{Region: Region}))
	s.link = httptest.NewServer(s.faults())
	s.link.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(s.link.Close)
	t.Setenv("AWS_ACCESS_KEY_ID", AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", SecretKey)
	return s
}

// URL is the address of the link.
func (s *Store) URL() string { return s.link.URL }

// Kill ends the server at once, as kill -9 does.
func (s *Store) Kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

// Restart starts the server where none runs, and returns when it answers.
func (s *Store) Restart() {
	s.t.Helper()
	s.cmd = exec.CommandContext(s.t.Context(), s.program, s.args...)
	s.cmd.Stdout, s.cmd.Stderr = &s.said, &s.said
	must.NoError(s.t, s.cmd.Start())
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		_, err := s.Client.ListBuckets(s.t.Context())
		if err == nil {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("versitygw does not answer: %v", err)
		}
	}
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

// faults passes requests on to the server, unless it is told otherwise.
func (s *Store) faults() http.Handler {
	upstream := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: s.Address})
			r.Out.Host = r.In.Host
		},
		ErrorLog: log.New(io.Discard, "", 0),
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			s.Puts.Add(1)
		}
		if s.Down.Load() {
			panic(http.ErrAbortHandler) //nolint:forbidigo // this is how a handler hangs up
		}
		if rand.Int64N(100) < s.Failing.Load() {
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		if rate := s.Slow.Load(); rate > 0 {
			r.Body = slowly{r.Body, rate}
		}
		if rand.Int64N(100) < s.Dropping.Load() {
			upstream.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler) //nolint:forbidigo // this is how a handler hangs up
		}
		upstream.ServeHTTP(w, r)
	})
}

// Keys returns all keys of the bucket.
func (s *Store) Keys() []string {
	s.t.Helper()
	var out []string
	for o := range s.Client.ListObjects(s.t.Context(), Bucket, minio.ListObjectsOptions{Recursive: true}) {
		if o.Err != nil {
			s.t.Fatal(o.Err)
		}
		out = append(out, o.Key)
	}
	return out
}

// Get returns an object.
func (s *Store) Get(key string) []byte {
	s.t.Helper()
	o, err := s.Client.GetObject(s.t.Context(), Bucket, key, minio.GetObjectOptions{})
	must.NoError(s.t, err)
	defer func() { _ = o.Close() }()
	b, err := io.ReadAll(o)
	if err != nil {
		s.t.Fatalf("%s: %v", key, err)
	}
	return b
}

// Recording is one that the store has.
type Recording struct {
	Folder string // where it lies now, as it lay before it was uploaded
	Lines  []byte // its events as JSON lines, compressed; nil: there are none
}

// Recordings brings what the store has back, by name, and fails the test for one that is there twice and for objects
// that belong to none, and to none of those that are on the disk yet.
func (s *Store) Recordings(onDisk ...string) map[string]Recording {
	s.t.Helper()
	type object struct{ Key, Name string }
	out, owned := map[string]Recording{}, map[string]bool{}
	keys := s.Keys()
	for _, key := range keys {
		if !strings.Contains(key, "/_manifest/") {
			continue
		}
		owned[key] = true
		var m struct {
			Recording string
			Objects   []object
			Manifest  json.RawMessage
			Small     map[string]object
			JSONL     *object
		}
		if err := json.Unmarshal(s.Get(key), &m); err != nil {
			s.t.Fatalf("%s: %v", key, err)
		}
		name := m.Recording + archive.Extension
		r := Recording{Folder: filepath.Join(s.t.TempDir(), name)}
		for _, o := range m.Objects {
			owned[o.Key] = true
			s.write(filepath.Join(r.Folder, o.Name), s.Get(o.Key))
		}
		s.write(filepath.Join(r.Folder, "manifest.json"), m.Manifest)
		for _, o := range m.Small {
			owned[o.Key] = true
		}
		if m.JSONL != nil {
			owned[m.JSONL.Key] = true
			r.Lines = s.Get(m.JSONL.Key)
		}
		if _, twice := out[name]; twice {
			s.t.Errorf("%s has two manifests", name)
		}
		out[name] = r
	}
	for _, key := range keys {
		begun := slices.ContainsFunc(onDisk, func(path string) bool {
			return strings.HasPrefix(filepath.Base(key), strings.TrimSuffix(filepath.Base(path), archive.Extension))
		})
		if !owned[key] && !begun {
			s.t.Errorf("%s belongs to no recording", key)
		}
	}
	return out
}

func (s *Store) write(path string, data []byte) {
	s.t.Helper()
	must.NoError(s.t, os.MkdirAll(filepath.Dir(path), 0o700))
	must.NoError(s.t, os.WriteFile(path, data, 0o600))
}
