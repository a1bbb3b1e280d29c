package proc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/procfile"
)

const (
	// maxMapsLine bounds a line of /proc/PID/maps: PATH_MAX with every byte
	// escaped, and room. A process in a deeper directory can make longer ones;
	// their mappings are left out.
	maxMapsLine = 32 << 10
	// maxMapsBytes is 65,530 mappings (vm.max_map_count) of 1 KiB each. The limit
	// may be raised, but a process with more is not worth stalling for.
	maxMapsBytes = 64 << 20
	// maxMappings bounds what is kept: a PyTorch process has about 300.
	maxMappings = 16384
)

var (
	errMapsTooLong = fmt.Errorf("more than %d MiB of mappings", maxMapsBytes>>20)
	errManyFiles   = fmt.Errorf("more than %d executable file mappings", maxMappings)
	errMapsLine    = errors.New("a line that is not a mapping")
)

// mapsLine is one executable mapping of a file. path is only valid during the call.
type mapsLine struct {
	start, end, offset, dev, inode uint64
	path                           []byte // as printed: newlines escaped, " (deleted)" at the end
}

// scanMaps calls visit with each executable file mapping in the text of
// /proc/PID/maps. Other lines cost a look at their permissions, no more.
func scanMaps(r io.Reader, visit func(mapsLine) error) error {
	buf := make([]byte, maxMapsLine)
	held, total, skipping := 0, 0, false
	for {
		n, err := r.Read(buf[held:])
		held += n
		if total += n; total > maxMapsBytes {
			return errMapsTooLong
		}
		rest, lineErr := scanLines(buf[:held], &skipping, visit)
		if lineErr != nil {
			return lineErr
		}
		held = copy(buf, rest)
		if held == len(buf) { // a line that does not fit
			held, skipping = 0, true
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// scanLines takes the whole lines off text and returns the rest.
func scanLines(text []byte, skipping *bool, visit func(mapsLine) error) ([]byte, error) {
	for {
		end := bytes.IndexByte(text, '\n')
		if end < 0 {
			return text, nil
		}
		line := text[:end]
		text = text[end+1:]
		if *skipping {
			*skipping = false
			continue
		}
		m, interesting, err := parseMapsLine(line)
		if err != nil {
			return nil, err
		}
		if !interesting {
			continue
		}
		if err := visit(m); err != nil {
			return nil, err
		}
	}
}

// parseMapsLine reads "START-END rwxp OFFSET MAJOR:MINOR INODE   PATH", of which
// all but the path is the kernel's own text.
func parseMapsLine(line []byte) (m mapsLine, interesting bool, err error) {
	space := bytes.IndexByte(line, ' ')
	if space < 0 || len(line) < space+5 {
		return m, false, errMapsLine
	}
	if line[space+3] != 'x' {
		return m, false, nil
	}
	s := hexScanner{rest: line}
	m.start = s.hex('-')
	m.end = s.hex(' ')
	s.skip(5)
	m.offset = s.hex(' ')
	m.dev = s.hex(':') << 32
	m.dev |= s.hex(' ')
	m.inode = s.decimal()
	if s.bad {
		return m, false, errMapsLine
	}
	m.path = bytes.TrimLeft(s.rest, " ")
	return m, m.inode != 0 && len(m.path) > 0 && m.path[0] == '/', nil
}

// hexScanner takes numbers off the front of a line and remembers whether one was missing.
type hexScanner struct {
	rest []byte
	bad  bool
}

func (s *hexScanner) hex(end byte) uint64 {
	var n uint64
	for i, c := range s.rest {
		switch {
		case c >= '0' && c <= '9':
			n = n<<4 | uint64(c-'0')
		case c >= 'a' && c <= 'f':
			n = n<<4 | uint64(c-'a'+10)
		case c == end && i > 0 && i <= 16:
			s.rest = s.rest[i+1:]
			return n
		default:
			s.bad = true
			return 0
		}
	}
	s.bad = true
	return 0
}

func (s *hexScanner) decimal() uint64 {
	var n uint64
	i := 0
	for i < len(s.rest) && i < 20 && s.rest[i] >= '0' && s.rest[i] <= '9' {
		n = n*10 + uint64(s.rest[i]-'0')
		i++
	}
	if i == 0 || (i < len(s.rest) && s.rest[i] != ' ') {
		s.bad = true
	}
	s.rest = s.rest[i:]
	return n
}

func (s *hexScanner) skip(n int) {
	if len(s.rest) < n {
		s.bad = true
		return
	}
	s.rest = s.rest[n:]
}

// deletedSuffix is what d_path of fs/d_path.c appends for an unlinked file.
const deletedSuffix = " (deleted)"

// mapping copies a line out. root is the process's root as we see it: the kernel
// prints paths from the reader's root, so a chroot of the process stands in front.
func (m mapsLine) mapping(root string) Mapping {
	path := unescape(string(m.path))
	path, deleted := strings.CutSuffix(path, deletedSuffix)
	if root != "/" && strings.HasPrefix(path, root+"/") {
		path = path[len(root):]
	}
	return Mapping{
		Start: m.start, End: m.end, Offset: m.offset, Dev: m.dev, Inode: m.inode,
		Path: path, Deleted: deleted,
	}
}

// unescape undoes the kernel's one escape in maps: a newline is printed as \012.
// A file whose name holds these four characters prints the same; Open tries both.
func unescape(path string) string { return strings.ReplaceAll(path, `\012`, "\n") }

// maxAuxv is more than the auxiliary vector of any kernel, bytes.
const maxAuxv = 4 << 10

// Image returns what tells the programs that a process runs one after another apart: its
// auxiliary vector, with the addresses that execve(2) chose.
func Image(p *Process) (string, error) {
	b, err := procfile.Head(fmt.Sprintf("/proc/%d/auxv", p.PID), maxAuxv)
	if err == nil && !p.Alive() {
		err = unix.ESRCH
	}
	return string(b), err
}
