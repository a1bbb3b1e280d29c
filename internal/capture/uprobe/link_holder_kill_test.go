package uprobe_test

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// breakpoints returns a function that counts those of the sites of many in the victim's memory.
func (v *victim) breakpoints(sites []uprobe.Site) (count func() int) {
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", v.pid()))
	must.NoError(v.t, err)
	v.t.Cleanup(func() { memory.Close() })
	first := v.do("addr").n + int64(v.function("b_many").Addr) - int64(v.tick)
	text := make([]byte, sites[len(sites)-1].Offset-sites[0].Offset+1)
	return func() (n int) {
		if _, err := memory.ReadAt(text, first); err != nil {
			v.t.Fatal(err)
		}
		for _, s := range sites {
			if text[s.Offset-sites[0].Offset] == 0xcc { // int3
				n++
			}
		}
		return n
	}
}

// A link holder that is killed while it takes probes off, or puts them on, leaves nothing in the target.
func TestLinkHolderKilledAtWork(t *testing.T) {
	needRoot(t)
	if mode, err := uprobe.Detect(); err != nil || mode == uprobe.Perf {
		t.Skip("one link a site")
	}
	v := startVictim(t, buildVictim(t))
	file, err := os.Open(v.lib)
	must.NoError(t, err)
	defer file.Close()
	sites := many(v.function("b_many").Offset)
	count := v.breakpoints(sites)
	attach := func(a *uprobe.Attacher) *uprobe.Attachment {
		at, err := a.Attach(file, v.pid(), sites)
		must.NoError(t, err)
		return at
	}
	for name, prepare := range map[string]func(a *uprobe.Attacher) (work func()){
		"takes off": func(a *uprobe.Attacher) func() {
			at := attach(a)
			return func() { _ = at.Close() }
		},
		"puts on": func(a *uprobe.Attacher) func() {
			return func() { _, _ = a.Attach(file, v.pid(), sites) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			const wanted = 10
			for hits := 0; hits < wanted; {
				k := startLinkHolder(t)
				a, err := uprobe.NewAttacher(uprobe.Options{LinkHolder: k, Maps: newRings(t, 1<<16).maps})
				must.NoError(t, err)
				work, before, done := prepare(a), count(), make(chan struct{})
				go func() { work(); close(done) }()
				n := before
				for n == before {
					n = count()
				}
				must.NoError(t, unix.Kill(k.PID(), unix.SIGKILL))
				if n > 0 && n < len(sites) {
					hits++
				}
				<-k.Gone()
				<-done
				must.Become(t, fmt.Sprintf("the breakpoints to go, of which there were %d at the kill", n),
					func() bool { return count() == 0 })
				must.NoError(t, a.Close())
			}
		})
	}
}
