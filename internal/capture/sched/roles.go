package sched

import (
	"cmp"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/inferscope/inferscope/internal/recording"
)

// Bounds of what is read when a recording is made.
const (
	maxTable   = 4 << 20 // bytes of a table of sockets: 28,000 rows of /proc/net/tcp
	maxFiles   = 4096    // open files of a process that are looked at
	maxServers = 64      // processes of which sockets are looked up
	maxOfRole  = 16      // sockets of a process and role that are told though no thread was seen to wait for them
)

// The states of /proc/net/tcp (include/net/tcp_states.h), and the flag of a listening socket in
// /proc/net/unix (include/linux/net.h).
const (
	tcpListen     = "0A"
	unixListening = 1 << 16
)

// roles returns the sockets of the processes that are watched, with their roles. It asks the kernel for
// tables that can be long, so it is for when a recording is made and not for the drain.
func (n *names) roles() map[objectKey]recording.Role {
	n.mu.Lock()
	pids := slices.Sorted(maps.Keys(n.watched))
	n.mu.Unlock()
	out := map[objectKey]recording.Role{}
	tables := map[string]map[uint64]recording.Role{} // by network namespace
	for _, pid := range pids[:min(len(pids), maxServers)] {
		space, err := os.Readlink(n.path(pid) + "/ns/net")
		if err != nil { // a kernel without network namespaces
			space = n.path(pid)
		}
		if tables[space] == nil {
			tables[space] = n.sockets(pid)
		}
		blind := len(
			tables[space],
		) == 0 // no table could be read, or none has anything: the sockets are somewhere all the same
		for _, inode := range n.openSockets(pid) {
			role := tables[space][inode]
			if blind {
				role = recording.Unclear
			}
			if role != "" {
				out[objectKey{pid, inode}] = role
			}
		}
	}
	return out
}

// openSockets returns the inodes of the sockets that a process has open.
func (n *names) openSockets(pid uint32) []uint64 {
	dir, err := os.Open(n.path(pid) + "/fd")
	if err != nil {
		return nil
	}
	defer dir.Close()
	list, _ := dir.Readdirnames(maxFiles) // what could be read of it will do
	var out []uint64
	for _, fd := range list {
		link, _ := os.Readlink(n.path(pid) + "/fd/" + fd) // "" of one that was closed
		if digits, ok := strings.CutPrefix(link, "socket:["); ok {
			if inode, err := strconv.ParseUint(strings.TrimSuffix(digits, "]"), 10, 48); err == nil {
				out = append(out, inode)
			}
		}
	}
	return out
}

// sockets returns the role of each socket in the network namespace of a process, by inode.
func (n *names) sockets(pid uint32) map[uint64]recording.Role {
	out := map[uint64]recording.Role{}
	internet(n.table(pid, "tcp")+n.table(pid, "tcp6"), out)
	local(n.table(pid, "unix"), out)
	return out
}

// table returns one of /proc/PID/net, cut off after its last whole line; "" where it cannot be read.
func (n *names) table(pid uint32, name string) string {
	f, err := os.Open(n.path(pid) + "/net/" + name)
	if err != nil {
		return ""
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxTable))
	if err != nil {
		return ""
	}
	return string(text[:strings.LastIndexByte(string(text), '\n')+1])
}

// connection is one row of /proc/net/tcp or tcp6.
type connection struct {
	inode         uint64
	local, remote string // address:port, in hex; of IPv4 in IPv6 that of IPv4
}

// internet reads rows of /proc/net/tcp and tcp6.
func internet(table string, out map[uint64]recording.Role) {
	ports, ends := map[string]bool{}, map[[2]string]bool{}
	var open []connection
	for line := range strings.Lines(table) {
		row := strings.Fields(line) // sl local rem st queues timer retrnsmt uid timeout inode
		if len(row) < 10 {
			continue
		}
		inode, err := strconv.ParseUint(row[9], 10, 48)
		if err != nil || inode == 0 {
			continue
		}
		c := connection{
			inode:  inode,
			local:  strings.TrimPrefix(row[1], mapped),
			remote: strings.TrimPrefix(row[2], mapped),
		}
		if row[3] == tcpListen {
			ports[portOf(c.local)], out[inode] = true, recording.Listening
			continue
		}
		open, ends[[2]string{c.local, c.remote}] = append(open, c), true
	}
	for _, c := range open {
		out[c.inode] = c.role(ports, ends[[2]string{c.remote, c.local}])
	}
}

