package fleet

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// journalName is the file in a directory of recordings that says what became of each.
const journalName = ".journal"

// The entries of a journal: about the recording that follows, or about none.
const (
	begun    = "begun"    // it is about to be made
	uploaded = "uploaded" // the object store has it
	removed  = "removed"  // it is about to be deleted
	empty    = "empty"    // nothing happened in it, and it is about to be deleted
	gone     = "gone"     // it is not on the disk any more
	failed   = "failed"   // a stretch was not fetched or written
	started  = "started"  // a process has begun to keep recordings,
	stopped  = "stopped"  // and has ended as it should
)

// maxEntries is how many entries a journal has before it is written anew, as sums.
const maxEntries = 20_000

// journalRoom is what a journal has on the disk ahead of what is in it: losses are counted on a full disk, too.
const journalRoom = 64 << 10

// counts is what became of all recordings that were made in a directory. Made is the sum of Uploaded, Deleted, Lost,
// and the recordings that are on the disk and were not uploaded.
type counts struct {
	Made     uint64 `json:"made"`
	Uploaded uint64 `json:"uploaded"`
	Deleted  uint64 `json:"deleted"` // by quota or age, and not uploaded
	Lost     uint64 `json:"lost"`    // they were begun, and are nowhere
	Failed   uint64 `json:"failed"`  // stretches
	Killed   uint64 `json:"killed"`  // processes that did not end as they should
}

// journal counts what became of recordings. A step that takes one away is written before it is done, and whoever comes
// after a process that was killed finishes it: so each is counted once.
type journal struct {
	mu      sync.Mutex
	path    string   // "": it is in memory only
	file    *os.File // nil: what was to be written did not fit, and all is written with the next entry
	entries int
	account
}

// account is a journal in short.
type account struct {
	Counts  counts          `json:"counts"`
	Running bool            `json:"running"`
	Open    map[string]fate `json:"open"` // by the names of recordings that may be on the disk
}

// fate is what happened to a recording that may be on the disk.
type fate struct {
	Uploaded bool `json:"uploaded,omitempty"`
	Removed  bool `json:"removed,omitempty"` // it is to be deleted
}

func newJournal() *journal { return &journal{account: account{Open: map[string]fate{}}} }

// load reads the journal of a directory, and writes to it from now on.
func (j *journal) load(path string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("reading what became of recordings: %w", err)
	}
	j.account = account{Open: map[string]fate{}}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for first := true; lines.Scan(); first = false {
		if text := lines.Text(); first {
			_ = json.Unmarshal([]byte(text), &j.account) // a damaged one begins again: recordings do not depend on it
			if j.Open == nil {
				j.Open = map[string]fate{}
			}
		} else if what, name, whole := strings.Cut(text, " "); whole {
			j.apply(what, name)
		}
	}
	j.path = path
	if j.rewrite() != nil { // a full disk: what is there goes on
		j.file, err = os.OpenFile(path, os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW, 0)
		if err != nil {
			j.file = nil
		}
	}
	return nil
}

// rewrite writes the journal anew, as its account. The caller holds the lock.
func (j *journal) rewrite() error {
	text, err := json.Marshal(&j.account)
	if err != nil {
		return err
	}
	next := j.path + ".new"
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("writing what became of recordings: %w", err)
	}
	if _, err = f.Write(append(text, '\n')); err == nil {
		err = errors.Join(ahead(f), f.Sync(), os.Rename(next, j.path))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("writing what became of recordings: %w", err), f.Close())
	}
	if j.file != nil {
		_ = j.file.Close()
	}
	j.file, j.entries = f, 0
	return nil
}

// ahead has the file system keep room for what is still to be appended to a file, where it can.
func ahead(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, info.Size(), journalRoom)
	if errors.Is(err, unix.ENOSPC) {
		return err
	}
	return nil //nolint:nilerr // not all file systems can
}

// add notes what happened, or is about to, to the recording of that name.
func (j *journal) add(what, name string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.apply(what, name)
	if j.path == "" {
		return
	}
	if j.entries++; (j.file == nil || j.entries > maxEntries) && j.rewrite() == nil || j.file == nil {
		return // it is in the account, which the next entry tries to write again where this one could not
	}
	_, err := j.file.WriteString(what + " " + name + "\n")
	if err == nil && what != failed {
		err = j.file.Sync()
	}
	if err != nil {
		_ = j.file.Close()
		j.file = nil
	}
}

// apply counts an entry; one that is known already changes nothing.
func (j *journal) apply(what, name string) {
	f, open := j.Open[name]
	switch what {
	case begun:
		if !open {
			j.Counts.Made++
			j.Open[name] = fate{}
		}
	case uploaded:
		if open && !f.Uploaded {
			j.Counts.Uploaded++
			j.Open[name] = fate{Uploaded: true, Removed: f.Removed}
		}
	case removed:
		if open && !f.Removed {
			if !f.Uploaded {
				j.Counts.Deleted++
			}
			j.Open[name] = fate{Uploaded: f.Uploaded, Removed: true}
		}
	case empty:
		if open {
			j.Counts.Made--
			delete(j.Open, name)
		}
	case gone:
		if open && !f.Uploaded && !f.Removed {
			j.Counts.Lost++
		}
		delete(j.Open, name)
	case failed:
		j.Counts.Failed++
	case started:
		if j.Running {
			j.Counts.Killed++
		}
		j.Running = true
	case stopped:
		j.Running = false
	}
}

// known returns the recordings that may be on the disk.
func (j *journal) known() map[string]fate {
	j.mu.Lock()
	defer j.mu.Unlock()
	return maps.Clone(j.Open)
}

func (j *journal) counted() counts {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.Counts
}
