package daemon

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/capture/proc"
	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/daemon/metrics"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/testkit/must"
)

// served is a whole daemon, with fakes instead of a kernel.
type served struct {
	*world
	cfg   Config
	ended chan error
}

func serve(t *testing.T, ctx context.Context, opts Options) *served { //nolint:revive // t comes first in tests
	t.Helper()
	w := newWorld(t)
	p := process(10, 0, second)
	w.watcher.onAdd[10] = []proc.Process{p}
	opts.PIDs, opts.Keep = []int{10}, time.Minute
	s := &served{world: w, ended: make(chan error, 1), cfg: Config{
		Options: opts, Socket: filepath.Join(t.TempDir(), "s.sock"),
		Limits: api.DefaultLimits(), MetricsAddr: "127.0.0.1:0",
	}}
	tally := metrics.NewTally(w.source.Functions, metrics.DecodeCopies)
	w.parts.Counter = tally
	d, err := New(opts, w.parts)
	must.NoError(t, err)
	l, err := api.Listen(s.cfg.Socket)
	must.NoError(t, err)
	go func() { s.ended <- s.cfg.serve(ctx, d, tally, l, w.parts.Log) }()
	until(func() bool { return w.logs.FilterMessage("ready").Len() == 1 })
	return s
}

func (s *served) client(t *testing.T) *api.Client {
	t.Helper()
	c, err := api.Dial(s.cfg.Socket)
	must.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func TestWholeDaemonOverItsSocket(t *testing.T) {
	ctx, cancel := newContext()
	defer cancel()
	s := serve(t, ctx, Options{})
	until(func() bool { return s.logs.FilterMessageSnippet("nothing to probe yet").Len() == 1 })
	s.rings.put(call(10, 1001*second), call(10, 1002*second))
	s.now.Store(1003 * second)
	rec, err := s.client(t).Recording(ctx, 10, api.Window{Last: 30 * time.Second})
	if err != nil || len(rec.Events) != 2 {
		t.Fatalf("recording = %v, %v", rec, err)
	}
	st, err := s.client(t).Status(ctx)
	must.NoError(t, err)
	if st.Uptime != 3 || st.Rings.Events != 2 || st.Recorder.Events != 2 || st.Recorder.Reach != 3 ||
		st.Self.RSS == 0 ||
		st.Self.CPU == 0 {
		t.Errorf("status = %+v", st)
	}
	if got := s.scrape(t); !strings.Contains(
		got,
		`inferscope_cuda_calls_total{function="cuInit",group="init",library="driver",pid="10"} 2`,
	) {
		t.Errorf("metrics lack the calls:\n%s", got)
	}
	cancel()
	if err := <-s.ended; err != nil {
		t.Errorf("the end: %v", err)
	}
	if n := s.logs.FilterMessageSnippet("stopped: all probes are off").Len(); n != 1 {
		t.Errorf("the end is said %d times, want once", n)
	}
	if _, err := api.Dial(s.cfg.Socket); clierror.CodeOf(err) != clierror.NoDaemon {
		t.Errorf("afterwards: %v, want no daemon", err)
	}
}

func (s *served) scrape(t *testing.T) string {
	t.Helper()
	url := s.logs.FilterMessage("metrics are served").All()[0].ContextMap()["address"].(string)
	resp, err := http.Get(url)
	must.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must.NoError(t, err)
	return string(body)
}

func TestRequestInFlightIsAnsweredWhenTheDaemonStops(t *testing.T) {
	ctx, cancel := newContext()
	defer cancel()
	s := serve(t, ctx, Options{})
	type answer struct {
		events int
		err    error
	}
	got := make(chan answer)
	client := s.client(t)
	go func() {
		rec, err := client.Recording(context.Background(), 10, api.Window{For: 50 * time.Second})
		if err != nil {
			got <- answer{0, err}
			return
		}
		got <- answer{len(rec.Events), nil}
	}()
	until(func() bool { return s.logs.FilterMessageSnippet("waits for a recording of pid 10").Len() == 1 })
	s.now.Store(1005 * second)
	s.rings.put(call(10, 1004*second))
	cancel()
	if a := <-got; a.err != nil || a.events != 1 {
		t.Errorf("answered %+v, want what was recorded until the stop", a)
	}
	if err := <-s.ended; err != nil {
		t.Error(err)
	}
}

func TestDaemonWhoseMetricsPortIsTakenEndsCleanly(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	defer l.Close()
	w := newWorld(t)
	cfg := Config{
		Socket:      filepath.Join(t.TempDir(), "s.sock"),
		Limits:      api.DefaultLimits(),
		MetricsAddr: l.Addr().String(),
	}
	d, err := New(Options{PIDs: []int{10}}, w.parts)
	must.NoError(t, err)
	sock, err := api.Listen(cfg.Socket)
	must.NoError(t, err)
	defer sock.Close()
	err = cfg.serve(context.Background(), d, metrics.NewTally(w.source.Functions, metrics.DecodeCopies),
		sock, w.parts.Log)
	if err == nil || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("error = %v, want one that names the port", err)
	}
	if !w.source.closed || !w.rings.closed || !w.watcher.closed {
		t.Error("something is left open")
	}
}

