package request

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/capture/ring"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
)

// programs are the BPF programs, attached.
type programs struct {
	coll   *ebpf.Collection
	links  []link.Link
	reader *ring.Records // nil: closed

	hooks     hooks // those in use
	first     bool  // these are the first of those that were tried
	lacksIPv6 bool  // functions of IPv6 that the hooks have are not in the kernel's BTF

	following map[uint32]struct{} // pids
	off       bool
	onDemand  link.Link // of hooks.onDemand; nil: not linked

	generation uint32 // of probes of OpenSSL
	epoch      uint32 // of changes to the map of sockets
}

// hooks are places in the kernel that see every transfer on a socket.
type hooks struct {
	name     string
	programs []string
	optional []string // of IPv6, which the kernel may lack
	onDemand string   // the program that costs all processes and is linked only while requests of some are recorded
	misses   string   // ways to transfer that are neither seen nor counted
}

// allHooks are those that can take the place of each other, the cheapest first.
var allHooks = []hooks{
	{
		name:     "the tracepoints sock_send_length and sock_recv_length (6.3)",
		programs: []string{bpf.RequestProgRequestReceived, bpf.RequestProgRequestSent, bpf.RequestProgRequestState},
	},
	{
		name: "the returns of inet_sendmsg and inet_recvmsg (BPF trampolines)",
		programs: []string{
			bpf.RequestProgRequestInetRecvmsg, bpf.RequestProgRequestInetSendmsg,
			bpf.RequestProgRequestUnixStreamRecvmsg, bpf.RequestProgRequestUnixStreamSendmsg,
			bpf.RequestProgRequestState,
		},
		optional: []string{bpf.RequestProgRequestInet6Recvmsg, bpf.RequestProgRequestInet6Sendmsg},
		misses:   "sendfile and splice",
	},
	{
		name:     "the returns of system calls",
		programs: []string{bpf.RequestProgRequestSyscall, bpf.RequestProgRequestStateSyscall},
		onDemand: bpf.RequestProgRequestSyscall,
		misses:   "splice and io_uring",
	},
}

// usedHooks are those that load tries.
var usedHooks = allHooks

// load attaches the programs at the first hooks that the kernel has.
func load(mode uprobe.Mode) (*programs, error) {
	var errs []error
	for _, h := range usedHooks {
		p, err := h.load(mode)
		if err == nil {
			p.first = h.name == allHooks[0].name
			return p, nil
		}
		errs = append(errs, fmt.Errorf("by %s: %w", h.name, err))
		if !lacksHooks(err) {
			break
		}
	}
	return nil, fmt.Errorf("load the programs for requests: %w", errors.Join(errs...))
}

// errnoNotSupported is ENOTSUPP, which the kernel returns where it has no trampolines. Package unix does not have it.
const errnoNotSupported = unix.Errno(524)

// lacksHooks reports whether err is that of a kernel that lacks hooks or does not allow them. Others may do there.
// Any other error, like EACCES of the verifier, is a fault that the next hooks would only hide.
func lacksHooks(err error) bool {
	return slices.ContainsFunc([]error{
		ebpf.ErrNotSupported, btf.ErrNotFound,
		unix.ENOENT, unix.EPERM, unix.EOPNOTSUPP, errnoNotSupported,
	}, func(target error) bool { return errors.Is(err, target) })
}

// describe returns what differs from the first hooks; "": nothing.
func (p *programs) describe() string {
	if p.first {
		return ""
	}
	text := fmt.Sprintf("sockets are observed by %s: transfers by %s are neither seen nor counted",
		p.hooks.name, p.hooks.misses)
	if p.lacksIPv6 {
		text += ", and requests over IPv6 are not seen because the kernel has IPv6 as a module or not at all"
	}
	return text
}

// spec returns what to load: the programs of h, and those that all hooks need.
func (h hooks) spec(mode uprobe.Mode) (*ebpf.CollectionSpec, error) {
	spec, err := bpf.LoadRequest()
	if err != nil {
		return nil, fmt.Errorf("read the programs: %w", err)
	}
	for _, other := range allHooks {
		for _, name := range slices.Concat(other.programs, other.optional) {
			if !slices.Contains(h.programs, name) && !slices.Contains(h.optional, name) {
				delete(spec.Programs, name)
			}
		}
	}
	for _, name := range h.optional {
		if !haveFunction(spec.Programs[name].AttachTo) {
			delete(spec.Programs, name)
		}
	}
	if mode == uprobe.Perf {
		for _, p := range spec.Programs {
			if p.Type == ebpf.Kprobe {
				p.AttachType = ebpf.AttachNone
			}
		}
	}
	return spec, nil
}

// haveFunction reports whether the kernel has a function, as its BTF says.
func haveFunction(name string) bool {
	types, err := btf.LoadKernelSpec()
	if err != nil {
		return false
	}
	var f *btf.Func
	return types.TypeByName(name, &f) == nil
}

