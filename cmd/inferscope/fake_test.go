package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/recording/loss"
	"github.com/inferscope/inferscope/internal/testkit/calltest"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/recordtest"
)

// fakeDaemon is a daemon that watches process recordtest.PID.
type fakeDaemon struct {
	targets []api.Target
	rec     *recording.Recording
	began   chan struct{} // closed when a recording is asked for, if not nil
	stuck   bool          // recordings wait until whoever asked for them is gone

	continuous atomic.Int64 // stretches of GPU activity that were asked for

	attaching int // how often it says that it is attaching to its targets

	mu     sync.Mutex
	asked  int // recordings so far
	last   time.Duration
	window bool // the last one was about a time from then on
}

func newFakeDaemon() *fakeDaemon {
	b := calltest.New()
	b.Launch("cuLaunchKernel", 1000, 1, 0, [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, 0)
	b.Do("cuCtxSynchronize", 5000, 1_000_000)
	rec := b.Recording()
	return &fakeDaemon{rec: rec, targets: []api.Target{{
		PID: recordtest.PID, UID: 1000, Comm: "python", Cmdline: "python infer.py",
		State: api.Watching, Watched: 12.5, Processes: rec.Meta.Processes,
	}}}
}

func (d *fakeDaemon) Status() api.Status {
	d.mu.Lock()
	targets := slices.Clone(d.targets)
	if d.attaching > 0 {
		d.attaching--
		for i := range targets {
			targets[i].State = api.Attaching
		}
	}
	d.mu.Unlock()
	return api.Status{
		Version: "1.2.3", PID: 77, Uptime: 100, Targets: targets,
		Sources: []recording.Source{
			{Name: "cuda", State: "running", Detail: strings.Repeat("probes are attached by session, ", 10) + "and stay"},
			{Name: "gpu sensors", State: "unavailable", Detail: "nvidia-smi is not installed here"},
		},
		Agents: []recording.AgentStatus{{
			Agent: recording.Agent{
				PID:     recordtest.PID,
				State:   "refused",
				Detail:  "another profiler\x1b[31m holds CUPTI" + strings.Repeat(", and this text is long", 10) + ", to its end",
				Stopped: 400_000,
			},
			Kernels: 1234, Windows: 5,
		}},
		Libraries: []recording.Library{
			{
				PID:    recordtest.PID,
				Path:   "/lib/libcuda.so.1",
				Kind:   "driver",
				Found:  10,
				Points: 9,
				Cheap:  8,
				Mode:   "multi",
			},
		},
		Sensors: []recording.Sensor{
			{
				GPU: 0, Name: "NVIDIA H200", Power: 540_500, Temperature: 61, SMClock: 1755, Reasons: 0x44,
				Utilization: 98, MemoryUsed: 5e9, MemoryTotal: 80e9,
				Links: recording.PCIeLink, PCIeRx: 12.3e9, PCIeTx: 40e6,
			},
			{GPU: 1, Name: "NVIDIA\x1b[31m H200", MIG: true, SMClock: 345, MemoryTotal: 80e9},
		},
		Xids:     []recording.XidCount{{GPU: 1, Bus: "0000:66:00", Code: 31, Count: 2}},
		Rings:    api.Rings{Bytes: 64 << 20, Events: 5000},
		Recorder: api.Recorder{Budget: 100_000_000, Used: 50_000_000, Keep: 60, Events: 780_000, Reach: 42},
		Self:     api.Self{CPU: 0.5, RSS: 45_000_000},
		Kept: &api.Kept{
			Recordings: 26, Kept: 12, Bytes: 34_000_000, Deleted: 3, Lost: 2, Killed: 1, Failed: 1,
			Error: "no room", Uploaded: 9, Pending: 12, UploadFailed: 4,
		},
		Losses: []loss.Loss{{Reason: loss.RingFull, Count: 7, CPU: loss.CPUOf(1), Where: "cpu 1"}},
	}
}

func (d *fakeDaemon) Lookup(pid uint32) (api.Owned, bool) {
	for _, t := range d.targets {
		if t.PID == pid {
			return api.Owned{UID: t.UID, Exited: t.State == api.Exited}, true
		}
	}
	return api.Owned{}, false
}

func (d *fakeDaemon) Owns(uint32) bool    { return true }
func (d *fakeDaemon) Keep() time.Duration { return time.Minute }
func (d *fakeDaemon) Now() uint64         { return calltest.Start }

func (d *fakeDaemon) Record(
	ctx context.Context,
	_ api.Asker,
	_ uint32,
	last time.Duration,
	from uint64,
) (api.Recording, error) {
	d.mu.Lock()
	d.asked++
	d.last, d.window = last, from > 0
	d.mu.Unlock()
	if d.began != nil {
		close(d.began)
	}
	if d.stuck {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return fakeRecording{d.rec}, nil
}

// Continuous notes that it was asked for.
func (d *fakeDaemon) Continuous(context.Context, uint32) (func(), error) {
	d.continuous.Add(1)
	return func() {}, nil
}

func (*fakeDaemon) Steady() (end func()) { return func() {} }

var errUnsupported = clierror.New(clierror.Unsupported, "use a real one", errors.New("a fake daemon cannot do that"))

func (*fakeDaemon) Watch(context.Context, api.WatchRequest) error { return errUnsupported }

func (*fakeDaemon) Release(context.Context, api.WatchRequest) error { return errUnsupported }

func (*fakeDaemon) Save(context.Context, uint32, string) ([]string, error) {
	return nil, errUnsupported
}

type fakeRecording struct{ rec *recording.Recording }

func (r fakeRecording) Meta() recording.Meta { return r.rec.Meta }
func (r fakeRecording) Release()             {}
func (r fakeRecording) Events() iter.Seq[[]event.Event] {
	return func(yield func([]event.Event) bool) { yield(r.rec.Events) }
}

// serve answers for d on a socket of its own.
func serve(t *testing.T, d *fakeDaemon) (socket string) {
	t.Helper()
	socket = socketPath(t)
	t.Cleanup(serveAt(t, d, socket))
	return socket
}

// serveAt answers for d on a socket until stop is called.
func serveAt(t *testing.T, d *fakeDaemon, socket string) (stop func()) {
	t.Helper()
	l, err := api.Listen(socket)
	must.NoError(t, err)
	server := api.NewServer(d, api.DefaultLimits(), nil)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = server.Shutdown(ctx)
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
		_ = l.Close()
	}
}

// socketPath returns a path short enough for a socket.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cli")
	must.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s.sock")
}

// refuse answers every request as a daemon does that does not let this user in.
func refuse(t *testing.T) (socket string) {
	t.Helper()
	return answer(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).
			Encode(api.ErrorBody{Message: "user 7 owns none of the processes", Hint: "ask as root (sudo)", Code: "permission"})
	})
}

// answer serves whatever h says on a socket of its own.
func answer(t *testing.T, h http.HandlerFunc) (socket string) {
	t.Helper()
	socket = socketPath(t)
	l, err := net.Listen("unix", socket) //nolint:noctx // closed below
	must.NoError(t, err)
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return socket
}

// result is how a command ended.
type result struct {
	code           clierror.Code
	stdout, stderr string
}

// inferscope runs the program in this process.
func inferscope(ctx context.Context, env []string, args ...string) result {
	var stdout, stderr bytes.Buffer
	code := run(ctx, process{args: args, environ: env, stdout: &stdout, stderr: &stderr})
	return result{clierror.Code(code), stdout.String(), stderr.String()}
}

// at runs it against a socket.
func at(t *testing.T, socket string, args ...string) result {
	t.Helper()
	return inferscope(t.Context(), []string{"INFERSCOPE_SOCKET=" + socket}, args...)
}