func TestRunChecksTheKernelFirst(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	refused := clierror.New(clierror.Permission, "run as root", errors.New("CAP_BPF is missing"))
	socket := filepath.Join(t.TempDir(), "s.sock")
	err := Run(context.Background(), Config{Socket: socket, Check: func() error { return refused }},
		newWorld(t).parts.Log)
	if !errors.Is(err, refused) {
		t.Errorf("error = %v", err)
	}
	if _, err := api.Dial(socket); clierror.CodeOf(err) != clierror.NoDaemon {
		t.Errorf("a socket was made: %v", err)
	}
	if after := debug.SetMemoryLimit(-1); after != before {
		t.Errorf("the memory limit stays at %d", after)
	}
}

func TestRunFindsAnotherDaemonBeforeItCosts(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s.sock")
	l, err := api.Listen(socket)
	must.NoError(t, err)
	defer l.Close()
	err = Run(context.Background(), Config{Socket: socket, Check: func() error { return nil }}, newWorld(t).parts.Log)
	if clierror.CodeOf(err) != clierror.Busy {
		t.Errorf("error = %v, want busy", err)
	}
}

// A start that takes long does not keep the daemon from ending.
func TestAStopWhileStarting(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	never := make(chan struct{})
	defer close(never)
	done, err := runUnlessDone(ctx, func() error {
		cancel()
		<-never
		return nil
	})
	if err != nil || done {
		t.Errorf("%v, done: %v", err, done)
	}
	if done, err := runUnlessDone(t.Context(), func() error { return errors.ErrUnsupported }); !errors.Is(err,
		errors.ErrUnsupported) ||
		!done {
		t.Errorf("%v, done: %v", err, done)
	}
}

// A part that does not end does not keep the daemon from ending.
func TestAStopThatTakesTooLong(t *testing.T) {
	w := newWorld(t)
	d, err := New(Options{}, w.parts)
	must.NoError(t, err)
	never := make(chan struct{})
	defer close(never)
	err = d.within(time.Millisecond, func() error {
		<-never
		return nil
	})
	if err != nil || !d.incomplete || w.logs.FilterMessageSnippet("not everything is in order").Len() != 1 {
		t.Errorf("%v; it said %v", err, w.logs.All())
	}
	if err := d.within(time.Hour, func() error { return errors.ErrUnsupported }); !errors.Is(
		err,
		errors.ErrUnsupported,
	) {
		t.Errorf("what went wrong is lost: %v", err)
	}
}

// TestRecorderBytes: rings, stacks and recorder stay within what is given, as long as the recorder has half.
func TestRecorderBytes(t *testing.T) {
	for _, c := range []struct{ all, rings, want int64 }{
		{100_000_000, 18_000_000, 72_000_000},
		{100_000_000, 300_000_000, 50_000_000},
		{20_000_000, 8_000_000, 10_000_000},
		{1_000_000, 8_000_000, recording.MinBudget},
	} {
		if got := recorderBytes(c.all, c.rings); got != c.want {
			t.Errorf("of %d bytes with rings of %d the recorder gets %d, want %d", c.all, c.rings, got, c.want)
		}
	}
}
