package report

import (
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/summary/cpu"
)

func TestMoves(t *testing.T) {
	for _, c := range []struct {
		p    cpu.Pressure
		want string
	}{
		{cpu.Pressure{Migrations: 99, Ran: 1000}, ""}, // few
		{cpu.Pressure{Migrations: 400, Ran: 1e9}, ""}, // few per second
		{cpu.Pressure{Migrations: 50_000}, ""},        // the recording contradicts itself
		{
			cpu.Pressure{Migrations: 1200, Crossings: 300, Ran: 2e9},
			"threads changed CPUs 1,200 times, 600 per second of running time, 300 of them to another NUMA node; " +
				"each leaves the caches behind: pin threads to CPUs (taskset, OMP_PROC_BIND=close)",
		},
	} {
		if got := movesText(&c.p); got != c.want {
			t.Errorf("%+v: %q, want %q", c.p, got, c.want)
		}
	}
}

func TestNUMA(t *testing.T) {
	pages := map[string]uint64{"0": 300, "1": 100}
	for _, c := range []struct {
		p    cpu.Pressure
		want string
	}{
		{cpu.Pressure{GPUNode: 0, Pages: map[string]uint64{"0": 9}, RemoteShare: 0.05, RemoteRunning: 0.09}, ""},
		// one node: nothing is remote
		{cpu.Pressure{GPUNode: -1, Pages: map[string]uint64{"0": 9}, RemoteAccess: 0.9}, ""},
		{
			cpu.Pressure{GPUNode: -1, Pages: pages, RemoteAccess: 0.6},
			"60.0% of the accesses to memory leave their node, if threads use all pages alike",
		},
		{
			cpu.Pressure{GPUNode: 1, Pages: pages, RemoteShare: 0.75, RemoteRunning: 0.25},
			"75.0% of the pages are on another node than the GPU, which is at node 1 (node 0: 300 pages, node 1: 100 " +
				"pages); threads ran 25.0% of their time on another node than the GPU's, which is 1; start it with " +
				"numactl --cpunodebind=1 --membind=1",
		},
	} {
		if got := numaText(&c.p); got != c.want {
			t.Errorf("%+v: %q, want %q", c.p, got, c.want)
		}
	}
}
