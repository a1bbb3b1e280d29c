package uprobe

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// closers is how many links of one process are closed at a time, and allClosers how many of all of a link holder: each
// takes a thread, which Go keeps for ever. The few of Session and Multi share the kernel's grace period so. Nothing
// helps those of Perf: the kernel closes them one by one under one lock, 0.1 s each (600 functions, 800 events: 93 s on
// 6.18, whether 1 or 256 at a time).
const (
	closers    = 8
	allClosers = 16
)

// holder makes links and holds them: this process itself, or its link holder.
type holder interface {
	// link attaches all of b's sites, or none, and returns the kernel's id of the link.
	link(b batch, at place) (id uint32, err error)
	// close takes all off. When it returns no program runs for them any more.
	close() error
}

// own holds links in this process. Where it is killed while it makes or closes one,
// the kernel gives up half way.
type own struct {
	links []int
	all   chan struct{} // has one in it for each link that anybody closes; nil: nobody else does
}

func (o *own) link(b batch, at place) (uint32, error) {
	fd, err := link(b, at)
	if err != nil {
		return 0, err
	}
	o.links = append(o.links, fd)
	return linkID(fd)
}

func (o *own) close() error {
	links := o.links
	o.links = nil
	// The last batch holds the launches, which cost the target most: off first,
	// where it takes the kernel long.
	slices.Reverse(links)

	errs := make([]error, len(links))
	slots := make(chan struct{}, closers)
	var wg sync.WaitGroup
	for i, fd := range links {
		slots <- struct{}{}
		if o.all != nil {
			o.all <- struct{}{}
		}
		wg.Go(func() {
			defer o.closed(slots)
			if err := o.shut(fd); err != nil {
				errs[i] = fmt.Errorf("close uprobe link: %w", err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// shut closes one link: a link holder so that no signal can break that off.
func (o *own) shut(fd int) error {
	if o.all == nil {
		return unix.Close(fd)
	}
	return closeByExit(fd)
}

// closed makes room for the next one.
func (o *own) closed(slots chan struct{}) {
	<-slots
	if o.all != nil {
		<-o.all
	}
}

// pathOf names the inode itself, not where it was found.
func pathOf(file *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(file.Fd())) }