func (h hooks) load(mode uprobe.Mode) (*programs, error) {
	spec, err := h.spec(mode)
	if err != nil {
		return nil, err
	}
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, err
	}
	p := &programs{coll: coll, hooks: h, following: map[uint32]struct{}{}}
	for _, name := range h.optional {
		p.lacksIPv6 = p.lacksIPv6 || coll.Programs[name] == nil
	}
	if p.reader, err = ring.OpenRecords(coll.Maps[bpf.RequestMapRequestRecords]); err != nil {
		coll.Close()
		return nil, fmt.Errorf("map the ring of requests: %w", err)
	}
	for name, program := range coll.Programs {
		if program.Type() != ebpf.Tracing || name == h.onDemand {
			continue // tls puts them on, and relink does
		}
		l, err := link.AttachTracing(link.TracingOptions{Program: program})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("attach %s: %w", name, err), p.close())
		}
		p.links = append(p.links, l)
	}
	return p, nil
}

func (p *programs) close() error {
	errs := []error{p.unlink()}
	for _, l := range p.links {
		errs = append(errs, l.Close())
	}
	if p.reader != nil {
		errs = append(errs, p.reader.Close())
		p.reader = nil
	}
	p.coll.Close()
	return errors.Join(errs...)
}

func (p *programs) follow(pid uint32) error {
	var known bpf.RequestRequestProcess
	processes := p.coll.Maps[bpf.RequestMapRequestProcesses]
	if processes.Lookup(pid, &known) != nil {
		if err := processes.Put(pid, known); err != nil {
			return fmt.Errorf("note that requests of pid %d are followed: %w", pid, err)
		}
	}
	p.following[pid] = struct{}{}
	return p.relink()
}

// forget returns what was counted of a process.
func (p *programs) forget(pid uint32) (counted bpf.RequestRequestProcess, err error) {
	_ = p.coll.Maps[bpf.RequestMapRequestProcesses].LookupAndDelete(pid, &counted) // it may not be there
	delete(p.following, pid)
	return counted, p.relink()
}

// relink links the program that is linked on demand, or takes its link away.
func (p *programs) relink() error {
	if p.off || len(p.following) == 0 {
		return p.unlink()
	}
	name := p.hooks.onDemand
	if name == "" || p.onDemand != nil {
		return nil
	}
	l, err := link.AttachTracing(link.TracingOptions{Program: p.coll.Programs[name]})
	if err != nil {
		return fmt.Errorf("attach %s: %w", name, err)
	}
	p.onDemand = l
	return nil
}

func (p *programs) unlink() error {
	if p.onDemand == nil {
		return nil
	}
	err := p.onDemand.Close()
	p.onDemand = nil
	if err != nil {
		return fmt.Errorf("detach %s: %w", p.hooks.onDemand, err)
	}
	return nil
}

func (p *programs) counted(pid uint32) (counted bpf.RequestRequestProcess) {
	_ = p.coll.Maps[bpf.RequestMapRequestProcesses].Lookup(pid, &counted) // it may not be there
	return counted
}

func (p *programs) count(which bpf.RequestRequestCount) (n uint64) {
	var perCPU []uint64
	if p.coll.Maps[bpf.RequestMapRequestCounts].Lookup(which, &perCPU) == nil {
		for _, c := range perCPU {
			n += c
		}
	}
	return n
}

// SOCKET_IGNORED, SOCKET_GAP and PROTOCOL_GAP of bpf/request.bpf.c.
const (
	socketIgnored = uint64(1) << 33
	socketGap     = uint64(1) << 36
	protocolGap   = uint32(4)
)

// ignore ends the recording of a socket that only looked like one to an engine.
func (p *programs) ignore(socket uint64) {
	// At worst more of it is recorded.
	_ = p.coll.Maps[bpf.RequestMapRequestSockets].Put(socket, socketIgnored)
	p.epoch++
	_ = p.coll.Variables[bpf.RequestVarRequestEpoch].Set(p.epoch)
}

// cut reports whether the last transfers of a connection were lost, or its end was: it is not followed any more then.
func (p *programs) cut(id connID) bool {
	if id.tls != 0 {
		var protocol uint32
		key := bpf.RequestTlsConnection{Ssl: id.at, Tgid: uint64(id.tls)}
		return p.coll.Maps[bpf.RequestMapRequestTlsConnections].Lookup(key, &protocol) != nil || protocol&protocolGap != 0
	}
	var owner uint64
	return p.coll.Maps[bpf.RequestMapRequestSockets].Lookup(id.at, &owner) != nil || owner&socketGap != 0
}

func (p *programs) setOff(off bool) error {
	before := p.off
	p.off = off
	if err := p.relink(); err != nil {
		p.off = before
		return err
	}
	v := uint32(0)
	if off {
		v = 1
	}
	if err := p.coll.Variables[bpf.RequestVarRequestOff].Set(v); err != nil {
		p.off = before
		return errors.Join(fmt.Errorf("switch the recording of requests: %w", err), p.relink())
	}
	return nil
}

// setTLS tells the programs that probes of OpenSSL are on, or that there are none: what a call that is under way then
// has left does not count any more.
func (p *programs) setTLS(on bool) error {
	generation := uint32(0)
	if on {
		p.generation++
		generation = p.generation
	}
	if err := p.coll.Variables[bpf.RequestVarRequestTls].Set(generation); err != nil {
		return fmt.Errorf("switch the recording of requests over TLS: %w", err)
	}
	return nil
}
