package uprobe_test

import (
	"cmp"
	"debug/elf"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// attachArgument makes the test binary attach to a victim and detach for ever, and say so: "attach-for-ever PID LIBRARY
// OFFSET", the last where b_many begins.
const attachArgument = "attach-for-ever"

// lingerVariable is how long the probes of such a process outlive it (time.ParseDuration); it then attaches once.
const lingerVariable = "TEST_LINGER"

// fewSites and fewKills are for kernels that take long.
const (
	fewSites = 5
	fewKills = 10
)

func attachForEver(args []string) error {
	pid, err := strconv.ParseUint(args[0], 10, 32)
	if err != nil {
		return err
	}
	file, err := os.Open(args[1])
	if err != nil {
		return err
	}
	first, err := strconv.ParseUint(args[2], 10, 64)
	if err != nil {
		return err
	}
	linkHolder, err := uprobe.StartLinkHolder([]string{"/proc/self/exe"})
	if err != nil {
		return err
	}
	linger, err := time.ParseDuration(cmp.Or(os.Getenv(lingerVariable), "0s"))
	if err != nil {
		return err
	}
	a, err := uprobe.NewAttacher(uprobe.Options{LinkHolder: linkHolder.Outliving(linger)})
	if err != nil {
		return err
	}
	sites := many(first)
	if a.Mode() == uprobe.Perf { // 0.1 s each to take off
		sites = sites[:fewSites]
	}
	for fmt.Println(linkHolder.PID()); ; {
		fmt.Println("attach")
		at, err := a.Attach(file, uint32(pid), sites)
		if err != nil {
			return err
		}
		fmt.Println("close")
		if linger > 0 {
			select {}
		}
		if err := at.Close(); err != nil {
			return err
		}
	}
}

// changed counts the bytes of the library's text in memory that are not those of the file.
func (v *victim) changed() int {
	v.t.Helper()
	file, err := elf.Open(v.lib)
	must.NoError(v.t, err)
	defer file.Close()
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", v.pid()))
	must.NoError(v.t, err)
	defer memory.Close()
	text := file.Section(".text")
	stored, err := text.Data()
	must.NoError(v.t, err)
	mapped := make([]byte, len(stored))
	if _, err := memory.ReadAt(mapped, v.do("addr").n+int64(text.Addr)-int64(v.tick)); err != nil {
		v.t.Fatal(err)
	}
	changed := 0
	for i := range stored {
		if stored[i] != mapped[i] {
			changed++
		}
	}
	return changed
}

// kill starts a process that attaches and detaches for ever, kills it while it does one of the two, and returns its
// link holder's process id.
func (v *victim) kill(t *testing.T, dice *rand.Rand) (linkHolder int) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", attachArgument, fmt.Sprint(v.pid()), v.lib,
		fmt.Sprint(v.function("b_many").Offset))
	c := child.Start(t, cmd)
	for range 2 + dice.IntN(4) { // that many words, the first of which is the link holder
		if word := c.Line(); linkHolder == 0 {
			linkHolder, _ = strconv.Atoi(word)
		}
	}
	time.Sleep(time.Duration(dice.IntN(4000)) * time.Microsecond)
	c.Kill()
	return linkHolder
}

// A process that is killed while it attaches or detaches leaves nothing in the target, and no link holder. (Without a
// linkHolder it left some of the 600 breakpoints 23 times in 100.)
func TestKilledWhileItAttaches(t *testing.T) {
	needRoot(t)
	v, dice := startVictim(t, buildVictim(t)), rand.New(rand.NewPCG(5, 5))
	kills := 100
	if mode, err := uprobe.Detect(); err != nil || mode == uprobe.Perf {
		kills = fewKills
	}
	for range kills {
		linkHolder := v.kill(t, dice)
		must.Become(t, "the link holder to end", func() bool {
			name, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", linkHolder)) // empty of one that nobody waits for
			return err != nil || len(name) == 0
		})
		if n := v.changed(); n > 0 {
			t.Fatalf("%d bytes of the text are changed", n)
		}
	}
	v.do("tick 10")
}

// Probes on which somebody relies stay for a while where their process is killed, and go then.
func TestProbesThatOutliveTheirProcess(t *testing.T) {
	needRoot(t)
	v := startVictim(t, buildVictim(t))
	const linger = 3 * time.Second
	cmd := exec.Command("/proc/self/exe", attachArgument, fmt.Sprint(v.pid()), v.lib,
		fmt.Sprint(v.function("b_many").Offset))
	cmd.Env = append(os.Environ(), lingerVariable+"="+linger.String())
	c := child.Start(t, cmd)
	for c.Line() != "close" {
	}
	killed := time.Now()
	c.Kill()
	switch n := v.changed(); {
	case time.Since(killed) > linger/2:
		t.Skip("this machine is too slow to look in time")
	case n == 0:
		t.Error("the probes went with their process")
	}
	must.Become(t, "the probes to go", func() bool { return v.changed() == 0 })
	if stayed := time.Since(killed); stayed < linger {
		t.Errorf("they stayed for %v, want %v", stayed, linger)
	}
	v.do("tick 10")
}
