package fleet

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"go.uber.org/zap"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording/archive"
)

// UploadConfig describes where recordings are uploaded to. It holds no secrets: these come from the environment, from
// ~/.aws/credentials, or from the machine (instance profile, IRSA, Pod Identity).
type UploadConfig struct {
	Endpoint string        `json:"endpoint"` // https://s3.example.com; "" is AWS
	Region   string        `json:"region"`
	Bucket   string        `json:"bucket"`
	Prefix   string        `json:"prefix"`  // of all keys, without slashes at its ends
	Node     string        `json:"node"`    // in the keys
	MinAge   time.Duration `json:"min_age"` // recordings younger than that stay where they are
	Raw      string        `json:"raw"`     // which recordings' events are uploaded: always, triggered
}

// What Raw may be.
const (
	RawAlways    = "always"    // of all recordings
	RawTriggered = "triggered" // of those that a trigger or a command made; of others the small tables
)

const (
	// DefaultMinAge is how old a recording is when it is uploaded.
	DefaultMinAge = 2 * time.Minute
	// layout is the version of the keys.
	layout = "v=1"
	// partSize is the size of a part of a multipart upload; smaller files are one request.
	partSize = 16 << 20

	uploadLook  = 5 * time.Second
	objectTime  = 10 * time.Minute // for one file, over a slow link
	backoffLow  = time.Second
	backoffHigh = 5 * time.Minute
)

const hintUpload = "write it as s3://BUCKET/PREFIX; name another store with --upload-endpoint https://HOST"

// ParseDestination reads s3://BUCKET/PREFIX.
func ParseDestination(text string) (bucket, prefix string, err error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "s3" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", "", clierror.New(clierror.Usage, hintUpload,
			fmt.Errorf("--upload: %q is not a place in an object store", text))
	}
	return u.Host, strings.Trim(path.Clean("/"+u.Path), "/"), nil
}

// uploader brings finished recordings into an object store, the oldest first.
type uploader struct {
	cfg    UploadConfig
	shelf  *shelf
	store  *minio.Client
	log    *zap.Logger
	tables func(ctx context.Context, folder string, r Row) ([]SmallTable, error) // beside table recordings; nil: there are none
	lines  *liner                                                                // nil: there are no JSON lines
	retry  map[string]*attempt
	left   map[string]bool // recordings that an earlier process may have been about to upload; nil before the first pass
	unsure bool            // parts of the recording at hand may be in the store
	update func(func(*api.Kept))
	look   time.Duration
	low    time.Duration
}

// attempt is what is remembered of a recording that could not be uploaded.
type attempt struct {
	failed int
	next   time.Time
}

// SmallTable is a table that is uploaded of every recording.
type SmallTable struct {
	Name string
	Data []byte // a Parquet file
}

// connect returns a client of the store. It asks the store nothing yet.
func connect(cfg *UploadConfig) (*minio.Client, error) {
	host, secure := "s3.amazonaws.com", true
	if cfg.Endpoint != "" {
		u, err := url.Parse(cfg.Endpoint)
		if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || strings.Trim(u.Path, "/") != "" ||
			u.User != nil {
			return nil, clierror.New(clierror.Usage, "write it as https://HOST[:PORT]",
				errors.New("the endpoint is not the address of a store"))
		}
		host, secure = u.Host, u.Scheme == "https"
	}
	client := &http.Client{Transport: http.DefaultTransport}
	store, err := minio.New(host, &minio.Options{
		Secure: secure, Region: cfg.Region, TrailingHeaders: true, MaxRetries: 1,
		Creds: credentials.NewChainCredentials([]credentials.Provider{
			&credentials.EnvAWS{}, &credentials.EnvMinio{},
			&credentials.FileAWSCredentials{}, &credentials.IAM{Client: client},
		}),
	})
	if err != nil {
		return nil, clierror.New(clierror.Usage, hintUpload, fmt.Errorf("the object store: %w", err))
	}
	return store, nil
}

func newUploader(cfg UploadConfig, s *shelf, log *zap.Logger, update func(func(*api.Kept))) (*uploader, error) {
	store, err := connect(&cfg)
	if err != nil {
		return nil, err
	}
	return &uploader{
		cfg: cfg, shelf: s, store: store, log: log, retry: map[string]*attempt{},
		update: update, look: uploadLook, low: backoffLow,
	}, nil
}

