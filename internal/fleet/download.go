package fleet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"golang.org/x/sync/errgroup"

	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/format/clierror"
)

// Selection describes what of a store Download brings.
type Selection struct {
	Since, Until  time.Time // when recordings began; zero: from the first, to the last
	Node          string    // "" is every node
	Tables        []string  // of the recordings' events and names
	Small         []string  // of the small tables
	MaxBytes      int64     // of everything that is downloaded
	MaxRecordings int
}

// Downloaded is a recording that was downloaded from a store, as far as its Selection goes.
type Downloaded struct {
	Uploaded
	Folder     string            // holds the files of tables under their names in the recording
	SmallFiles map[string]string // by name of the table
}

const (
	maxManifest = 16 << 20 // bytes
	downloads   = 8        // at the same time
	attempts    = 4        // of each object

	hintNarrow = "take less of them with --since, --until or --node, or allow more with --max-download"
)

// fileName is how files of tables are called in recordings.
var fileName = regexp.MustCompile(`^[a-z_]{1,64}/[0-9]{1,9}\.parquet$`)

// Download brings the selected tables of complete recordings, those that have a manifest, into new folders below dir,
// the oldest first. Each file is compared with its sum in the manifest.
func Download(ctx context.Context, cfg UploadConfig, s Selection, dir string) ([]Downloaded, error) {
	store, err := connect(&cfg)
	if err != nil {
		return nil, err
	}
	d := &download{store: store, cfg: &cfg, selection: &s, dir: dir}
	found, err := d.find(ctx)
	var fault *clierror.Fault
	if err != nil && !errors.As(err, &fault) {
		err = clierror.New(clierror.General,
			"check the place, --endpoint, --region and the credentials in the environment",
			fmt.Errorf("asking the object store: %w", err))
	}
	if err != nil {
		return nil, err
	}
	if err := d.bring(ctx, found); err != nil {
		return nil, err
	}
	return found, nil
}

type download struct {
	store     *minio.Client
	cfg       *UploadConfig
	selection *Selection
	dir       string
	bytes     int64
}

