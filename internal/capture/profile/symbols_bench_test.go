package profile

import (
	"os"
	"testing"

	"github.com/inferscope/inferscope/internal/capture/clock"
	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/capture/symbol"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// BenchmarkName names addresses that were not met before, in functions that were: what a
// new frame costs, with the file opened for it and without.
func BenchmarkName(b *testing.B) {
	needs.Root(b, "files are opened through /proc/PID/map_files")
	p, err := proc.Describe(os.Getpid())
	must.NoError(b, err)
	defer p.Close()
	m := newModules()
	m.follow(p)
	mod, addr := ownCode(b, m, uint32(os.Getpid()))
	for name, forget := range map[string]bool{"opened": true, "known": false} {
		b.Run(name, func(b *testing.B) {
			n := newNamer(symbol.New(symbol.Options{}), m)
			n.look(frame{kind: nativeFrame, module: mod, addr: addr})
			for b.Loop() {
				if forget {
					mod.known.Store(nil)
				}
				n.look(frame{kind: nativeFrame, module: mod, addr: addr})
			}
		})
	}
}

// ownCode returns this program's file and an address in its code.
func ownCode(tb testing.TB, m *modules, pid uint32) (*module, uint64) {
	tb.Helper()
	exe, err := os.Readlink("/proc/self/exe")
	must.NoError(tb, err)
	m.mu.Lock()
	all := m.mappings(pid)
	m.mu.Unlock()
	for _, t := range all {
		if t.Path != exe {
			continue
		}
		f := m.leaf(pid, t.Start+(t.End-t.Start)/2)
		if f.module != nil && f.addr != 0 {
			return f.module, f.addr
		}
	}
	tb.Fatal("this program is not among its own mappings")
	return nil, 0
}

// A file's identity is found out once, and again after a while; it outlives the last
// process that had the file mapped.
func TestIdentity(t *testing.T) {
	needs.Root(t, "files are opened through /proc/PID/map_files")
	p, err := proc.Describe(os.Getpid())
	must.NoError(t, err)
	defer p.Close()
	m := newModules()
	m.follow(p)
	mod, _ := ownCode(t, m, uint32(os.Getpid()))
	first := m.identity(mod)
	if first == (symbol.Key{}) {
		t.Fatal("this program's file has no identity")
	}
	other := symbol.Key{}
	mod.known.Store(&identified{other, clock.Monotonic()})
	if m.identity(mod) != other {
		t.Error("the file was opened again at once")
	}
	mod.known.Store(&identified{other, clock.Monotonic() - identityLasts})
	if m.identity(mod) != first {
		t.Error("the file was not opened again after a while")
	}
	m.forget(p)
	mod.known.Store(&identified{first, 0})
	if m.identity(mod) != first {
		t.Error("the file's identity is gone with the process, and with it the names of what was sampled")
	}
}
