// Package importer reads what other tools recorded into a recording: the Chrome JSON of torch.profiler (Kineto)
// and the SQLite files of Nsight Systems. What they lack is said in the recording's sources, so that a report on it
// shows what it could not know.
//
// Files are hostile input: sizes, counts and names are bounded, and an error says what was wrong and where.
package importer

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/inferscope/inferscope/internal/recording"
)

// Limits bound what is taken from a file.
type Limits struct {
	Bytes  int64 // of JSON, after unpacking
	Events int   // rows that become events; each takes some 100 bytes
	Names  int64 // bytes of all names together
}

// DefaultLimits returns 16 GiB of JSON, 64 million events and 256 MiB of names.
func DefaultLimits() Limits { return Limits{Bytes: 16 << 30, Events: 64 << 20, Names: 256 << 20} }

// LimitsFor returns limits that keep reading a file, and the report of it, within some bytes of memory, as far as that
// can be said before it is read: an event takes up to 600 bytes.
func LimitsFor(memory int64) Limits {
	l := DefaultLimits()
	l.Events = int(min(int64(l.Events), memory/600))
	l.Names = min(l.Names, memory/8)
	return l
}

// ErrUnknown means that this package cannot read this kind of file.
var ErrUnknown = errors.New(
	"not a file of a profiler that can be imported: Kineto JSON (torch.profiler, .json or .json.gz) or Nsight " +
		"Systems SQLite (nsys export --type sqlite)",
)

// fileKind is a kind of file.
type fileKind string

// The kinds.
const (
	kindUnknown fileKind = ""
	kindKineto  fileKind = "kineto"
	kindNsys    fileKind = "nsys"
)

const (
	gzipMagic   = "\x1f\x8b"
	sqliteMagic = "SQLite format 3\x00"
	headBytes   = 512
)

// sniff says of which kind a file is that begins with head; a gzip file counts as Kineto's, who alone packs.
func sniff(head []byte) fileKind {
	switch text := bytes.TrimLeft(bytes.TrimPrefix(head, []byte("\xef\xbb\xbf")), " \t\r\n"); {
	case bytes.HasPrefix(head, []byte(sqliteMagic)):
		return kindNsys
	case bytes.HasPrefix(head, []byte(gzipMagic)):
		return kindKineto
	case len(text) > 0 && (text[0] == '{' || text[0] == '['):
		return kindKineto
	}
	return kindUnknown
}

// Open reads the file at path, of whichever kind it is. The error wraps ErrUnknown where it is of none.
func Open(path string) (*recording.Recording, error) {
	return OpenContext(context.Background(), path, DefaultLimits())
}

// OpenContext is Open with other limits, and ends with a context.
func OpenContext(ctx context.Context, path string, limits Limits) (*recording.Recording, error) {
	p, err := openPart(ctx, path, limits)
	return p.rec, err
}

func openPart(ctx context.Context, path string, limits Limits) (part, error) {
	p, err := open(ctx, path, limits)
	if err != nil {
		return part{}, fmt.Errorf("import %s: %w", path, err)
	}
	return p, nil
}

func open(ctx context.Context, path string, limits Limits) (part, error) {
	f, err := os.Open(path)
	if err != nil {
		return part{}, err
	}
	defer f.Close()
	head := make([]byte, headBytes)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return part{}, err
	}
	switch sniff(head[:n]) {
	case kindNsys:
		rec, err := readNsys(ctx, path, limits)
		return part{rec, -1}, err
	case kindKineto:
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return part{}, err
		}
		return readGzip(ctx, f, limits)
	}
	return part{}, ErrUnknown
}

// ReadKineto reads Kineto's JSON, packed with gzip or not.
func ReadKineto(r io.Reader, limits Limits) (*recording.Recording, error) {
	p, err := readGzip(context.Background(), r, limits)
	return p.rec, err
}

func readGzip(ctx context.Context, r io.Reader, limits Limits) (part, error) {
	in := bufio.NewReaderSize(r, 1<<18)
	if head, err := in.Peek(len(gzipMagic)); err == nil && string(head) == gzipMagic {
		unpacked, err := gzip.NewReader(in)
		if err != nil {
			return part{}, fmt.Errorf("unpack it: %w", err)
		}
		in = bufio.NewReaderSize(unpacked, 1<<18)
	}
	return readKineto(&limited{ctx: ctx, r: in, left: limits.Bytes}, limits)
}

// limited is a reader that ends with a context, at a limit of bytes, and where a JSON value is longer than maxValue.
type limited struct {
	ctx  context.Context
	r    io.Reader
	left int64
	read int64
	used func() int64 // how many bytes are decoded; what was read beyond is one value that is kept whole
}

// maxValue bounds one value of JSON, which is kept in memory until it is decoded: a row, or a text outside of rows.
const maxValue = 16 << 20

// Read fails once more was asked for than a limit.
func (l *limited) Read(p []byte) (int, error) {
	if err := l.ctx.Err(); err != nil {
		return 0, err
	}
	if l.left <= 0 {
		return 0, errors.New("it is longer than the limit of bytes")
	}
	if l.read-l.used() > maxValue {
		return 0, fmt.Errorf("a row or text is longer than the limit of %d bytes", maxValue)
	}
	n, err := l.r.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	l.read += int64(n)
	return n, err
}
