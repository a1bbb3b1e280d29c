// Package push sends spans and metrics of the requests that targets serve to a receiver of OTLP over HTTP, while they
// go on.
package push

import (
	"context"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	metrics "go.opentelemetry.io/proto/otlp/metrics/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/zap"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/genai"
	"github.com/inferscope/inferscope/internal/recording/otlp"
)

// Intervals, and bounds of what waits to be sent.
const (
	spansEvery    = 5 * time.Second
	metricsEvery  = 15 * time.Second
	settling      = time.Second     // what an engine has sent of a request may come after the request's end
	behind        = 5 * time.Second // an engine ends a request so long before its server at most
	maxQueue      = 8192            // requests that have ended
	maxBatches    = 16              // of spans that could not be sent yet
	spansPerBatch = 512
)

// Options say where to send, and what.
type Options struct {
	Endpoint *Endpoint
	Share    float64 // of requests without a traceparent that get a span, 0 to 1
	Legacy   bool    // as otlp.Server has it
}

// Watched is what a daemon knows beside the requests.
type Watched struct {
	Clock   func() uint64 // on which requests have their times, ns
	Targets func() []api.Target
	Engines func(from, to uint64) []recording.EngineRequest // that engines worked on then
}

// Pusher sends what has ended.
type Pusher struct {
	sender  *sender
	options Options
	watched Watched
	log     *zap.Logger
	meter   *otlp.Meter

	ended chan struct{} // closed by Close
	done  chan struct{} // closed when Serve has returned
	once  sync.Once

	mu    sync.Mutex
	queue []recording.Request
	left  uint64 // requests that found no room in the queue, since that was said

	sent, dropped atomic.Uint64 // spans

	batches []batch   // the oldest first
	metered time.Time // when metrics were sent last
}

// batch is the body of a request with spans.
type batch struct {
	body  []byte
	spans int
}

// New makes a Pusher; it sends from Serve on.
func New(o Options, w Watched, log *zap.Logger) *Pusher {
	return &Pusher{
		sender: newSender(
			o.Endpoint,
		), options: o, watched: w, log: log, meter: otlp.NewMeter(time.Now().UnixNano()),
		ended: make(chan struct{}), done: make(chan struct{}), metered: time.Now(),
	}
}

// Sent returns how many spans the receiver has taken. It may be called from any goroutine.
func (p *Pusher) Sent() uint64 { return p.sent.Load() }

// Lost returns how many spans were refused, or found no room while the receiver failed. It may be called from any
// goroutine.
func (p *Pusher) Lost() uint64 { return p.dropped.Load() }

// Request takes a request that has ended. It is quick.
func (p *Pusher) Request(r *recording.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) >= maxQueue {
		p.left++
		p.dropped.Add(1) // perhaps it would not have been sampled
		return
	}
	p.queue = append(p.queue, *r)
}

// Serve sends until Close.
func (p *Pusher) Serve() error {
	defer close(p.done)
	p.log.Info("spans and metrics of requests are sent", zap.Stringer("to", p.sender.endpoint))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-p.ended
		cancel() // a receiver that does not answer keeps nobody
	}()
	tick := time.NewTicker(spansEvery)
	defer tick.Stop()
	for {
		select {
		case <-p.ended:
			return nil
		case <-tick.C:
			p.pass(ctx, false)
		}
	}
}

// Close sends what is left, as long as ctx lets it, and ends Serve.
func (p *Pusher) Close(ctx context.Context) error {
	p.once.Do(func() {
		close(p.ended)
		<-p.done
		p.pass(ctx, true)
		for _, b := range p.batches {
			p.dropped.Add(uint64(b.spans))
		}
		if n := p.Lost(); n > 0 {
			p.log.Warn("not all spans of requests were sent", zap.Stringer("to", p.sender.endpoint),
				zap.Uint64("sent", p.Sent()), zap.Uint64("lost", n))
		}
	})
	return nil
}

// pass sends what has come.
func (p *Pusher) pass(ctx context.Context, last bool) {
	requests := p.take(last)
	due := last || time.Since(p.metered) >= metricsEvery
	if len(requests) > 0 || due {
		p.describe(requests, p.watched.Targets())
	}
	for len(p.batches) > 0 {
		b := p.batches[0]
		again, err := p.sender.send(ctx, "traces", b.body)
		p.report("traces", err)
		if again {
			break
		}
		if err != nil {
			p.dropped.Add(uint64(b.spans))
		} else {
			p.sent.Add(uint64(b.spans))
		}
		p.batches = slices.Delete(p.batches, 0, 1)
	}
	if !due {
		return
	}
	p.metered = time.Now()
	if all := p.meter.Metrics(p.metered.UnixNano()); len(all) > 0 {
		body, err := encode(&metrics.MetricsData{ResourceMetrics: all})
		if err == nil {
			_, err = p.sender.send(ctx, "metrics", body) // the next one has all that this one has
		}
		p.report("metrics", err)
	}
}

