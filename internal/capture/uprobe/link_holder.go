package uprobe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/helper"
)

// LinkHolderArgument is the first argument of a program that is to be a link holder.
const LinkHolderArgument = "link-holder"

// ErrLinkHolderGone means that the process that held the probes has ended, and they with it;
// of one Attachment also that it has no descriptor left for it.
var ErrLinkHolderGone = errors.New("the process that holds the probes has gone, or takes no more")

// LinkHolder is a process that makes, holds and closes links for this one, and for others
// that this one lets (Share). It takes them off when whoever asked for them has gone, however that
// went: a process that gets SIGKILL while it does that itself leaves breakpoints in the
// target, because the kernel gives up writing to memory for a process that is to die.
// It is safe for concurrent use.
type LinkHolder struct {
	conn   *net.UnixConn // each message on it hands over a connection
	cmd    *exec.Cmd     // nil: another process started it
	dying  chan struct{} // closed when it begins to end; never where cmd is nil
	ended  chan struct{} // closed when it has ended; never where cmd is nil
	linger time.Duration // for how long probes stay where this process dies
}

// Outliving returns the same link holder, whose probes stay for another while (10 s at most) where this process is
// killed: for probes on which somebody else relies just then. Closed in order, they go at once.
func (k *LinkHolder) Outliving(linger time.Duration) *LinkHolder {
	return &LinkHolder{conn: k.conn, cmd: k.cmd, dying: k.dying, ended: k.ended, linger: min(linger, maxLinger)}
}

// StartLinkHolder starts a link holder. command starts a program that calls RunLinkHolder with what
// stands behind LinkHolderArgument. It does not wait for the link holder to be there: that takes
// some milliseconds, and what it is asked for meanwhile waits for it.
func StartLinkHolder(command []string) (*LinkHolder, error) {
	// Nothing ends it but the end of those whom it serves.
	cmd := exec.CommandContext(
		context.Background(),
		command[0],
		append(slices.Clone(command[1:]), LinkHolderArgument)...)
	cmd.Stderr = os.Stderr
	// Nobody who means this process's terminal or group means the link holder.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	life, theirs, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe to the process that holds the probes: %w", err)
	}
	defer theirs.Close()
	conn, err := helper.Probes.Start(cmd, helper.Packets, theirs)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the process that holds the probes: %w", err), life.Close())
	}
	k := &LinkHolder{conn: conn, cmd: cmd, dying: make(chan struct{}), ended: make(chan struct{})}
	go k.watch(life)
	return k, nil
}

// JoinLinkHolder uses the link holder of another process, which made the socket fd with Share.
func JoinLinkHolder(fd int) (*LinkHolder, error) {
	conn, err := helper.Connect(os.NewFile(uintptr(fd), "link-holder"))
	if err != nil {
		return nil, err
	}
	return &LinkHolder{conn: conn}, nil
}

// watch waits for the end of the link holder, which writes nothing to the pipe life, and says nothing on its first
// connection but that it ends.
func (k *LinkHolder) watch(life *os.File) {
	_, _ = life.Read(make([]byte, 1))
	_ = life.Close()
	close(k.dying)
	_, _ = k.conn.Read(make([]byte, 1))
	_ = k.conn.Close()
	_ = k.cmd.Wait()
	close(k.ended)
}

// Dying is closed when the link holder begins to end. Where it is killed, the kernel takes its probes off from then
// until Gone: 0.1 s each with Perf. It never is for one that was joined.
func (k *LinkHolder) Dying() <-chan struct{} { return k.dying }

// Gone is closed when the link holder has ended; probes that it was taking off go a moment later (closeByExit). It
// never is for one that was joined.
func (k *LinkHolder) Gone() <-chan struct{} { return k.ended }

// Err is ErrLinkHolderGone, with how it ended, once Gone is closed, and nil before.
func (k *LinkHolder) Err() error {
	select {
	case <-k.ended:
		return fmt.Errorf("%w (%v)", ErrLinkHolderGone, k.cmd.ProcessState)
	default:
		return nil
	}
}

// PID is the link holder's process id; 0 for one that was joined.
func (k *LinkHolder) PID() int {
	if k.cmd == nil {
		return 0
	}
	return k.cmd.Process.Pid
}

// Close lets the link holder go, which ends when all Attachments are closed too.
func (k *LinkHolder) Close() error {
	if err := k.conn.CloseWrite(); err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, unix.ENOTCONN) {
		return fmt.Errorf("let the process go that holds the probes: %w", err)
	}
	return nil
}

// Share returns a socket for another process, which hands it to JoinLinkHolder. What that
// one attaches is taken off when it closes it, or ends.
func (k *LinkHolder) Share() (*os.File, error) {
	theirs, ours, err := helper.Pair(helper.Packets)
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	if err := send(k.conn, []byte{askServe}, theirs); err != nil {
		return nil, errors.Join(k.lost(err), ours.Close())
	}
	return ours, nil
}

// hold begins what one Attachment holds: a connection of its own.
func (k *LinkHolder) hold() (holder, error) {
	ours, err := k.Share()
	if err != nil {
		return nil, err
	}
	conn, err := helper.Connect(ours)
	if err != nil {
		return nil, err
	}
	h := &kept{conn: conn, linkHolder: k}
	if k.linger > 0 {
		if err := send(conn, encodeLinger(k.linger)); err != nil {
			return nil, errors.Join(k.lost(err), conn.Close())
		}
	}
	return h, nil
}

// lost is err, or that the link holder is gone where that is what it means.
func (k *LinkHolder) lost(err error) error {
	for _, sign := range []error{errEnd, net.ErrClosed, unix.EPIPE, unix.ECONNRESET} {
		if errors.Is(err, sign) {
			return ErrLinkHolderGone
		}
	}
	return err
}

// kept is what the link holder holds of one Attachment.
type kept struct {
	conn       *net.UnixConn
	linkHolder *LinkHolder
}

func (h *kept) link(b batch, at place) (uint32, error) {
	packet, err := encodeLink(b, at)
	if err != nil {
		return 0, err
	}
	err = helper.Send(h.conn, packet, b.prog, int(at.file.Fd()))
	runtime.KeepAlive(at.file)
	if err != nil {
		return 0, h.linkHolder.lost(err)
	}
	id, err := h.answer()
	if errors.Is(err, ErrLinkHolderGone) {
		err = errors.Join(err, mend(b, at))
	}
	return id, err
}

// mend takes out what a link holder left that was killed as it attached b: the kernel then registers a part of the
// sites, and cannot take their breakpoints out again. Whoever attaches the same sites and closes them does.
func mend(b batch, at place) error {
	if len(b.sites) == 1 { // it is refused before its breakpoint is written
		return nil
	}
	again := own{}
	_, err := again.link(b, at)
	return errors.Join(err, again.close())
}

// answer waits for what the link holder says.
func (h *kept) answer() (uint32, error) {
	packet := make([]byte, maxAnswer)
	n, err := h.conn.Read(packet)
	if err != nil || n == 0 {
		return 0, h.linkHolder.lost(errors.Join(errEnd, err))
	}
	return decodeAnswer(packet[:n])
}

// close returns when the link holder has closed all links.
func (h *kept) close() error {
	defer h.conn.Close()
	if err := send(h.conn, []byte{askRelease}); err != nil {
		return h.linkHolder.lost(err)
	}
	if err := h.conn.CloseWrite(); err != nil {
		return h.linkHolder.lost(err)
	}
	_, err := h.answer()
	return err
}
