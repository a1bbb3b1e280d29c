package fleet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/archive"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// partial begins the names of recordings that are being made: whoever reads the directory passes over them.
const partial = ".partial-"

// deleted begins the names of recordings that are being deleted.
const deleted = ".deleted-"

// shelf is the directory of recordings. Its methods may be called from several goroutines.
type shelf struct {
	dir     string
	quota   int64
	reserve int64
	maxAge  time.Duration

	mu     sync.Mutex
	pinned map[string]int  // names that are not deleted now: how many read them
	writes map[string]bool // names of partial ones that this process makes

	sizes map[string]int64 // of finished recordings, which do not change

	held *os.File // locked

	journal *journal // of what became of recordings
}

// stored is a recording on the disk.
type stored struct {
	name    string
	changed time.Time
}

func openShelf(dir string, quota, reserve int64, maxAge time.Duration) (*shelf, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, clierror.New(clierror.General,
			"choose a directory that the daemon may write with --record-dir",
			fmt.Errorf("keeping recordings: %w", err))
	}
	// Recordings tell what all users do, and are deleted by name: nobody else may have a hand in it.
	if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o022 != 0 {
		return nil, clierror.New(clierror.General,
			"chmod go-w "+dir+", or choose another directory with --record-dir",
			fmt.Errorf("keeping recordings: others may write to %s", dir))
	}
	probe := filepath.Join(dir, partial+"probe")
	if err := errors.Join(os.RemoveAll(probe), os.Mkdir(probe, 0o700), os.Remove(probe)); err != nil {
		return nil, clierror.New(clierror.General,
			"choose a directory that the daemon may write with --record-dir",
			fmt.Errorf("keeping recordings: %w", err))
	}
	return &shelf{
		dir:     dir,
		quota:   quota,
		reserve: reserve,
		maxAge:  maxAge,
		pinned:  map[string]int{},
		writes:  map[string]bool{},
		sizes:   map[string]int64{},
		journal: newJournal(),
	}, nil
}

// lockTime is how long the directory is waited for: a process whose daemon was killed finishes what it has begun.
const lockTime = finishTime + 4*time.Second

// lock makes sure that this process alone writes recordings here, until it ends. From then on it keeps the journal.
func (s *shelf) lock(timeout time.Duration) error {
	f, err := os.OpenFile(filepath.Join(s.dir, ".lock"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("keeping recordings: %w", err)
	}
	for end := time.Now().Add(timeout); ; time.Sleep(50 * time.Millisecond) {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			s.held = f
			return s.journal.load(filepath.Join(s.dir, journalName))
		}
		if time.Now().After(end) {
			_ = f.Close()
			return clierror.New(clierror.General, "give each daemon a --record-dir of its own",
				fmt.Errorf("another daemon keeps recordings in %s", s.dir))
		}
	}
}

// list returns the finished recordings, the oldest first: their names begin with the time.
func list(dir string) ([]stored, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("listing recordings: %w", err)
	}
	var out []stored
	for _, e := range entries {
		if !e.IsDir() || strings.HasPrefix(e.Name(), ".") || !strings.HasSuffix(e.Name(), archive.Extension) {
			continue
		}
		if info, err := e.Info(); err == nil {
			out = append(out, stored{e.Name(), info.ModTime()})
		}
	}
	return out, nil
}

// sizeOf returns what the files of a folder take on the disk, in bytes.
func sizeOf(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // what cannot be read takes no room that could be had
		}
		if info, err := d.Info(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				n += st.Blocks * 512
			} else {
				n += info.Size()
			}
		}
		return nil
	})
	return n
}

// size returns what all recordings and their JSON lines take, the unfinished ones too, and how many are finished.
func (s *shelf) size() (bytes int64, kept int) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return 0, 0
	}
	for _, e := range entries {
		if isLines(e.Name()) {
			bytes += sizeOf(filepath.Join(s.dir, e.Name()))
		}
		if e.IsDir() && strings.HasSuffix(e.Name(), archive.Extension) {
			bytes += s.bytes(e.Name())
			if !strings.HasPrefix(e.Name(), ".") {
				kept++
			}
		}
	}
	return bytes, kept
}

// bytes returns what a recording takes.
func (s *shelf) bytes(name string) int64 {
	s.mu.Lock()
	n, known := s.sizes[name]
	s.mu.Unlock()
	if known {
		return n
	}
	n = sizeOf(filepath.Join(s.dir, name))
	if !strings.HasPrefix(name, partial) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.sizes[name] = n
	}
	return n
}

// recover finishes what a process that was killed has left, as far as it was written, deletes what was half deleted,
// and has the journal say what became of the rest. It returns how many recordings were finished.
func (s *shelf) recover() int {
	n := 0
	entries, _ := os.ReadDir(s.dir)
	for _, e := range entries {
		path := filepath.Join(s.dir, e.Name())
		if strings.HasPrefix(e.Name(), deleted) {
			_ = os.RemoveAll(path)
			continue
		}
		name, isPartial := strings.CutPrefix(e.Name(), partial)
		if isPartial && isLines(name) {
			_ = os.Remove(path) // they are written again
			continue
		}
		if !isPartial || !strings.HasSuffix(name, archive.Extension) || s.writing(name) {
			continue
		}
		if in, err := archive.Inspect(path, false); err != nil || in.Manifest.Events() == 0 {
			_ = os.RemoveAll(path) // nothing of it counts yet
			continue
		}
		if os.Rename(path, filepath.Join(s.dir, name)) == nil {
			n++
		}
	}
	s.settle()
	return n
}

