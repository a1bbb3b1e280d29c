// Package archive keeps recordings on disk: NAME.isc is a folder with a sub-folder per table,
// Parquet files that each hold a stretch of time, and a manifest that names them with their SHA-256
// sums. docs/recordings.md describes every table and column.
//
// What is written is read back identically, so that a report of a recording is the report of the
// daemon's data. A stretch counts once the manifest that lists it has been renamed into place: a writer that
// is killed leaves the stretches before. Input is hostile: sizes are checked before memory is taken, names
// never leave the folder, and sums are verified before anything is decoded.
package archive

import (
	"archive/zip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// entry is a file of a recording.
type entry struct {
	name  string // below the folder, with slashes
	bytes int64
}

// store is where a recording is: a folder or a packed one.
type store interface {
	io.Closer
	// open returns a file, which must be a regular one, and its size in bytes.
	open(name string) (io.ReadCloser, int64, error)
	// list returns all files, ordered by name.
	list() ([]entry, error)
}

// openStore opens a folder or a zip file.
func openStore(place string) (store, error) {
	info, err := os.Stat(place)
	if err != nil {
		return nil, fmt.Errorf("open a recording: %w", err)
	}
	if info.IsDir() {
		return openFolder(place)
	}
	return openZip(place)
}

// readAll reads a whole file of at most limit bytes.
func readAll(s store, name string, limit int64) ([]byte, error) {
	in, size, err := s.open(name)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	if size > limit {
		return nil, fmt.Errorf("%s has %d bytes, over the limit of %d", name, size, limit)
	}
	// Never more than what really comes: a zip's directory can claim any size.
	data, err := io.ReadAll(io.LimitReader(in, size+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if int64(len(data)) != size {
		return nil, fmt.Errorf("%s has not the %d bytes that it should have", name, size)
	}
	return data, nil
}

// readFile reads a file that a manifest lists and verifies it.
func readFile(s store, f *parquetFile) ([]byte, error) {
	data, err := readAll(s, f.Name, f.Bytes)
	if err != nil {
		return nil, err
	}
	if int64(len(data)) != f.Bytes {
		return nil, fmt.Errorf("%s has %d bytes instead of %d: it was changed", f.Name, len(data), f.Bytes)
	}
	if got := sumOf(data); got != f.SHA256 {
		return nil, changedError(f.Name, got, f.SHA256)
	}
	return data, nil
}

// verifyFile compares a file that a manifest lists with its sum, without holding it in memory.
func verifyFile(s store, f *parquetFile) error {
	in, _, err := s.open(f.Name)
	if err != nil {
		return err
	}
	defer in.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, io.LimitReader(in, f.Bytes+1)); err != nil { // it may grow meanwhile
		return fmt.Errorf("read %s: %w", f.Name, err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != f.SHA256 {
		return changedError(f.Name, got, f.SHA256)
	}
	return nil
}

// changedError says that a file has another SHA-256 than its manifest says.
func changedError(name, got, want string) error {
	return fmt.Errorf("%s has SHA-256 %.16s... instead of %.16s...: it was changed or damaged", name, got, want)
}

func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// noManifestError says that a folder or zip file is no recording.
type noManifestError struct{ cause error }

// Error leaves out the cause: it says no more.
func (*noManifestError) Error() string {
	return "it has no " + manifestName + ", so it is not a recording of InferScope"
}

// Unwrap returns the cause.
func (e *noManifestError) Unwrap() error { return e.cause }

func readManifest(s store) (*Manifest, error) {
	text, err := readAll(s, manifestName, maxManifest)
	if errors.Is(err, os.ErrNotExist) {
		return nil, &noManifestError{err}
	}
	if err != nil {
		return nil, err
	}
	return parseManifest(text)
}

// folder is a recording in a folder. os.Root lets nothing out of it, not through symbolic links either.
type folder struct{ root *os.Root }

func openFolder(dir string) (store, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open a recording: %w", err)
	}
	return folder{root}, nil
}

// Close lets go of the folder.
func (f folder) Close() error { return f.root.Close() }

func (f folder) open(name string) (io.ReadCloser, int64, error) {
	info, err := f.root.Lstat(filepath.FromSlash(name))
	if err == nil && !info.Mode().IsRegular() {
		err = errNotRegular
	}
	if err != nil {
		return nil, 0, fmt.Errorf("open %s: %w", name, err)
	}
	// Not blocking: a named pipe that took its place meanwhile would wait for its writer.
	file, err := f.root.OpenFile(filepath.FromSlash(name), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("open %s: %w", name, err)
	}
	if info, err = file.Stat(); err == nil && !info.Mode().IsRegular() {
		err = errNotRegular
	}
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("open %s: %w", name, err), file.Close())
	}
	return file, info.Size(), nil
}

var errNotRegular = errors.New("it is no regular file")

// maxEntries bounds the files of a recording: a week of stretches has about a million.
const maxEntries = 2 << 20

func (f folder) list() ([]entry, error) {
	var out []entry
	err := fs.WalkDir(f.root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if len(out) >= maxEntries {
			return fmt.Errorf("it has more than %d files", maxEntries)
		}
		if info.Mode().IsRegular() {
			out = append(out, entry{name, info.Size()})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the recording's files: %w", err)
	}
	return out, nil
}

// zipped is a recording in a zip file, below a folder of any name.
type zipped struct {
	file  *os.File
	files map[string]*zip.File
	total uint64
}

func openZip(place string) (store, error) {
	file, err := os.Open(place)
	if err != nil {
		return nil, fmt.Errorf("open a recording: %w", err)
	}
	p, err := readZip(file)
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("open %s: %w", place, err)
	}
	return p, nil
}

func readZip(file *os.File) (*zipped, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errNotRegular
	}
	z, err := zip.NewReader(file, info.Size())
	if err != nil {
		var head [2]byte
		if _, reading := file.ReadAt(head[:], 0); reading == nil && string(head[:]) == "PK" {
			return nil, fmt.Errorf("it is a zip file that is cut off or damaged: %w", err)
		}
		return nil, fmt.Errorf("it is neither a folder nor a zip file: %w", err)
	}
	p := &zipped{file: file, files: map[string]*zip.File{}}
	if err := p.take(z); err != nil {
		return nil, err
	}
	// Parquet files are compressed already and are stored as they are; only a bomb grows like this.
	if bound := uint64(info.Size())*maxUnpackRatio + maxManifest; p.total > bound {
		return nil, fmt.Errorf("it claims %d bytes in a zip file of %d, which no recording does", p.total, info.Size())
	}
	return p, nil
}

