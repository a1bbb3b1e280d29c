package uprobe

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/helper"
)

const (
	// linkHolderThreads run Go code: nothing of it takes long, the kernel's work does.
	linkHolderThreads = 2
	// linkHolderGC is the share of garbage, percent, at which it is collected.
	linkHolderGC = 20
)

// RunLinkHolder is the whole of a link holder process. It ends when everybody who asked it for
// links has gone, and all of them are closed; signals that ask it to end before do nothing.
func RunLinkHolder(args []string) error {
	if len(args) != 0 {
		return errors.New("inferscoped starts this itself; there is nothing to be had from it")
	}
	helper.Probes.Take()
	signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE)
	runtime.GOMAXPROCS(min(linkHolderThreads, runtime.GOMAXPROCS(0)))
	debug.SetGCPercent(linkHolderGC)
	first, err := helper.Parent()
	if err != nil {
		return err
	}
	if err := raiseLife(); err != nil {
		return err
	}
	k := keep{closing: make(chan struct{}, allClosers)}
	k.serving.Add(1)
	k.serve(first)
	hush() // whoever reads what this program's starter says waits for the end of it
	k.serving.Wait()
	return nil
}

// maxFiles bounds the descriptor of raiseLife, and with it the kernel's table of descriptors: 512 KiB.
const maxFiles = 1 << 16

// raiseLife moves the pipe that shows this process's life to the highest descriptor: the kernel closes the files of a
// killed process from the highest down, so the other end sees it before links go.
func raiseLife() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read the limit of open files: %w", err)
	}
	highest := int(min(limit.Cur, maxFiles)) - 1
	if _, err := unix.FcntlInt(helper.FirstFile, unix.F_DUPFD_CLOEXEC, highest); err != nil {
		return fmt.Errorf("move descriptor %d to %d: %w", helper.FirstFile, highest, err)
	}
	return unix.Close(helper.FirstFile)
}

// hush closes standard error.
func hush() {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return
	}
	_ = unix.Dup3(int(null.Fd()), unix.Stderr, 0)
	_ = null.Close()
}

// keep is the state of a link holder process.
type keep struct {
	serving sync.WaitGroup
	closing chan struct{} // see own.all
}

// serve does what is asked for on conn until its end, and takes it back then.
func (k *keep) serve(conn *net.UnixConn) {
	defer k.serving.Done()
	defer conn.Close()
	held := lingering{own: own{all: k.closing}}
	for {
		packet, files, err := receive(conn)
		if errors.Is(err, errEnd) {
			break
		}
		if err == nil {
			err = k.one(conn, &held, packet, files)
		}
		for _, f := range files {
			_ = f.Close()
		}
		switch {
		case err == nil:
		case packet[0] == askLink:
			_ = send(conn, encodeAnswer(0, err)) // who has gone does not hear it: so, too, below
		default:
			fmt.Fprintln(os.Stderr, "inferscoped:", LinkHolderArgument+":", err)
		}
	}
	if !held.released {
		time.Sleep(held.linger)
	}
	_ = send(conn, encodeAnswer(0, held.close()))
}

// lingering is what one connection holds.
type lingering struct {
	own
	linger   time.Duration // for how long links stay where the asking process has died
	released bool          // the asking process wants them off now
}

// one does one thing. An error says that what was asked is nonsense, or cannot be done.
func (k *keep) one(conn *net.UnixConn, held *lingering, packet []byte, files []*os.File) error {
	switch {
	case packet[0] == askServe && len(packet) == 1 && len(files) == 1:
		more, err := helper.Connect(files[0])
		if err != nil {
			return err
		}
		k.serving.Add(1)
		go k.serve(more)
		return nil
	case packet[0] == askLink && len(files) == 2:
		b, at, err := decodeLink(packet[1:])
		if err != nil {
			return err
		}
		b.prog, at.file = int(files[0].Fd()), files[1]
		id, err := held.link(b, at)
		if err != nil {
			return err
		}
		return send(conn, encodeAnswer(id, nil))
	case packet[0] == askLinger && len(files) == 0:
		var err error
		held.linger, err = decodeLinger(packet[1:])
		return err
	case packet[0] == askRelease && len(packet) == 1 && len(files) == 0:
		held.released = true
		return nil
	}
	return fmt.Errorf("%w: %d bytes and %d files that begin with %d", errPacket, len(packet), len(files), packet[0])
}