// mapped is how addresses of IPv4 in IPv6 begin in /proc/net/tcp6 (RFC 4291, 2.5.5.2).
const mapped = "0000000000000000FFFF0000"

// firstEphemeral is the first port that Linux gives to who connects without asking for one (ip_local_port_range).
const firstEphemeral = 32768

// role says who opened a connection: the side whose port somebody listens on did not. listening are the ports of this
// network namespace; here says that the other end is in it too. A server that has closed its listening socket is told
// by its port, or not at all.
func (c *connection) role(listening map[string]bool, here bool) recording.Role {
	from, to := portOf(c.local), portOf(c.remote)
	served := func(port string) bool {
		n, err := strconv.ParseUint(port, 16, 16)
		return err == nil && n < firstEphemeral
	}
	switch {
	case listening[from]:
		return recording.Accepted
	case here && listening[to]:
		return recording.Connected
	case served(from) && !served(to):
		return recording.Accepted
	case here && served(from) == served(to):
		return recording.Unclear
	}
	return recording.Connected
}

func portOf(address string) string {
	_, port, _ := strings.Cut(address, ":")
	return port
}

// local reads rows of /proc/net/unix. A connection that has the name of a listening socket was opened by the
// other side; one without a name can be one end of a pair, and has no role.
func local(table string, out map[uint64]recording.Role) {
	names, open := map[string]bool{}, map[uint64]string{}
	for line := range strings.Lines(table) {
		row := strings.Fields(line) // Num RefCount Protocol Flags Type St Inode Path
		if len(row) < 8 {
			continue
		}
		flags, bad := strconv.ParseUint(row[3], 16, 32)
		inode, err := strconv.ParseUint(row[6], 10, 48)
		if bad != nil || err != nil || inode == 0 {
			continue
		}
		if ofLibrary(row[7]) {
			continue
		}
		if flags&unixListening != 0 {
			names[row[7]], out[inode] = true, recording.Listening
			continue
		}
		open[inode] = row[7]
	}
	for inode, name := range open {
		if names[name] {
			out[inode] = recording.Accepted
		}
	}
}

// ofLibrary reports whether a socket has a name that libcuda or NCCL gives it. Each process that uses CUDA listens on
// such a socket for those that import its memory, and is not a server because of it.
func ofLibrary(name string) bool {
	return strings.HasPrefix(name, "@cuda-uvmfd-") || strings.HasPrefix(name, "@tmp/nccl-")
}

// withRoles puts roles into objects, and adds sockets that no thread was seen to wait for: who polls
// several at once is not seen to wait for any.
func withRoles(objects []recording.Object, roles map[objectKey]recording.Role) []recording.Object {
	for i := range objects {
		o := &objects[i]
		if !strings.HasPrefix(o.Name, "socket:[") {
			continue // another file can have the same inode number
		}
		id := objectKey{o.PID, o.Inode}
		o.Role = roles[id]
		delete(roles, id)
	}
	type group struct {
		pid  uint32
		role recording.Role
	}
	count := map[group]int{}
	for _, id := range slices.SortedFunc(maps.Keys(roles), func(x, y objectKey) int {
		return cmp.Or(cmp.Compare(x.pid, y.pid), cmp.Compare(x.inode, y.inode))
	}) {
		role := roles[id]
		if g := (group{id.pid, role}); count[g] < maxOfRole {
			count[g]++
			objects = append(objects, recording.Object{
				PID:   id.pid,
				Inode: id.inode,
				Name:  "socket:[" + strconv.FormatUint(id.inode, 10) + "]",
				Role:  role,
			})
		}
	}
	return objects
}