// take returns the requests that ended long enough ago; all: that ended.
func (p *Pusher) take(all bool) []recording.Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.watched.Clock()
	until := now - min(now, uint64(settling))
	n := len(p.queue)
	if !all {
		n = 0
		for n < len(p.queue) && p.queue[n].End <= until {
			n++
		}
	}
	out := slices.Clone(p.queue[:n])
	p.queue = slices.Delete(p.queue, 0, n)
	if p.left > 0 {
		p.log.Warn("requests ended too fast for all of them to be sent", zap.Uint64("left_out", p.left))
		p.left = 0
	}
	return out
}

// describe adds requests to the metrics, and makes batches of the spans of those that are sampled.
func (p *Pusher) describe(requests []recording.Request, targets []api.Target) {
	var engines []recording.EngineRequest
	if len(requests) > 0 {
		from, to := requests[0].End, uint64(0)
		for i := range requests {
			from, to = min(from, requests[i].End), max(to, requests[i].End)
		}
		engines = p.watched.Engines(from-min(from, uint64(behind)), to+uint64(settling))
	}
	byID := recording.ByID(engines)
	offset := time.Now().UnixNano() - int64(p.watched.Clock())
	servers := serversOf(targets, len(engines) > 0, p.options.Legacy)
	p.meter.Keep(func(pid uint32) bool { _, there := servers[pid]; return there })
	spans := map[uint32][]otlp.Request{}
	for i := range requests {
		r := otlp.Request{Request: &requests[i]}
		if r.ID != "" {
			r.Engine = byID[r.ID]
		}
		s, known := servers[r.PID]
		if !known {
			continue // its target was withdrawn
		}
		p.meter.Add(&s, &r)
		if genai.Ended(r.Request) && otlp.Sampled(r.Request, p.options.Share) {
			spans[r.PID] = append(spans[r.PID], r)
		}
	}
	for pid, list := range spans {
		s := servers[pid]
		for part := range slices.Chunk(list, spansPerBatch) {
			all := otlp.Spans(&s, part, offset)
			body, err := encode(&trace.TracesData{ResourceSpans: []*trace.ResourceSpans{all}})
			if err != nil {
				p.report("traces", err)
				continue
			}
			p.keep(batch{body, len(part)})
		}
	}
}

// keep puts a batch behind the others; where there are too many, the oldest makes room.
func (p *Pusher) keep(b batch) {
	if len(p.batches) >= maxBatches {
		p.dropped.Add(uint64(p.batches[0].spans))
		p.batches = slices.Delete(p.batches, 0, 1)
	}
	p.batches = append(p.batches, b)
}

// report reports when sending a signal begins to fail, and when it works again.
func (p *Pusher) report(signal string, err error) {
	if !p.sender.changed(signal, err) {
		return
	}
	if err == nil {
		p.log.Info(signal+" of requests are sent again", zap.Stringer("to", p.sender.endpoint),
			zap.Uint64("spans_lost", p.Lost()))
		return
	}
	p.log.Warn(signal+" of requests are not sent", zap.Stringer("to", p.sender.endpoint), zap.Error(err))
}

// serversOf returns the processes of targets. engine says whether messages of an engine were read.
func serversOf(targets []api.Target, engine, legacy bool) map[uint32]otlp.Server {
	host, _ := os.Hostname() // without it there is no such attribute
	out := map[uint32]otlp.Server{}
	for i := range targets {
		t := &targets[i]
		more := map[string]string{
			"host.name": host, "host.arch": runtime.GOARCH,
			"container.id": t.Container, "container.image.name": t.Image,
			"k8s.namespace.name": t.Namespace, "k8s.pod.name": t.Pod, "k8s.pod.uid": t.PodUID,
			"k8s.container.name": t.ContainerName,
		}
		root := recording.Process{PID: t.PID, Comm: t.Comm, Cmdline: t.Cmdline}
		for j := range t.Processes {
			q := &t.Processes[j]
			s := otlp.NewServer(q, &root, engine, more)
			s.Legacy = legacy
			out[q.PID] = s
		}
	}
	return out
}