// settle has the journal know what is on the disk, and that the rest is not.
func (s *shelf) settle() {
	found, err := list(s.dir)
	if err != nil {
		return
	}
	known := s.journal.known()
	for _, f := range found {
		switch fate, is := known[f.name]; {
		case !is: // it is older than the journal
			s.journal.add(begun, f.name)
		case fate.Removed:
			_ = s.delete(f.name)
		}
		delete(known, f.name)
	}
	for name := range known {
		if !s.writing(name) {
			s.journal.add(gone, name)
		}
	}
}

func (s *shelf) writing(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes[name]
}

// errFull means that a stretch was not written, so that the disk does not run full.
var errFull = errors.New("no room for recordings, and no old one is left to delete")

// room makes room for a stretch before it is written: the oldest recordings go, until quota and file system allow for
// it.
func (s *shelf) room() error {
	for {
		free, err := s.free()
		if err != nil {
			return err
		}
		bytes, _ := s.size()
		if bytes+intervalBytes <= s.quota && free >= s.reserve+intervalBytes {
			return nil
		}
		if !s.deleteOldest() {
			return fmt.Errorf(
				"%w: 10 s need up to %d MB; %d MB of the disk are free, %d MB of them stay so (--record-free-mb); "+
					"recordings take %d of %d MB (--record-quota-mb)",
				errFull, inMB(intervalBytes), inMB(free), inMB(s.reserve), inMB(bytes), inMB(s.quota))
		}
	}
}

func inMB(bytes int64) int64 { return bytes / 1e6 }

// intervalBytes is what a stretch takes on the disk at most, about: 10 s of 150,000 events/s are 20 MB.
const intervalBytes = 32 << 20

// free returns how many bytes the file system has for us.
func (s *shelf) free() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.dir, &st); err != nil {
		return 0, fmt.Errorf("asking for room on the disk: %w", err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// deleteOldest deletes the oldest recording that nobody reads.
func (s *shelf) deleteOldest() bool {
	found, err := list(s.dir)
	if err != nil {
		return false
	}
	for _, f := range found {
		if !s.isPinned(f.name) && s.delete(f.name) == nil {
			return true
		}
	}
	return false
}

// delete removes a recording: first out of sight, so that no reader meets half of it.
func (s *shelf) delete(name string) error {
	s.journal.add(removed, name)
	// First what can be made again: wherever this ends, nothing is left that nobody deletes.
	if err := os.Remove(s.lines(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	hidden := filepath.Join(s.dir, deleted+name)
	if err := os.Rename(filepath.Join(s.dir, name), hidden); err != nil {
		return err
	}
	s.journal.add(gone, name)
	s.mu.Lock()
	delete(s.sizes, name)
	s.mu.Unlock()
	return os.RemoveAll(hidden)
}

// tidy deletes what is too old.
func (s *shelf) tidy(now time.Time) {
	found, err := list(s.dir)
	if err != nil {
		return
	}
	for _, f := range found {
		if s.maxAge > 0 && now.Sub(f.changed) > s.maxAge && !s.isPinned(f.name) {
			_ = s.delete(f.name) // what cannot be deleted now is the next time
		}
	}
}

func (s *shelf) isPinned(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pinned[name] > 0
}

// pin keeps a recording until the function that it returns is called.
func (s *shelf) pin(name string) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pinned[name]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.pinned[name]--; s.pinned[name] == 0 {
			delete(s.pinned, name)
		}
	}
}

// writer writes one recording under a name that nobody reads, until it is whole.
type writer struct {
	shelf   *shelf
	name    string
	archive *archive.Writer
	events  int
}

func (s *shelf) create(base string) (*writer, error) {
	name := base + archive.Extension
	for i := 2; ; i++ { // two of one millisecond
		if _, err := os.Lstat(filepath.Join(s.dir, name)); errors.Is(err, os.ErrNotExist) {
			break
		}
		name = fmt.Sprintf("%s-%d%s", base, i, archive.Extension)
	}
	s.write(name, true)
	s.journal.add(begun, name)
	at := filepath.Join(s.dir, partial+name)
	a, err := archive.Create(at, false)
	if err == nil {
		err = os.Chmod(at, 0o700)
	}
	if err != nil {
		s.journal.add(empty, name)
		s.write(name, false)
		return nil, errors.Join(err, os.RemoveAll(at))
	}
	return &writer{shelf: s, name: name, archive: a}, nil
}

// write notes whether this process makes a recording.
func (s *shelf) write(name string, makes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if makes {
		s.writes[name] = true
	} else {
		delete(s.writes, name)
	}
}

func (w *writer) append(rec *recording.Recording) error {
	if err := w.archive.Append(rec); err != nil {
		return err
	}
	w.events += len(rec.Events)
	return nil
}

// finish renames the recording into its place and returns its path; "" where it holds nothing, and is gone.
func (w *writer) finish() (string, error) {
	defer w.shelf.write(w.name, false)
	at, to := filepath.Join(w.shelf.dir, partial+w.name), filepath.Join(w.shelf.dir, w.name)
	if w.events == 0 {
		w.shelf.journal.add(empty, w.name)
		return "", os.RemoveAll(at)
	}
	if err := w.archive.Finish(nil); err != nil {
		// A disk that is full, for one. What was written before counts, and is deleted in its turn.
		return "", errors.Join(err, os.Rename(at, to))
	}
	if err := os.Rename(at, to); err != nil {
		return "", fmt.Errorf("putting a recording into its place: %w", err)
	}
	return to, syncDir(w.shelf.dir)
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// isOpen reports whether an event tells how things stood at the end of a recording, and not what happened.
func isOpen(e *event.Event) bool { return e.Kind == event.OffCPU && e.Flags&event.Open != 0 }
