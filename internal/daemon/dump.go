package daemon

import (
	"context"
	"errors"
	"fmt"

	"github.com/inferscope/inferscope/internal/api"
	"github.com/inferscope/inferscope/internal/dump"
	"github.com/inferscope/inferscope/internal/fault"
	"github.com/inferscope/inferscope/internal/target"
)

// Dumper makes dumps of processes: live.Taker.
type Dumper interface {
	Take(ctx context.Context, pid uint32, processes []*target.Process) (*dump.Dump, error)
}

// Dump returns one stack of every thread of a target. It implements api.Dumper.
func (d *Daemon) Dump(ctx context.Context, r api.DumpRequest) (*dump.Dump, error) {
	if d.parts.Dumper == nil {
		return nil, fault.New(fault.Unsupported, "use `inferscope report`", errors.New("this daemon makes no dumps"))
	}
	v, ok := d.follower.view(r.PID)
	if !ok {
		return nil, fault.New(fault.NoProcess, "`inferscope targets` lists what is watched", fmt.Errorf("pid %d is not a target of this daemon", r.PID))
	}
	var processes []*target.Process
	for _, e := range v.entries {
		p := e.process
		wanted := p.PID == r.PID || r.Children
		if p.Died == 0 && wanted && (r.AnyOwner || p.UID == r.Owner) {
			processes = append(processes, p)
		}
	}
	if len(processes) == 0 {
		return nil, fault.New(fault.NoProcess, "`inferscope report` shows what was recorded of it", fmt.Errorf("pid %d has exited", r.PID))
	}
	return d.parts.Dumper.Take(ctx, r.PID, processes)
}
