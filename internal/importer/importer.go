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
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/inferscope/inferscope/internal/record"
)

// Limits bound what is taken from a file.
type Limits struct {
	Bytes  int64 // of JSON, after unpacking
	Events int   // rows that become events; each takes some 100 bytes
	Names  int64 // bytes of all names together
}

// DefaultLimits returns 16 GiB of JSON, 64 million events and 256 MiB of names.
func DefaultLimits() Limits { return Limits{Bytes: 16 << 30, Events: 64 << 20, Names: 256 << 20} }

// ErrUnknown says that a file is of no kind that this package reads.
var ErrUnknown = errors.New("not a file of a profiler that can be imported: Kineto JSON (torch.profiler, .json or .json.gz) or Nsight Systems SQLite (nsys export --type sqlite)")

// Kind is a kind of file.
type Kind string

// The kinds.
const (
	Unknown Kind = ""
	Kineto  Kind = "kineto"
	Nsys    Kind = "nsys"
)

const (
	gzipMagic   = "\x1f\x8b"
	sqliteMagic = "SQLite format 3\x00"
	headBytes   = 512
)

// Sniff says of which kind a file is that begins with head; a gzip file counts as Kineto's, who alone packs.
func Sniff(head []byte) Kind {
	switch text := bytes.TrimLeft(bytes.TrimPrefix(head, []byte("\xef\xbb\xbf")), " \t\r\n"); {
	case bytes.HasPrefix(head, []byte(sqliteMagic)):
		return Nsys
	case bytes.HasPrefix(head, []byte(gzipMagic)):
		return Kineto
	case len(text) > 0 && (text[0] == '{' || text[0] == '['):
		return Kineto
	}
	return Unknown
}

// Open reads the file at path, of whichever kind it is. The error wraps ErrUnknown where it is of none.
func Open(path string) (*record.Recording, error) { return OpenWith(path, DefaultLimits()) }

// OpenWith is Open with other limits.
func OpenWith(path string, limits Limits) (*record.Recording, error) {
	rec, err := open(path, limits)
	if err != nil {
		return nil, fmt.Errorf("import %s: %w", path, err)
	}
	return rec, nil
}

func open(path string, limits Limits) (*record.Recording, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	head := make([]byte, headBytes)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch Sniff(head[:n]) {
	case Nsys:
		return ReadNsys(path, limits)
	case Kineto:
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return nil, err
		}
		return ReadKineto(f, limits)
	}
	return nil, ErrUnknown
}

// ReadKineto reads Kineto's JSON, packed with gzip or not.
func ReadKineto(r io.Reader, limits Limits) (*record.Recording, error) {
	in := bufio.NewReaderSize(r, 1<<18)
	if head, err := in.Peek(len(gzipMagic)); err == nil && string(head) == gzipMagic {
		unpacked, err := gzip.NewReader(in)
		if err != nil {
			return nil, fmt.Errorf("unpack it: %w", err)
		}
		in = bufio.NewReaderSize(unpacked, 1<<18)
	}
	return readKineto(&limited{r: in, left: limits.Bytes}, limits)
}

// limited is an io.LimitedReader that says so.
type limited struct {
	r    io.Reader
	left int64
}

// Read fails once more was asked for than the limit.
func (l *limited) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, errors.New("it is longer than the limit of bytes")
	}
	n, err := l.r.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	return n, err
}
