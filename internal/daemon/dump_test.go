package daemon

import (
	"context"
	"slices"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording/dump"
)

// fakeDumper notes which processes it was asked for.
type fakeDumper struct{ pids []uint32 }

func (f *fakeDumper) Take(_ context.Context, pid uint32, processes []*proc.Process) (*dump.Dump, error) {
	f.pids = nil
	for _, p := range processes {
		f.pids = append(f.pids, p.PID)
	}
	return dump.New("test", pid), nil
}

func TestDumpsShowNobodyElsesProcesses(t *testing.T) {
	w := newWorld(t)
	child, other, dead := process(11, 10, second), process(12, 10, second), process(13, 10, second)
	d, _ := w.start(Options{}, process(10, 0, second))
	main := d.follower.roots[0].main()
	other.Owner, dead.Died = main.Owner+1, 2*second // its real user is the same: a setuid program
	for _, p := range []proc.Process{child, other, dead} {
		d.follower.note(&p)
	}
	owner := api.Asker{UID: main.Owner}
	dumper := &fakeDumper{}
	d.parts.Dumper = dumper
	for _, tt := range []struct {
		name    string
		request api.DumpRequest
		want    []uint32
	}{
		{"the process alone", api.DumpRequest{PID: 10, Asker: owner}, []uint32{10}},
		{"the owner's children", api.DumpRequest{PID: 10, Children: true, Asker: owner}, []uint32{10, 11}},
		{"root's view", api.DumpRequest{PID: 10, Children: true, Asker: api.Asker{Any: true}}, []uint32{10, 11, 12}},
	} {
		if _, err := d.Dump(context.Background(), tt.request); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if !slices.Equal(dumper.pids, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, dumper.pids, tt.want)
		}
	}
	dumper.pids = nil
	_, err := d.Dump(context.Background(), api.DumpRequest{PID: 10, Asker: api.Asker{UID: main.Owner + 7}})
	if clierror.CodeOf(err) != clierror.NoProcess || dumper.pids != nil {
		t.Errorf("a stranger's dump: %v of %v", err, dumper.pids)
	}
	_, err = d.Dump(context.Background(), api.DumpRequest{PID: 99, Asker: api.Asker{Any: true}})
	if clierror.CodeOf(err) != clierror.NoProcess {
		t.Errorf("not a target: %v", err)
	}
	d.parts.Dumper = nil
	_, err = d.Dump(context.Background(), api.DumpRequest{PID: 10, Asker: api.Asker{Any: true}})
	if clierror.CodeOf(err) != clierror.Unsupported {
		t.Errorf("without a dumper: %v", err)
	}
}
