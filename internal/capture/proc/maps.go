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

// mapsLine is one executable mapping of a file. It is only valid during the call.
type mapsLine struct{ procfile.MapsLine }

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

// parseMapsLine parses a line, if it is of an executable mapping: of others it looks at the permissions alone.
func parseMapsLine(line []byte) (m mapsLine, interesting bool, err error) {
	space := bytes.IndexByte(line, ' ')
	if space < 0 || len(line) < space+5 {
		return m, false, errMapsLine
	}
	if line[space+3] != 'x' {
		return m, false, nil
	}
	parsed, ok := procfile.ParseMapsLine(line)
	if !ok {
		return m, false, errMapsLine
	}
	return mapsLine{parsed}, parsed.Inode != 0 && len(parsed.Name) > 0 && parsed.Name[0] == '/', nil
}

// deletedSuffix is what d_path of fs/d_path.c appends for an unlinked file.
const deletedSuffix = " (deleted)"

// mapping copies a line out. root is the process's root as we see it: the kernel
// prints paths from the reader's root, so a chroot of the process stands in front.
func (m mapsLine) mapping(root string) Mapping {
	path := unescape(string(m.Name))
	path, deleted := strings.CutSuffix(path, deletedSuffix)
	if root != "/" && strings.HasPrefix(path, root+"/") {
		path = path[len(root):]
	}
	return Mapping{
		Start: m.Start, End: m.End, Offset: m.Offset, Dev: uint64(m.Major)<<32 | uint64(m.Minor), Inode: m.Inode,
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
