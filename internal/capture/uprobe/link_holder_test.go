package uprobe_test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

func TestMain(m *testing.M) {
	var err error
	switch {
	case len(os.Args) > 1 && os.Args[1] == uprobe.LinkHolderArgument:
		err = uprobe.RunLinkHolder(os.Args[2:])
	case len(os.Args) > 1 && os.Args[1] == attachArgument:
		err = attachForEver(os.Args[2:])
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func startLinkHolder(t testing.TB) *uprobe.LinkHolder {
	t.Helper()
	k, err := uprobe.StartLinkHolder([]string{"/proc/self/exe"})
	must.NoError(t, err)
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
		<-k.Gone()
	})
	return k
}

// Whoever ends all processes of a service, or of a terminal, does not end the link holder before its time.
func TestLinkHolderIgnoresSignals(t *testing.T) {
	needRoot(t)
	v, k, r := startVictim(t, buildVictim(t)), startLinkHolder(t), newRings(t, 1<<20)
	a, err := uprobe.NewAttacher(uprobe.Options{LinkHolder: k, Maps: r.maps})
	must.NoError(t, err)
	defer a.Close()
	at := attach(t, a, v, want{name: "v_tick"}) // from now on it has begun
	for _, s := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT} {
		must.NoError(t, unix.Kill(k.PID(), s))
	}
	v.do("tick 3")
	if err := at.Close(); err != nil || k.Err() != nil {
		t.Error(err, k.Err())
	}
	if n := len(r.events()); n != 3 {
		t.Errorf("%d events, want 3", n)
	}
	if group, err := unix.Getpgid(k.PID()); err != nil || group != k.PID() {
		t.Errorf("its group is %d (%v), want one of its own, %d", group, err, k.PID())
	}
}

// Where the link holder is killed all probes go, and that is said; nothing waits for it.
func TestLinkHolderDies(t *testing.T) {
	dir := buildVictim(t)
	eachMode(t, func(t *testing.T, mode uprobe.Mode) {
		v, k, r := startVictim(t, dir), startLinkHolder(t), newRings(t, 1<<20)
		a, err := uprobe.NewAttacher(uprobe.Options{LinkHolder: k, Mode: mode, Maps: r.maps})
		must.NoError(t, err)
		defer a.Close()
		file, sites := v.sites(want{name: "v_tick"}, want{name: "v_wait", timed: true})
		at, err := a.Attach(file, v.pid(), sites)
		must.NoError(t, err)
		if v.changed() == 0 || k.Err() != nil {
			t.Fatal("nothing is probed: ", k.Err())
		}
		must.NoError(t, unix.Kill(k.PID(), unix.SIGKILL))
		<-k.Gone()
		if n := v.changed(); n != 0 {
			t.Errorf("%d bytes of the text are changed", n)
		}
		if err := k.Err(); !errors.Is(err, uprobe.ErrLinkHolderGone) {
			t.Errorf("it is gone: %v", err)
		}
		if err := at.Close(); !errors.Is(err, uprobe.ErrLinkHolderGone) {
			t.Errorf("to close what is gone: %v", err)
		}
		if _, err := a.Attach(file, v.pid(), sites); !errors.Is(err, uprobe.ErrLinkHolderGone) {
			t.Errorf("to attach: %v", err)
		}
	})
}

// Where the link holder is killed, that shows before the kernel has taken off its links, which takes long with Perf.
func TestLinkHolderIsDying(t *testing.T) {
	needRoot(t)
	file, err := os.CreateTemp(t.TempDir(), "")
	must.NoError(t, err)
	defer file.Close()
	const many = 40
	must.NoError(t, file.Truncate(many)) // nobody maps it
	sites := make([]uprobe.Site, many)
	for i := range sites {
		sites[i].Offset = uint64(i)
	}
	k := startLinkHolder(t)
	a, err := uprobe.NewAttacher(uprobe.Options{LinkHolder: k, Mode: uprobe.Perf, Maps: newRings(t, 1<<16).maps})
	must.NoError(t, err)
	defer a.Close()
	at, err := a.Attach(file, uint32(os.Getpid()), sites)
	must.NoError(t, err)
	must.NoError(t, unix.Kill(k.PID(), unix.SIGKILL))
	<-k.Dying()
	left := 0
	for _, id := range at.LinkIDs() {
		if l, err := link.NewFromID(link.ID(id)); err == nil {
			left++
			l.Close()
		}
	}
	if left < many/2 {
		t.Errorf("%d of %d links were left when it showed", left, many)
	}
	<-k.Gone()
}