// run uploads until ctx is done.
func (u *uploader) run(ctx context.Context) {
	ticker := time.NewTicker(u.look)
	defer ticker.Stop()
	for {
		u.pass(ctx, time.Now())
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// pass uploads what is due.
func (u *uploader) pass(ctx context.Context, now time.Time) {
	found, err := list(u.shelf.dir)
	if err != nil {
		return
	}
	there := map[string]bool{}
	waiting := 0
	if u.left == nil {
		u.left = map[string]bool{}
		for _, f := range found {
			u.left[f.name] = true
		}
	}
	for _, f := range found {
		there[f.name] = true
		if u.isDone(f.name) {
			continue
		}
		waiting++
		a := u.retry[f.name]
		if now.Sub(f.changed) < u.cfg.MinAge || a != nil && now.Before(a.next) {
			continue
		}
		if ctx.Err() != nil {
			return
		}
		u.unsure = a != nil || u.left[f.name]
		if err := u.one(ctx, f.name); err != nil {
			if ctx.Err() == nil {
				u.failed(f.name, err, now)
			}
			continue
		}
		waiting--
		delete(u.retry, f.name)
		delete(u.left, f.name)
	}
	for name := range u.retry {
		if !there[name] {
			delete(u.retry, name)
		}
	}
	u.update(func(k *api.Kept) { k.Pending = waiting })
}

// failed notes when to try again: twice as late each time, at random up to that, so that a thousand nodes do not come
// at once after an outage.
func (u *uploader) failed(name string, err error, now time.Time) {
	a := u.retry[name]
	if a == nil {
		a = &attempt{}
		u.retry[name] = a
	}
	a.failed++
	longest := min(backoffHigh, u.low<<min(a.failed, 20))
	a.next = now.Add(longest/2 + time.Duration(rand.Int64N(int64(longest/2)+1)))
	if a.failed == 1 {
		u.log.Warn("a recording was not uploaded; it stays on the disk and is tried again",
			zap.String("recording", name), zap.Error(err))
	}
	u.update(func(k *api.Kept) { k.UploadFailed++; k.UploadError = err.Error() })
}

// doneMark is the file beside a recording whose small tables are uploaded, and whose events stay here.
const doneMark = ".uploaded"

func (u *uploader) isDone(name string) bool {
	_, err := os.Lstat(filepath.Join(u.shelf.dir, name, doneMark))
	return err == nil
}

// Uploaded is the manifest that ends an upload: a recording without one is not complete.
type Uploaded struct {
	Recording string            `json:"recording"`
	Node      string            `json:"node"`
	From      int64             `json:"from_ns"` // since 1970
	To        int64             `json:"to_ns"`
	Target    uint32            `json:"target_pid"`
	Raw       bool              `json:"raw"` // its events are there, too
	Objects   []Object          `json:"objects"`
	Manifest  *archive.Manifest `json:"manifest"` // of the recording's folder
	Small     map[string]Object `json:"small,omitempty"`
	Lines     *Object           `json:"jsonl,omitempty"` // all events, as JSON lines
}

// Object is one uploaded file.
type Object struct {
	Key    string `json:"key"`
	Name   string `json:"name,omitempty"` // in the recording's folder
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// one uploads a recording, makes sure that the store has it, and deletes it here.
func (u *uploader) one(ctx context.Context, name string) error {
	defer u.shelf.pin(name)()
	folder := filepath.Join(u.shelf.dir, name)
	in, err := archive.Inspect(folder, false)
	if err != nil {
		return err
	}
	if len(in.Missing)+len(in.Damaged) > 0 {
		return fmt.Errorf("%d files are missing and %d damaged", len(in.Missing), len(in.Damaged))
	}
	base := strings.TrimSuffix(name, archive.Extension)
	row := RowOf(base, u.cfg.Node, in.Manifest)
	m := Uploaded{
		Recording: base, Node: u.cfg.Node, From: row.From, To: row.To, Target: in.Manifest.Target,
		Manifest: in.Manifest, Raw: u.cfg.Raw != RawTriggered || isTriggered(base), Objects: []Object{},
	}
	if err := u.raw(ctx, folder, &m); err != nil {
		return err
	}
	if err := u.small(ctx, folder, &m, row); err != nil {
		return err
	}
	if err := u.jsonLines(ctx, name, &m); err != nil {
		return err
	}
	text, err := json.Marshal(&m)
	if err != nil {
		return err
	}
	if _, err := u.put(ctx, u.manifestKey(&m), bytesFile(text)); err != nil {
		return err
	}
	u.shelf.journal.add(uploaded, name)
	u.update(func(k *api.Kept) { k.UploadError = "" })
	if !m.Raw {
		return os.WriteFile(filepath.Join(folder, doneMark), nil, 0o600)
	}
	return u.shelf.delete(name)
}

// facts are the tables of a recording that are uploaded of all of them: they are small, and say what the others are
// about.
var facts = []string{"processes", "losses", "sources", "libraries"}

// raw uploads the files of the tables.
func (u *uploader) raw(ctx context.Context, folder string, m *Uploaded) error {
	for _, table := range tablesOf(m.Manifest) {
		if !m.Raw && !slices.Contains(facts, table) {
			continue
		}
		for i, f := range m.Manifest.Tables[table].Files {
			key := u.key(table, m, fmt.Sprintf("-%d.parquet", i+1))
			o, err := u.put(ctx, key, diskFile(filepath.Join(folder, filepath.FromSlash(f.Name))))
			if err != nil {
				return fmt.Errorf("%s: %w", f.Name, err)
			}
			if o.SHA256 != f.SHA256 {
				return fmt.Errorf("%s has SHA-256 %s instead of %s: it was changed", f.Name, o.SHA256, f.SHA256)
			}
			o.Name = f.Name
			m.Objects = append(m.Objects, o)
		}
	}
	return nil
}

func tablesOf(m *archive.Manifest) []string {
	names := make([]string, 0, len(m.Tables))
	for name := range m.Tables {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// small uploads the tables that everybody asks.
func (u *uploader) small(ctx context.Context, folder string, m *Uploaded, row Row) error {
	recordings, err := recordingsTable(row)
	if err != nil {
		return err
	}
	tables := []SmallTable{recordings}
	if u.tables != nil {
		more, err := u.analyze(ctx, folder, row)
		if err != nil {
			return err
		}
		tables = append(tables, more...)
	}
	m.Small = map[string]Object{}
	for _, t := range tables {
		o, err := u.put(ctx, u.key(t.Name, m, ".parquet"), bytesFile(t.Data))
		if err != nil {
			return fmt.Errorf("table %s: %w", t.Name, err)
		}
		m.Small[t.Name] = o
	}
	return nil
}

// analyze makes the tables that rest on the analysis of a recording. One recording at a time is in memory.
func (u *uploader) analyze(ctx context.Context, folder string, row Row) ([]SmallTable, error) {
	if u.lines != nil {
		u.lines.mu.Lock()
		defer u.lines.mu.Unlock()
	}
	return u.tables(ctx, folder, row)
}

// jsonLines uploads the events as JSON lines, where they are asked for and can be written.
func (u *uploader) jsonLines(ctx context.Context, name string, m *Uploaded) error {
	if u.lines == nil || !m.Raw {
		return nil
	}
	file := u.lines.ensure(ctx, name)
	if file == "" {
		return ctx.Err()
	}
	o, err := u.put(ctx, u.place("jsonl", m, linesExtension), diskFile(file))
	if err != nil {
		return fmt.Errorf("JSON lines: %w", err)
	}
	m.Lines = &o
	return nil
}

// key returns where a file of a table lies: in Hive partitions by date, hour and node.
func (u *uploader) key(table string, m *Uploaded, end string) string {
	return u.place("table="+table, m, end)
}

func (u *uploader) place(kind string, m *Uploaded, end string) string {
	at := time.Unix(0, m.From).UTC()
	return path.Join(u.cfg.Prefix, layout, kind, "date="+at.Format(time.DateOnly), "hour="+at.Format("15"),
		"node="+m.Node, m.Recording+end)
}

func (u *uploader) manifestKey(m *Uploaded) string {
	return path.Join(u.cfg.Prefix, layout, "_manifest",
		"date="+time.Unix(0, m.From).UTC().Format(time.DateOnly), "node="+m.Node, m.Recording+".json")
}

// source is what is uploaded: it is read twice.
type source struct {
	open func() (io.ReadCloser, error)
}

func diskFile(path string) source {
	return source{func() (io.ReadCloser, error) { return os.Open(path) }}
}

func bytesFile(b []byte) source {
	return source{func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(string(b))), nil }}
}

// sums of a file.
type sums struct {
	bytes  int64
	sha256 string
	crc32c string // as S3 writes it: base64 of the big-endian sum
}

func (s source) sums() (out sums, err error) {
	f, err := s.open()
	if err != nil {
		return out, err
	}
	defer f.Close()
	sha, crc := sha256.New(), crc32.New(crc32.MakeTable(crc32.Castagnoli))
	if out.bytes, err = io.Copy(io.MultiWriter(sha, crc), f); err != nil {
		return out, err
	}
	out.sha256 = hex.EncodeToString(sha.Sum(nil))
	out.crc32c = base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc.Sum32()))
	return out, nil
}

// metaSHA256 is the header in which a store keeps our sum beside its own.
const metaSHA256 = "Sha256"

// put uploads a file once: the store refuses a second one under the same key, and is asked afterwards what it has.
func (u *uploader) put(ctx context.Context, key string, s source) (Object, error) {
	ctx, cancel := context.WithTimeout(ctx, objectTime)
	defer cancel()
	want, err := s.sums()
	if err != nil {
		return Object{}, err
	}
	o := Object{Key: key, Bytes: want.bytes, SHA256: want.sha256}
	// Of an earlier attempt, or something else that is not to be replaced: not all stores heed If-None-Match at the end
	// of a multipart upload.
	if err := u.has(ctx, key, want); !errors.Is(err, errNotThere) {
		return o, err
	}
	f, err := s.open()
	if err != nil {
		return o, err
	}
	defer f.Close()
	opts := minio.PutObjectOptions{
		ContentType: "application/octet-stream", PartSize: partSize, AutoChecksum: minio.ChecksumCRC32C,
		UserMetadata: map[string]string{metaSHA256: want.sha256},
	}
	if want.bytes > partSize {
		opts.Checksum = minio.ChecksumFullObjectCRC32C // of the whole, not of the sums of its parts
		if u.unsure {
			// Parts of an attempt that was cut off would stay for ever. A store that refuses to list them is no
			// obstacle.
			_ = u.store.RemoveIncompleteUpload(ctx, u.cfg.Bucket, key)
		}
	}
	opts.SetMatchETagExcept("*")
	_, err = u.store.PutObject(ctx, u.cfg.Bucket, key, f, want.bytes, opts)
	var answer minio.ErrorResponse
	if err != nil && !(errors.As(err, &answer) && answer.StatusCode == http.StatusPreconditionFailed) {
		return o, err
	}
	return o, u.has(ctx, key, want)
}

var errNotThere = errors.New("the store does not have it")

// has returns an error unless the store has exactly this file: errNotThere where it has none.
func (u *uploader) has(ctx context.Context, key string, want sums) error {
	info, err := u.store.StatObject(ctx, u.cfg.Bucket, key, minio.StatObjectOptions{Checksum: true})
	if minio.ToErrorResponse(err).StatusCode == http.StatusNotFound {
		return fmt.Errorf("%s: %w", key, errNotThere)
	}
	if err != nil {
		return err
	}
	switch sha := info.UserMetadata[metaSHA256]; {
	case info.Size != want.bytes:
		return fmt.Errorf("the store has %d bytes of %s, not %d", info.Size, key, want.bytes)
	case sha != want.sha256:
		return fmt.Errorf("the store has another file as %s", key)
	case info.ChecksumCRC32C != "" && !strings.Contains(info.ChecksumCRC32C, "-") && info.ChecksumCRC32C != want.crc32c:
		return fmt.Errorf("the store has %s with the checksum %s, not %s", key, info.ChecksumCRC32C, want.crc32c)
	}
	return nil
}
