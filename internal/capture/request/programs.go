package request

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"

	"github.com/inferscope/inferscope/bpf"
	"github.com/inferscope/inferscope/internal/capture/ring"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
)

// programs are the BPF programs, attached.
type programs struct {
	coll   *ebpf.Collection
	links  []link.Link
	reader *ring.Records // nil: closed

	generation uint32 // of probes of OpenSSL
}

// hooks are places in the kernel that see every transfer on a socket.
type hooks struct {
	name     string
	programs []string
	optional []string // of IPv6, which the kernel may lack
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
	},
	{
		name:     "the returns of system calls",
		programs: []string{bpf.RequestProgRequestSyscall, bpf.RequestProgRequestStateSyscall},
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
			return p, nil
		}
		errs = append(errs, fmt.Errorf("by %s: %w", h.name, err))
	}
	return nil, fmt.Errorf("load the programs for requests: %w", errors.Join(errs...))
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
	p := &programs{coll: coll}
	if p.reader, err = ring.OpenRecords(coll.Maps[bpf.RequestMapRequestRecords]); err != nil {
		coll.Close()
		return nil, fmt.Errorf("map the ring of requests: %w", err)
	}
	for name, program := range coll.Programs {
		if program.Type() != ebpf.Tracing {
			continue // tls puts them on
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
	var errs []error
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
	if processes.Lookup(pid, &known) == nil {
		return nil
	}
	if err := processes.Put(pid, known); err != nil {
		return fmt.Errorf("note that requests of pid %d are followed: %w", pid, err)
	}
	return nil
}

// forget returns what was counted of a process.
func (p *programs) forget(pid uint32) (counted bpf.RequestRequestProcess) {
	_ = p.coll.Maps[bpf.RequestMapRequestProcesses].LookupAndDelete(pid, &counted) // it may not be there
	return counted
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
}

// cut reports whether the last transfers of a connection of HTTP/1.1 were lost, or its end was: it is not followed any
// more then.
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
	v := uint32(0)
	if off {
		v = 1
	}
	if err := p.coll.Variables[bpf.RequestVarRequestOff].Set(v); err != nil {
		return fmt.Errorf("switch the recording of requests: %w", err)
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
