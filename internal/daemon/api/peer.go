package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/inferscope/inferscope/internal/format/clierror"
)

// peer is who connected, as the kernel says (SO_PEERCRED): the effective user id
// at the time of connect(2), in the daemon's user namespace.
type peer struct {
	uid    uint32
	pid    int32    // 0 where the peer is in a pid namespace that the daemon cannot see
	groups []uint32 // the primary one and the others; of an unprivileged peer
}

// privileged reports whether the peer may see everything: root, and the daemon's own user.
func (p peer) privileged(own uint32) bool { return p.uid == 0 || p.uid == own }

// String names the user, for messages and the log.
func (p peer) String() string { return fmt.Sprintf("user %d", p.uid) }

func peerOf(c *net.UnixConn) (peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return peer{}, fmt.Errorf("reaching the connection's descriptor: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, credErr); err != nil {
		return peer{}, fmt.Errorf("asking the kernel who connected: %w", err)
	}
	return peer{uid: cred.Uid, pid: cred.Pid, groups: append(groupsOf(raw), cred.Gid)}, nil
}

// maxGroups bounds the groups of a peer: NGROUPS_MAX of include/uapi/linux/limits.h.
const maxGroups = 65536

// groupsOf returns the supplementary groups of a peer (SO_PEERGROUPS, Linux 4.13); none where the kernel does not say.
func groupsOf(raw syscall.RawConn) []uint32 {
	var groups []uint32
	_ = raw.Control(func(fd uintptr) {
		for room := 64; room <= maxGroups; room *= 32 {
			list := make([]uint32, room)
			size := uint32(4 * room)
			_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
				uintptr(unsafe.Pointer(&list[0])), uintptr(unsafe.Pointer(&size)), 0)
			if errno == 0 {
				groups = list[:size/4]
			}
			if !errors.Is(errno, unix.ERANGE) {
				return
			}
		}
	})
	return groups
}

type peerKey struct{}

// withPeer is an http.Server's ConnContext.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	if g, ok := c.(*guestConn); ok {
		ctx = context.WithValue(ctx, peerKey{}, g.peer)
	}
	return ctx
}

// peerFrom fails where the connection did not come through a door: then nobody knows who asks.
func peerFrom(ctx context.Context) (peer, error) {
	p, ok := ctx.Value(peerKey{}).(peer)
	if !ok {
		return peer{}, clierror.New(clierror.Permission, "connect over the unix socket",
			errors.New("it is not known who asks"))
	}
	return p, nil
}

// door lets in at most so many connections, and fewer of unprivileged users, so
// that none of them can use up the descriptors and the memory of a root daemon,
// or keep root out of it.
type door struct {
	net.Listener
	own    uint32
	limits Limits

	mu     sync.Mutex
	total  int
	guests int            // of total, the unprivileged
	byUID  map[uint32]int // of guests
}

func newDoor(l net.Listener, own uint32, limits Limits) *door {
	return &door{Listener: l, own: own, limits: limits, byUID: map[uint32]int{}}
}

// Accept returns the next connection that may come in; the others are closed at once.
func (d *door) Accept() (net.Conn, error) {
	for {
		c, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		u, ok := c.(*net.UnixConn)
		if !ok {
			_ = c.Close()
			continue
		}
		p, err := peerOf(u)
		if err != nil || !d.enter(p) {
			_ = c.Close()
			continue
		}
		return &guestConn{UnixConn: u, peer: p, leave: sync.OnceFunc(func() { d.leave(p) })}, nil
	}
}

func (d *door) enter(p peer) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.total >= d.limits.Connections {
		return false
	}
	if !p.privileged(d.own) {
		if d.guests >= d.limits.Connections*3/4 || d.byUID[p.uid] >= d.limits.ConnectionsPerUser {
			return false
		}
		d.guests++
		d.byUID[p.uid]++
	}
	d.total++
	return true
}

func (d *door) leave(p peer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.total--
	if p.privileged(d.own) {
		return
	}
	d.guests--
	if d.byUID[p.uid]--; d.byUID[p.uid] == 0 {
		delete(d.byUID, p.uid)
	}
}

// guestConn is a connection of a known peer.
type guestConn struct {
	*net.UnixConn
	peer  peer
	leave func()
}

// Close makes room for the next connection.
func (c *guestConn) Close() error {
	defer c.leave()
	return c.UnixConn.Close()
}

// maxLimitedUsers bounds the users who are remembered. Whoever may map user ids (subuid(5)) has 65,536 of them.
const maxLimitedUsers = 1024

// userLimiter limits how often each unprivileged user may ask, and all of them together: each answer costs CPU time of
// the daemon.
type userLimiter struct {
	rate  rate.Limit // of one user, per second
	burst int

	mu    sync.Mutex
	all   *rate.Limiter
	byUID map[uint32]*rate.Limiter
}

func newUserLimiter(each, burst, all float64) *userLimiter {
	return &userLimiter{
		rate: rate.Limit(each), burst: int(burst),
		all: rate.NewLimiter(rate.Limit(all), int(all)), byUID: map[uint32]*rate.Limiter{},
	}
}

// take reports whether a user may ask now. A request that is refused costs the others nothing.
func (p *userLimiter) take(uid uint32, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := p.byUID[uid]
	if own == nil {
		if !p.makeRoom(now) {
			return false
		}
		own = rate.NewLimiter(p.rate, p.burst)
		p.byUID[uid] = own
	}
	return own.AllowN(now, 1) && p.all.AllowN(now, 1)
}

// makeRoom forgets users whose bucket is full again: that is what a new user has.
func (p *userLimiter) makeRoom(now time.Time) bool {
	if len(p.byUID) < maxLimitedUsers {
		return true
	}
	for uid, own := range p.byUID {
		if own.TokensAt(now) >= float64(p.burst) {
			delete(p.byUID, uid)
		}
	}
	return len(p.byUID) < maxLimitedUsers
}
