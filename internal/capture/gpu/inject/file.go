package inject

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/procfile"
)

// made is the file in the target, filled with the image.
type made struct {
	fd   int // in the target
	file *os.File
}

// fill opens a memfd of the target and writes image and parameters into it. Only the target can be harmed by
// what is written: it is a memfd that the target has open for writing, and that nobody has sealed (procfile).
func (pl *plan) fill(m procfile.Memfd) (*made, error) {
	file, _, err := m.Open(pl.process.Alive, procfile.Unsealed())
	if err != nil {
		return nil, fmt.Errorf("open the file in the target: %w", err)
	}
	if err := pl.write(file, m.FD); err != nil {
		return nil, errors.Join(fmt.Errorf("write the file in the target: %w", err), file.Close())
	}
	return &made{fd: m.FD, file: file}, nil
}

func (pl *plan) write(file *os.File, fd int) error {
	if err := file.Truncate(0); err != nil {
		return err
	}
	params := pl.image.params(fd)
	if pl.start != 0 {
		_, err := file.WriteAt(params, 0)
		return err
	}
	if err := file.Truncate(max(pl.image.Size, int64(len(pl.image.Bytes)))); err != nil {
		return err
	}
	if _, err := file.WriteAt(pl.image.Bytes, 0); err != nil {
		return err
	}
	_, err := file.WriteAt(params, int64(pl.image.ParamsOffset))
	return err
}

// params fills in what is known only now.
func (im *Image) params(fd int) []byte {
	put32(im.Params, im.FDAt, uint32(fd))
	if im.NowAt != 0 {
		put64(im.Params, im.NowAt, clock.Monotonic())
	}
	return im.Params
}

// stamp makes the time of the parameters that of now: the file may have waited.
func (pl *plan) stamp(m *made) error {
	if pl.image.NowAt == 0 {
		return nil
	}
	at := int64(pl.image.NowAt)
	if pl.start == 0 {
		at += int64(pl.image.ParamsOffset)
	}
	var now [8]byte
	put64(now[:], 0, clock.Monotonic())
	if _, err := m.file.WriteAt(now[:], at); err != nil {
		return fmt.Errorf("write the file in the target: %w", err)
	}
	return nil
}

// reuse takes a file that a daemon before us left open in the target, so that none has to be made
// and none stays.
func (pl *plan) reuse() {
	for _, f := range pl.leakedFDs {
		if found, err := pl.fill(f); err == nil { // else it is sealed, or closed by now: a new one will do
			pl.made = found
			return
		}
	}
}

// give ends the use of a file that was not handed over. It stays open in the target, empty, and
// the next one who comes uses it.
func (pl *plan) give() error {
	if pl.made == nil {
		return nil
	}
	return errors.Join(pl.made.file.Truncate(0), pl.made.file.Close())
}

// nameOf is what this process calls files: with its own number and start time, so that somebody
// who finds one in a target knows whether its maker lives.
func nameOf(proc int) string {
	pid := uint32(os.Getpid())
	return fmt.Sprintf("%s-%d-%d", fileName, pid, startTime(proc, pid))
}

// abandoned reports whether nobody will use a file any more: the process that made it is gone, waits
// for its parent to hear of its end, or is this one. A name that we would not have given says nothing.
func abandoned(proc int, name string) bool {
	var pid uint32
	var start uint64
	if n, err := fmt.Sscanf(strings.TrimPrefix(name, fileName), "-%d-%d", &pid, &start); err != nil || n != 2 {
		return false
	}
	state, began := readStat(proc, pid)
	return pid == uint32(os.Getpid()) || began != start || state == 'Z' || state == 'X'
}
