package request

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
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

func load(mode uprobe.Mode) (*programs, error) {
	spec, err := bpf.LoadRequest()
	if err != nil {
		return nil, fmt.Errorf("read the programs for requests: %w", err)
	}
	if mode == uprobe.Perf {
		for _, p := range spec.Programs {
			if p.Type == ebpf.Kprobe {
				p.AttachType = ebpf.AttachNone
			}
		}
	}
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, fmt.Errorf(
			"load the programs for requests, which need the tracepoints sock_send_length and sock_recv_length of kernel 6.3: %w",
			err,
		)
	}
	p := &programs{coll: coll}
	if p.reader, err = ring.OpenRecords(coll.Maps[bpf.RequestMapRequestRecords]); err != nil {
		coll.Close()
		return nil, fmt.Errorf("map the ring of requests: %w", err)
	}
	for _, program := range coll.Programs {
		if program.Type() != ebpf.Tracing {
			continue // tls puts them on
		}
		l, err := link.AttachTracing(link.TracingOptions{Program: program})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("attach the programs for requests: %w", err), p.close())
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