// What a joined link holder holds goes when the connection does, without a word.
func TestLinkHolderIsShared(t *testing.T) {
	needRoot(t)
	v, k, r := startVictim(t, buildVictim(t)), startLinkHolder(t), newRings(t, 1<<20)
	socket, err := k.Share()
	must.NoError(t, err)
	fd, err := unix.FcntlInt(socket.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	must.NoError(t, err)
	socket.Close()
	joined, err := uprobe.JoinLinkHolder(fd)
	must.NoError(t, err)
	a, err := uprobe.NewAttacher(uprobe.Options{LinkHolder: joined, Maps: r.maps})
	must.NoError(t, err)
	defer a.Close()
	at := attach(t, a, v, want{name: "v_tick"})
	if err := errors.Join(joined.Close(), k.Close()); err != nil { // an attachment stands by itself
		t.Fatal(err)
	}
	v.do("tick 5")
	if err := at.Close(); err != nil {
		t.Error(err)
	}
	if n := len(r.events()); n != 5 {
		t.Errorf("%d events, want 5", n)
	}
	<-k.Gone()
}

// More sites than one packet holds are several links.
func TestLinkHolderOfManySites(t *testing.T) {
	needRoot(t)
	file, err := os.CreateTemp(t.TempDir(), "")
	must.NoError(t, err)
	defer file.Close()
	const many = 5000
	if err := file.Truncate(many); err != nil { // nobody maps it
		t.Fatal(err)
	}
	sites := make([]uprobe.Site, many)
	for i := range sites {
		sites[i].Offset = uint64(i)
	}
	a, err := uprobe.NewAttacher(uprobe.Options{LinkHolder: startLinkHolder(t), Maps: newRings(t, 1<<16).maps})
	must.NoError(t, err)
	defer a.Close()
	if a.Mode() == uprobe.Perf {
		t.Skip("one link a site in any case")
	}
	at, err := a.Attach(file, uint32(os.Getpid()), sites)
	must.NoError(t, err)
	if links, failed := at.LinkIDs(), at.Failed(); len(links) < 2 || len(links) > 8 || len(failed) > 0 {
		t.Errorf("%d links, %d sites failed", len(links), len(failed))
	}
	if err := at.Close(); err != nil {
		t.Error(err)
	}
}

// TestLinkHolderThreads: links of many processes that end at a time take no thread each, which would stay for ever.
func TestLinkHolderThreads(t *testing.T) {
	needRoot(t)
	file, err := os.CreateTemp(t.TempDir(), "")
	must.NoError(t, err)
	defer file.Close()
	const many = 2000
	if err := file.Truncate(many); err != nil { // nobody maps it
		t.Fatal(err)
	}
	sites := make([]uprobe.Site, many)
	for i := range sites {
		sites[i].Offset, sites[i].Timed = uint64(i), i%2 == 0
	}
	k := startLinkHolder(t)
	a, err := uprobe.NewAttacher(uprobe.Options{LinkHolder: k, Maps: newRings(t, 1<<16).maps})
	must.NoError(t, err)
	defer a.Close()
	if a.Mode() == uprobe.Perf {
		t.Skip("the kernel closes its links one by one")
	}
	var held []*uprobe.Attachment
	links := 0
	for range 40 {
		at, err := a.Attach(file, uint32(os.Getpid()), sites)
		must.NoError(t, err)
		held, links = append(held, at), links+len(at.LinkIDs())
	}
	var closing errgroup.Group
	for _, at := range held {
		closing.Go(at.Close)
	}
	if err := closing.Wait(); err != nil {
		t.Error(err)
	}
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", k.PID()))
	must.NoError(t, err)
	if most := 30; links < 2*most || len(threads) > most { // 16 of them close
		t.Errorf("%d threads after %d links were closed at a time, want %d at most", len(threads), links, most)
	}
	t.Logf("%d links, %d threads", links, len(threads))
}
