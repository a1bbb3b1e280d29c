package sched

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// inodeOf returns the inode of a socket of this process.
func inodeOf(t *testing.T, c syscall.Conn) uint64 {
	t.Helper()
	raw, err := c.SyscallConn()
	must.NoError(t, err)
	var st unix.Stat_t
	if cerr := raw.Control(func(fd uintptr) { err = unix.Fstat(int(fd), &st) }); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	return st.Ino
}

// pair opens a connection within this process.
func pair(t *testing.T, network, address string) (listening, accepted, connected uint64) {
	t.Helper()
	l, err := net.Listen(network, address) //nolint:noctx // at once, on this host
	must.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	c, err := net.Dial(network, l.Addr().String()) //nolint:noctx // likewise
	must.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	a, err := l.Accept()
	must.NoError(t, err)
	t.Cleanup(func() { a.Close() })
	return inodeOf(t, l.(syscall.Conn)), inodeOf(t, a.(syscall.Conn)), inodeOf(t, c.(syscall.Conn))
}

func TestRolesOfRealSockets(t *testing.T) {
	l4, a4, c4 := pair(t, "tcp4", "127.0.0.1:0")
	l6, a6, c6 := pair(t, "tcp6", "[::1]:0")
	lu, au, cu := pair(t, "unix", filepath.Join(t.TempDir(), "s"))
	ld, ad, _ := pair(t, "unix", fmt.Sprintf("@cuda-uvmfd-4026531836-%d@", os.Getpid()))
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	must.NoError(t, err)
	var end unix.Stat_t
	must.NoError(t, unix.Fstat(fds[0], &end))
	t.Cleanup(func() { unix.Close(fds[0]); unix.Close(fds[1]) })
	n := newNames(procRoot, defaultKeep)
	pid := uint32(os.Getpid())
	n.watch(pid, true)
	got := n.roles()
	for name, c := range map[string]struct {
		inode uint64
		want  recording.Role
	}{
		"tcp4 listening": {l4, recording.Listening}, "tcp4 accepted": {a4, recording.Accepted},
		"tcp4 connected": {c4, recording.Connected}, "tcp6 listening": {l6, recording.Listening},
		"tcp6 accepted": {a6, recording.Accepted}, "tcp6 connected": {c6, recording.Connected},
		"unix listening": {lu, recording.Listening}, "unix accepted": {au, recording.Accepted},
		"unix connected": {cu, ""}, "pair": {end.Ino, ""},
		"libcuda's listening": {ld, ""}, "libcuda's accepted": {ad, ""},
	} {
		if role := got[objectKey{pid, c.inode}]; role != c.want {
			t.Errorf("%s is %q, want %q", name, role, c.want)
		}
	}
	objects := withRoles(
		[]recording.Object{{PID: pid, Inode: a4, Name: "socket:[1]"}, {PID: pid, Inode: c4, Name: "/some/file"}},
		got,
	)
	if objects[0].Role != recording.Accepted || objects[1].Role != "" {
		t.Errorf("roles of objects: %+v", objects[:2])
	}
	n.watch(pid, false)
	if left := n.roles(); len(left) != 0 {
		t.Errorf("%d roles of a process that is not watched", len(left))
	}
}

// TestRolesWithoutListener: a server that takes one connection may close its listening socket. Then its port tells, or
// nothing does.
func TestRolesWithoutListener(t *testing.T) {
	const (
		service, above, client = "0100007F:1F90", "0100007F:C350", "0100007F:D7F0" // ports 8080, 50000 and 55280
		far                    = "0A00000A:C350"
	)
	for name, c := range map[string]struct {
		rows [][2]string
		want []recording.Role
	}{
		"port of a service": {
			[][2]string{{service, client}, {client, service}},
			[]recording.Role{recording.Accepted, recording.Connected},
		},
		"any port": {
			[][2]string{{above, client}, {client, above}}, []recording.Role{recording.Unclear, recording.Unclear},
		},
		"service, from IPv6's socket": {
			[][2]string{{mapped + above, mapped + client}, {client, above}},
			[]recording.Role{recording.Unclear, recording.Unclear},
		},
		"another machine asks":     {[][2]string{{service, far}}, []recording.Role{recording.Accepted}},
		"another machine is asked": {[][2]string{{client, far}}, []recording.Role{recording.Connected}},
	} {
		table := ""
		for i, r := range c.rows {
			table += fmt.Sprintf(
				"   %d: %s %s 01 00000000:00000000 00:00000000 00000000     0        0 %d 1 0 100 0 0 10 0\n",
				i,
				r[0],
				r[1],
				100+i,
			)
		}
		out := map[uint64]recording.Role{}
		internet(table, out)
		for i, want := range c.want {
			if got := out[uint64(100+i)]; got != want {
				t.Errorf("%s: end %d is %q, want %q", name, i, got, want)
			}
		}
	}
}

// TestRolesWithoutTables: where /proc/PID/net has nothing to say, no socket is said to be without a role.
func TestRolesWithoutTables(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, os.MkdirAll(dir+"/7/fd", 0o755))
	must.NoError(t, os.Symlink("socket:[41]", dir+"/7/fd/3"))
	n := newNames(dir, defaultKeep)
	n.watch(7, true)
	if got := n.roles(); len(got) != 1 || got[objectKey{7, 41}] != recording.Unclear {
		t.Errorf("roles %v", got)
	}
}

func TestRolesAreBounded(t *testing.T) {
	roles := map[objectKey]recording.Role{}
	for i := range uint64(1000) {
		roles[objectKey{7, i + 1}] = recording.Connected
	}
	if got := withRoles(nil, roles); len(got) != maxOfRole || got[0].Inode != 1 {
		t.Errorf("%d objects, the first %+v", len(got), got[0])
	}
	dir := t.TempDir()
	must.NoError(t, os.MkdirAll(dir+"/7/net", 0o755))
	row := "   0: 0100007F:07E8 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 572 1 0 100 0 " +
		"0 10 0\n"
	must.NoError(t, os.WriteFile(dir+"/7/net/tcp", []byte(strings.Repeat(row, maxTable/len(row)+10)), 0o600))
	n := newNames(dir, defaultKeep)
	table := n.table(7, "tcp")
	if len(table) > maxTable || !strings.HasSuffix(table, "\n") {
		t.Errorf("read %d bytes that end with %q", len(table), table[max(0, len(table)-5):])
	}
	if got := n.sockets(7); len(got) != 1 || got[572] != recording.Listening {
		t.Errorf("sockets %v", got)
	}
}

func FuzzRoles(f *testing.F) {
	f.Add("0: 00000000:07E8 00000000:0000 0A 0:0 00:0 0 0 0 572 1 0\n0: 00000000:07E8 0:1 01 0:0 00:0 0 0 0 573 1 0\n")
	f.Add("0000: 00000002 00000000 00010000 0001 01 22 /run/x\n0000: 00000003 00000000 00000000 0001 03 23 /run/x\n")
	fuzzing.Run(f, func(t *testing.T, table string) {
		out := map[uint64]recording.Role{}
		internet(table, out)
		local(table, out)
		for inode, role := range out {
			if inode == 0 || inode >= 1<<48 || role == "" {
				t.Errorf("socket %d is %q", inode, role)
			}
		}
	})
}
