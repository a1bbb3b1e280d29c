package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/fault"
)

// peer is who connected, as the kernel says (SO_PEERCRED): the effective user id
// at the time of connect(2), in the daemon's user namespace.
type peer struct {
	uid uint32
	pid int32 // 0 where the peer is in a pid namespace that the daemon cannot see
}

// privileged says whether the peer may see everything: root, and the daemon's own user.
func (p peer) privileged(own uint32) bool { return p.uid == 0 || p.uid == own }

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
	return peer{uid: cred.Uid, pid: cred.Pid}, nil
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
		return peer{}, fault.New(fault.Permission, "connect over the unix socket", errors.New("it is not known who asks"))
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

// pace lets unprivileged users together ask only so often: each answer costs CPU
// time of a daemon that promised to be cheap. It is a token bucket.
type pace struct {
	mu     sync.Mutex
	rate   float64 // requests per second, and the size of the bucket
	tokens float64
	last   time.Time
}

func newPace(rate float64) *pace { return &pace{rate: rate, tokens: rate} }

func (p *pace) take(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.last.IsZero() {
		p.tokens = min(p.rate, p.tokens+max(0, now.Sub(p.last).Seconds())*p.rate)
	}
	p.last = now
	if p.tokens < 1 {
		return false
	}
	p.tokens--
	return true
}