// find reads the manifests of the recordings that are asked for.
func (d *download) find(ctx context.Context) ([]Downloaded, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the listing
	var keys []string
	prefix := path.Join(d.cfg.Prefix, layout, "_manifest") + "/"
	for o := range d.store.ListObjects(ctx, d.cfg.Bucket, minio.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
		if o.Err != nil {
			return nil, o.Err
		}
		if !strings.HasSuffix(o.Key, ".json") || !d.mayHold(strings.TrimPrefix(o.Key, prefix)) {
			continue
		}
		if keys = append(keys, o.Key); len(keys) > d.selection.MaxRecordings {
			return nil, clierror.New(clierror.General, "take less of them with --since, --until or --node",
				fmt.Errorf("there are more than %d recordings", d.selection.MaxRecordings))
		}
	}
	found := make([]Downloaded, len(keys))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(downloads)
	for i, key := range keys {
		group.Go(func() error {
			text, err := d.read(ctx, key)
			if err == nil {
				err = json.Unmarshal(text, &found[i].Uploaded)
			}
			if err == nil && (found[i].Manifest == nil || Safe(found[i].Recording) != found[i].Recording) {
				err = errors.New("it is not the manifest of a recording")
			}
			if err != nil {
				return fmt.Errorf("%s: %w", format.Clean(key), err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	out := found[:0]
	for i := range found {
		if d.selects(&found[i]) {
			out = append(out, found[i])
		}
	}
	return out, nil
}

// mayHold reports whether date=DATE/node=NODE/NAME can be a recording that is asked for.
func (d *download) mayHold(key string) bool {
	parts := strings.Split(key, "/")
	if len(parts) != 3 {
		return false
	}
	day, s := strings.TrimPrefix(parts[0], "date="), d.selection
	return (s.Since.IsZero() || day >= s.Since.UTC().Format(time.DateOnly)) &&
		(s.Until.IsZero() || day <= s.Until.UTC().Format(time.DateOnly)) &&
		(s.Node == "" || parts[1] == "node="+s.Node)
}

func (d *download) selects(m *Downloaded) bool {
	at, s := time.Unix(0, m.From), d.selection
	return !at.Before(s.Since) && (s.Until.IsZero() || at.Before(s.Until)) && (s.Node == "" || m.Node == s.Node)
}

// read returns a small object.
func (d *download) read(ctx context.Context, key string) ([]byte, error) {
	o, err := d.store.GetObject(ctx, d.cfg.Bucket, key, minio.GetObjectOptions{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = o.Close() }()
	text, err := io.ReadAll(io.LimitReader(o, maxManifest+1))
	if err == nil && len(text) > maxManifest {
		err = fmt.Errorf("it is larger than %s", format.Size(maxManifest))
	}
	return text, err
}

// part is an object to download, and where to.
type part struct {
	Object
	to string
}

func (d *download) bring(ctx context.Context, found []Downloaded) error {
	var parts []part
	for i := range found {
		m := &found[i]
		m.Folder = filepath.Join(d.dir, fmt.Sprint(i+1), "r")
		m.SmallFiles = map[string]string{}
		if err := os.MkdirAll(m.Folder, 0o700); err != nil {
			return err
		}
		for _, o := range m.Objects {
			if !fileName.MatchString(o.Name) {
				return fmt.Errorf("manifest of %s: %q is not a file of a table", m.Recording, format.Clean(o.Name))
			}
			if slices.Contains(d.selection.Tables, path.Dir(o.Name)) {
				parts = append(parts, part{o, filepath.Join(m.Folder, filepath.FromSlash(o.Name))})
			}
		}
		for _, name := range d.selection.Small {
			if o, has := m.Small[name]; has {
				m.SmallFiles[name] = filepath.Join(d.dir, fmt.Sprint(i+1), name+".parquet")
				parts = append(parts, part{o, m.SmallFiles[name]})
			}
		}
	}
	for _, p := range parts {
		if d.bytes += p.Bytes; p.Bytes < 0 || d.bytes > d.selection.MaxBytes {
			return clierror.New(clierror.General, hintNarrow, fmt.Errorf(
				"the tables of %d recordings take more than %s", len(found), format.Size(uint64(d.selection.MaxBytes)),
			))
		}
	}
	return d.all(ctx, parts)
}

func (d *download) all(ctx context.Context, parts []part) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(downloads)
	for _, p := range parts {
		group.Go(func() error {
			if err := os.MkdirAll(filepath.Dir(p.to), 0o700); err != nil {
				return err
			}
			if err := d.again(ctx, p); err != nil {
				return clierror.New(clierror.General, "try again; if it stays like that, the store has lost it",
					fmt.Errorf("%s: %w", format.Clean(p.Key), err))
			}
			return nil
		})
	}
	return group.Wait()
}

// again brings an object, in several attempts where the link or the store fails.
func (d *download) again(ctx context.Context, p part) (err error) {
	for i := range attempts {
		if i > 0 {
			select {
			case <-ctx.Done():
				return err
			case <-time.After(backoffLow << i / 8):
			}
		}
		if err = d.one(ctx, p); err == nil || ctx.Err() != nil {
			return err
		}
	}
	return err
}

// one brings an object, and makes sure that it is what was uploaded.
func (d *download) one(ctx context.Context, p part) error {
	ctx, cancel := context.WithTimeout(ctx, objectTime)
	defer cancel()
	o, err := d.store.GetObject(ctx, d.cfg.Bucket, p.Key, minio.GetObjectOptions{})
	if err != nil {
		return err
	}
	defer func() { _ = o.Close() }()
	f, err := os.OpenFile(p.to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, sum), io.LimitReader(o, p.Bytes+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); n != p.Bytes || got != p.SHA256 {
		return fmt.Errorf("it has %d bytes and SHA-256 %s instead of %d and %s", n, got, p.Bytes, p.SHA256)
	}
	return nil
}