// maxUnpackRatio is how many times its size a packed recording may unpack to.
const maxUnpackRatio = 20

// take notes the files of a zip and refuses names that could lead anywhere else.
func (p *zipped) take(z *zip.Reader) error {
	if len(z.File) > maxEntries {
		return fmt.Errorf("it has more than %d files", maxEntries)
	}
	prefix := prefixOf(z)
	for _, f := range z.File {
		if strings.HasSuffix(f.Name, "/") {
			continue
		}
		name, below := strings.CutPrefix(f.Name, prefix)
		if !below || !safe(name) {
			return fmt.Errorf("its file %q is not in the recording's folder", f.Name)
		}
		if !f.Mode().IsRegular() {
			return fmt.Errorf("its file %q is no regular file", f.Name)
		}
		if _, twice := p.files[name]; twice {
			return fmt.Errorf("it has %q twice", f.Name)
		}
		p.files[name] = f
		if p.total += f.UncompressedSize64; p.total < f.UncompressedSize64 {
			return errors.New("its files claim more bytes than can be counted")
		}
	}
	return nil
}

// prefixOf returns the folder that holds the manifest, with its slash; "" where it lies at the top.
func prefixOf(z *zip.Reader) string {
	for _, f := range z.File {
		if dir, base := path.Split(f.Name); base == manifestName && strings.Count(dir, "/") <= 1 {
			return dir
		}
	}
	return ""
}

// safe reports whether a name stays in its folder, on every system.
func safe(name string) bool {
	return name != "" && len(name) <= 512 && filepath.IsLocal(name) && path.Clean(name) == name &&
		!strings.ContainsAny(name, "\\:\x00") &&
		strings.Count(name, "/") <= 4
}

// Close lets go of the zip file.
func (p *zipped) Close() error { return p.file.Close() }

func (p *zipped) open(name string) (io.ReadCloser, int64, error) {
	f, there := p.files[name]
	if !there {
		return nil, 0, fmt.Errorf("open %s: %w", name, os.ErrNotExist)
	}
	if f.UncompressedSize64 > maxFileBytes {
		return nil, 0, fmt.Errorf("%s claims %d bytes, over the limit of %d",
			name, f.UncompressedSize64, int64(maxFileBytes))
	}
	in, err := f.Open()
	if err != nil {
		return nil, 0, fmt.Errorf("open %s: %w", name, err)
	}
	return in, int64(f.UncompressedSize64), nil
}

func (p *zipped) list() ([]entry, error) {
	out := make([]entry, 0, len(p.files))
	for name, f := range p.files {
		out = append(out, entry{name, int64(min(f.UncompressedSize64, 1<<62))})
	}
	slices.SortFunc(out, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return out, nil
}
