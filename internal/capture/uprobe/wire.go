package uprobe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/helper"
)

// What a link holder is asked, by the first byte of a packet. Both processes are one
// program, so that the rest has the byte order and the layout of this machine.
const (
	askServe   = iota + 1 // another connection, which comes along
	askLink               // links; a program and a file come along
	askLinger             // links that stay for a while where the asking process dies; milliseconds follow
	askRelease            // to take the links off now: the asking process lives
)

const (
	// maxSites is how many sites one link has at most, so that a packet fits into a socket.
	maxSites = 2048
	// maxPacket bounds what a link holder is asked, maxAnswer what it says, bytes.
	maxPacket = 1 + 16 + 16*maxSites
	maxAnswer = 4096
	// maxRights is how many descriptors come with one packet.
	maxRights = 2
)

var (
	errEnd    = errors.New("the connection has ended")
	errPacket = errors.New("a packet of probes makes no sense")
)

// wireLink is the head of askLink; wireSites follow.
type wireLink struct{ Attach, Return, PID, PMU uint32 }

type wireSite struct{ Offset, Cookie uint64 }

func encodeLink(b batch, at place) ([]byte, error) {
	head := wireLink{Attach: b.attach, PID: at.pid, PMU: at.pmu}
	if b.ret {
		head.Return = 1
	}
	sites := make([]wireSite, len(b.sites))
	for i, s := range b.sites {
		sites[i] = wireSite{s.Offset, s.Cookie}
	}
	packet, err := binary.Append([]byte{askLink}, binary.NativeEndian, head)
	if err != nil {
		return nil, fmt.Errorf("encode a link: %w", err)
	}
	return binary.Append(packet, binary.NativeEndian, sites)
}

// decodeLink reads what encodeLink wrote behind the first byte.
func decodeLink(packet []byte) (batch, place, error) {
	var head wireLink
	n, err := binary.Decode(packet, binary.NativeEndian, &head)
	if err != nil {
		return batch{}, place{}, fmt.Errorf("%w: %w", errPacket, err)
	}
	packet = packet[n:]
	sites := make([]wireSite, len(packet)/binary.Size(wireSite{}))
	if len(sites) == 0 || len(sites) > maxSites || len(packet) != binary.Size(sites) ||
		head.Attach == attachPerfEvent && len(sites) != 1 || head.PID == 0 || head.Return > 1 ||
		!slices.Contains([]uint32{attachPerfEvent, attachUprobeMulti, attachUprobeSession}, head.Attach) {
		return batch{}, place{}, fmt.Errorf("%w: %+v with %d bytes", errPacket, head, len(packet))
	}
	if _, err := binary.Decode(packet, binary.NativeEndian, sites); err != nil {
		return batch{}, place{}, fmt.Errorf("%w: %w", errPacket, err)
	}
	b := batch{attach: head.Attach, ret: head.Return == 1}
	for _, s := range sites {
		b.sites = append(b.sites, Site{Offset: s.Offset, Cookie: s.Cookie})
	}
	return b, place{pid: head.PID, pmu: head.PMU}, nil
}

// maxLinger bounds for how long links stay after the process that asked for them has died.
const maxLinger = 10 * time.Second

func encodeLinger(linger time.Duration) []byte {
	return binary.NativeEndian.AppendUint32([]byte{askLinger}, uint32(linger.Milliseconds()))
}

// decodeLinger reads what encodeLinger wrote behind the first byte.
func decodeLinger(packet []byte) (time.Duration, error) {
	if len(packet) != 4 {
		return 0, fmt.Errorf("%w: a time of %d bytes", errPacket, len(packet))
	}
	linger := time.Duration(binary.NativeEndian.Uint32(packet)) * time.Millisecond
	if linger > maxLinger {
		return 0, fmt.Errorf("%w: links that stay for %v", errPacket, linger)
	}
	return linger, nil
}

// wireAnswer is the head of an answer; the words of the error follow, none where it went well.
type wireAnswer struct{ ID, Errno uint32 }

func encodeAnswer(id uint32, err error) []byte {
	head, text := wireAnswer{ID: id}, ""
	if err != nil {
		var errno unix.Errno
		_ = errors.As(err, &errno)
		head, text = wireAnswer{Errno: uint32(errno)}, err.Error()
	}
	packet, err := binary.Append(nil, binary.NativeEndian, head)
	if err != nil {
		return nil
	}
	packet = append(packet, text...)
	return packet[:min(len(packet), maxAnswer)]
}

func decodeAnswer(packet []byte) (id uint32, err error) {
	var head wireAnswer
	n, err := binary.Decode(packet, binary.NativeEndian, &head)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%w: %w", errPacket, err)
	case len(packet) > n:
		var errno error
		if head.Errno != 0 {
			errno = unix.Errno(head.Errno)
		}
		return 0, helper.RemoteError(string(packet[n:]), errno)
	}
	return head.ID, nil
}

// send sends a packet, and files along with it.
func send(conn *net.UnixConn, packet []byte, files ...*os.File) error {
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	return helper.Send(conn, packet, fds...)
}

// receive waits for a packet, and returns it, of one byte at least, and the files that
// came along, which the caller closes. errEnd: there will be none any more.
func receive(conn *net.UnixConn) (packet []byte, files []*os.File, err error) {
	size, err := await(conn)
	if err != nil {
		return nil, nil, err
	}
	packet = make([]byte, min(size, maxPacket))
	n, files, err := helper.Receive(conn, packet, maxRights)
	switch {
	case errors.Is(err, helper.ErrMessage):
		err = fmt.Errorf("%w: %w", errPacket, err)
	case err != nil:
		return nil, nil, errEnd
	}
	return packet[:n], files, err
}

// await waits for a packet, and returns its length, so that a connection on which
// nothing is asked any more, as on most, needs no memory to receive it.
func await(conn *net.UnixConn) (size int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, errEnd
	}
	var peeked error
	err = raw.Read(func(fd uintptr) bool {
		size, _, peeked = unix.Recvfrom(int(fd), nil, unix.MSG_PEEK|unix.MSG_TRUNC|unix.MSG_DONTWAIT)
		return !errors.Is(peeked, unix.EAGAIN)
	})
	if err != nil || peeked != nil || size == 0 {
		return 0, errEnd
	}
	return size, nil
}
