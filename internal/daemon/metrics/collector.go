package metrics

import (
	"runtime"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/version"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/loss"
)

// collector reads everything at the moment of a scrape: between scrapes metrics
// cost what Tally.Add costs.
type collector struct {
	tally  *Tally
	status func() api.Status
	desc   descriptions
}

// descriptions are the metrics, in the order in which they are documented.
type descriptions struct {
	calls, callSeconds, copyBytes, syncSeconds *prometheus.Desc
	launches, observed                         *prometheus.Desc
	gpuSeconds, idleSeconds, hangs             *prometheus.Desc
	discovered                                 *prometheus.Desc
	recordings, recordingBytes, uploads        *prometheus.Desc
	pending                                    *prometheus.Desc
	losses, targetLosses                       *prometheus.Desc
	recorderBytes, recorderEvents, reach       *prometheus.Desc
	ringBytes, ringEvents                      *prometheus.Desc
	targetUp, buildInfo                        *prometheus.Desc
	selfCPU, selfMemory                        *prometheus.Desc
	gpuKernels, gpuWindows, gpuDropped, agent  *prometheus.Desc
	held, heldSection                          *prometheus.Desc
	overhead, overheadBound, budget, level     *prometheus.Desc
	inProgress                                 *prometheus.Desc
	sensors                                    sensorDescriptions
}

func describe() descriptions { //nolint:funlen // a table
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("inferscope_"+name, help, labels, nil)
	}
	return descriptions{
		calls: d(
			"cuda_calls_total",
			"CUDA API calls seen. A runtime call and the driver call inside it are two. Launches are seen in windows only, unless GPU activity is recorded all the time: see inferscope_cuda_launches_total.",
			"function",
			"library",
			"group",
			"pid",
		),
		callSeconds: d("cuda_call_seconds_total",
			"Time that threads spent in CUDA API calls, of the functions whose duration is recorded.",
			"function", "library", "group", "pid"),
		launches: d(
			"cuda_launches_total",
			"Launches of kernels and graphs that were seen, each once. Those of graphs are seen all the time. Those of kernels are seen in windows only, unless GPU activity is recorded all the time (--gpu continuous): launches a second are rate(inferscope_cuda_launches_total) / rate(inferscope_gpu_observed_seconds_total) then.",
			"kind",
			"pid",
		),
		observed: d(
			"gpu_observed_seconds_total",
			"For how long launches and GPU activity of a process were recorded by an agent: the length of all windows that have ended.",
			"pid",
		),
		gpuSeconds: d(
			"gpu_seconds_total",
			"Time of GPUs that was analyzed, where recordings are kept: state busy, a GPU ran something, and idle. It is time in windows only, unless GPU activity is recorded all the time: use ratios.",
			"state",
			"pid",
		),
		idleSeconds: d(
			"gpu_idle_seconds_total",
			"Time of inferscope_gpu_seconds_total{state=\"idle\"}, by cause; inferscope explain CAUSE describes one.",
			"cause",
			"pid",
		),
		hangs: d(
			"collective_hangs_total",
			"Collective operations of NCCL or RCCL that ranks of a target waited in for 3 s or more and another one had not come to, where recordings are kept; inferscope report says which one and where it is.",
			"pid",
		),
		discovered: d(
			"discovered_total",
			"Programs that use a GPU, by what became of them: watched, refused by a rule, skipped because they had ended, failed.",
			"result",
		),
		recordings: d(
			"recordings_total",
			"Recordings on the disk, by what became of them: written, deleted (to make room or for their age, before they were in an object store), lost (nothing is left of them), failed (stretches that could not be fetched or written), killed (times that the process ended and up to 10 s of each target are missing), flight (saved by a trigger), flight_omitted (over the limit for a day).",
			"result",
		),
		recordingBytes: d("recordings_bytes", "What recordings take on the disk."),
		uploads: d("uploads_total",
			"Uploads of recordings, by result: uploaded, failed (attempts; what failed is tried again).",
			"result"),
		pending: d("uploads_pending", "Recordings that the object store does not have yet."),
		copyBytes: d("cuda_copy_bytes_total",
			"Bytes that copy calls asked to move. A runtime copy and the driver copy inside it are one.",
			"direction", "pid"),
		syncSeconds: d(
			"cuda_sync_seconds_total",
			"Time that threads spent in CUDA calls that wait for the device; threads that wait at once add up.",
			"pid",
		),
		losses: d("losses_total",
			"What was lost or is in doubt, by reason; see the reports for what each means.", "reason"),
		targetLosses: d("target_losses_total",
			"What was lost or is in doubt of one target's processes, or because of them, by reason.",
			"reason", "pid"),
		recorderBytes:  d("recorder_bytes", "Memory that the recorder holds."),
		recorderEvents: d("recorder_events", "Events that the recorder holds."),
		reach:          d("recorder_reach_seconds", "How far back the recorder is complete."),
		ringBytes:      d("ring_bytes", "Kernel memory of the ring buffers."),
		ringEvents:     d("ring_events_total", "Events taken out of the ring buffers."),
		targetUp:       d("target_up", "1 while the target or one of its children runs, 0 afterwards.", "pid", "comm"),
		gpuKernels: d("gpu_kernels_total",
			"Kernels that agents saw: in windows, unless GPU activity is recorded all the time.", "pid"),
		gpuWindows: d(
			"gpu_windows_total",
			"Windows of GPU records that ended, by how: finalized; disabled, which leaves CUDA graphs slower; kept, which stays subscribed to CUPTI.",
			"end",
			"pid",
		),
		gpuDropped: d("gpu_records_dropped_total",
			"GPU records that were lost, by CUPTI or in the agent's ring.", "pid"),
		agent: d("gpu_agent",
			"1 for the state in which the agent of a process is: waiting, running, dormant, refused, gone.",
			"state", "pid"),
		held: d("gpu_held_seconds",
			"Time that a thread was kept out of the driver, while an agent entered, flushed or left CUPTI.",
			"pid"),
		heldSection: d("gpu_held_section_seconds",
			"Time of a flush or removal of CUPTI, by part (drain, cpu_wait, work).",
			"part", "pid"),
		overhead: d(
			"target_overhead_ratio",
			"Share of the target's time that a source takes, measured or predicted; source total: all together.",
			"source",
			"basis",
			"pid",
		),
		overheadBound: d("target_overhead_bound_ratio",
			"Bounds of inferscope_target_overhead_ratio: 95% interval if measured, a factor of 1.5 if predicted.",
			"source", "bound", "pid"),
		budget: d("target_overhead_budget_ratio",
			"Share of the target's time that watching it may take (--overhead-budget).", "pid"),
		level: d(
			"source_level",
			"Index of the level at which a source records; 0 is everything, the label says what it is called.",
			"source",
			"level",
		),
		selfCPU: d(
			"self_cpu_seconds_total",
			"CPU time of the daemon and of the processes that work for it; process_cpu_seconds_total leaves those out.",
		),
		selfMemory: d(
			"self_resident_bytes",
			"Resident memory of the daemon and of the processes that work for it, added up: pages that they share count in each.",
		),
		inProgress: d("requests_in_progress", "Requests that the target serves now.", "pid"),
		sensors:    describeSensors(),
		buildInfo:  d("build_info", "A constant 1 labelled with the build.", "version", "revision", "goversion"),
	}
}

// NewRegistry returns a registry of its own with the daemon's metrics: what tally
// counted, what status says, and the daemon's own CPU time and memory.
func NewRegistry(tally *Tally, status func() api.Status) (*prometheus.Registry, error) {
	r := prometheus.NewRegistry()
	if err := r.Register(&collector{tally: tally, status: status, desc: describe()}); err != nil {
		return nil, err
	}
	all := []prometheus.Collector{
		tally.iterations, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	}
	for _, c := range append(all, tally.served.collectors()...) {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Describe sends the descriptions of all metrics.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	d := c.desc
	for _, desc := range []*prometheus.Desc{
		d.launches, d.observed, d.gpuSeconds, d.idleSeconds, d.hangs,
		d.discovered, d.recordings, d.recordingBytes, d.uploads, d.pending,
		d.calls, d.callSeconds, d.copyBytes, d.syncSeconds, d.losses, d.targetLosses, d.recorderBytes, d.recorderEvents,
		d.reach, d.ringBytes, d.ringEvents, d.targetUp, d.buildInfo, d.selfCPU, d.selfMemory,
		d.gpuKernels, d.gpuWindows, d.gpuDropped, d.agent, d.held, d.heldSection,
		d.overhead, d.overheadBound, d.budget, d.level, d.inProgress,
	} {
		ch <- desc
	}
	d.sensors.describe(ch)
}

// Collect sends the present values.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	for _, t := range c.tally.totals() {
		c.collectTarget(ch, t)
	}
	for root, n := range c.tally.inProgress() {
		ch <- prometheus.MustNewConstMetric(c.desc.inProgress, prometheus.GaugeValue, float64(n), pidLabel(root))
	}
	s := c.status()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(c.desc.recorderBytes, float64(s.Recorder.Used))
	gauge(c.desc.recorderEvents, float64(s.Recorder.Events))
	gauge(c.desc.reach, s.Recorder.Reach)
	gauge(c.desc.ringBytes, float64(s.Rings.Bytes))
	counter(ch, c.desc.ringEvents, float64(s.Rings.Events))
	counter(ch, c.desc.selfCPU, s.Self.CPU)
	gauge(c.desc.selfMemory, float64(s.Self.RSS))
	for _, t := range s.Targets {
		up := 1.0
		if t.State == api.Exited {
			up = 0
		}
		gauge(c.desc.targetUp, up, pidLabel(t.PID), clean(t.Comm))
		c.collectTargetLosses(ch, &t)
	}
	for i := range s.Agents {
		c.collectAgent(ch, &s.Agents[i])
	}
	c.desc.sensors.collect(ch, s.Sensors, s.Xids)
	c.collectKept(ch, s.Discovery, s.Kept)
	c.collectOverhead(ch, s.Overhead)
	c.collectLosses(ch, s.Losses)
	v := version.Get()
	gauge(c.desc.buildInfo, 1, v.Version, v.Revision, runtime.Version())
}

func (c *collector) collectTarget(ch chan<- prometheus.Metric, t targetTotals) {
	pid := pidLabel(t.pid)
	for _, f := range t.functions {
		counter(ch, c.desc.calls, float64(f.Calls), f.name, f.library, f.group, pid)
		if f.Timed > 0 {
			counter(ch, c.desc.callSeconds, seconds(f.Nanos), f.name, f.library, f.group, pid)
		}
	}
	for direction, n := range t.bytes {
		counter(ch, c.desc.copyBytes, float64(n), string(direction), pid)
	}
	counter(ch, c.desc.syncSeconds, seconds(t.syncNanos), pid)
	counter(ch, c.desc.launches, float64(t.kernels), "kernel", pid)
	counter(ch, c.desc.launches, float64(t.graphs), "graph", pid)
	// From the start, at 0: increase() does not count the first value.
	counter(ch, c.desc.hangs, float64(t.rolling.hangs), pid)
	if t.rolling.watched > 0 {
		counter(ch, c.desc.gpuSeconds, seconds(t.rolling.busy), "busy", pid)
		counter(ch, c.desc.gpuSeconds, seconds(t.rolling.watched-t.rolling.busy), "idle", pid)
		for cause, ns := range t.rolling.idle {
			counter(ch, c.desc.idleSeconds, seconds(ns), clean(cause), pid)
		}
	}
}

// collectKept sends what became of processes that use a GPU, and of recordings.
func (c *collector) collectKept(ch chan<- prometheus.Metric, d *api.Discovery, k *api.Kept) {
	if d != nil {
		for result, n := range map[string]uint64{"watched": d.Watched, "refused": d.Refused, "skipped": d.Skipped, "failed": d.Failed} {
			counter(ch, c.desc.discovered, float64(n), result)
		}
	}
	if k == nil {
		return
	}
	for result, n := range map[string]uint64{
		"written": k.Recordings, "deleted": k.Deleted, "lost": k.Lost, "failed": k.Failed, "killed": k.Killed,
		"flight": k.Flights, "flight_omitted": k.FlightsOmitted,
	} {
		counter(ch, c.desc.recordings, float64(n), result)
	}
	ch <- prometheus.MustNewConstMetric(c.desc.recordingBytes, prometheus.GaugeValue, float64(k.Bytes))
	counter(ch, c.desc.uploads, float64(k.Uploaded), "uploaded")
	counter(ch, c.desc.uploads, float64(k.UploadFailed), "failed")
	ch <- prometheus.MustNewConstMetric(c.desc.pending, prometheus.GaugeValue, float64(k.Pending))
}

func (c *collector) collectAgent(ch chan<- prometheus.Metric, a *recording.AgentStatus) {
	pid := pidLabel(a.PID)
	counter(ch, c.desc.observed, seconds(a.Observed), pid)
	counter(ch, c.desc.gpuKernels, float64(a.Kernels), pid)
	counter(ch, c.desc.gpuWindows, float64(a.Windows-min(a.Windows, a.Disabled+a.Kept)), "finalized", pid)
	counter(ch, c.desc.gpuWindows, float64(a.Disabled), "disabled", pid)
	counter(ch, c.desc.gpuWindows, float64(a.Kept), "kept", pid)
	counter(ch, c.desc.gpuDropped, float64(a.Dropped), pid)
	ch <- prometheus.MustNewConstMetric(c.desc.agent, prometheus.GaugeValue, 1, clean(a.State), pid)
	c.collectHeld(ch, a.Held, pid)
	c.collectSections(ch, a.Sections, pid)
}

func (c *collector) collectHeld(ch chan<- prometheus.Metric, h *recording.Held, pid string) {
	if h == nil {
		h = &recording.Held{}
	}
	heldHistogram(ch, c.desc.held, h.Threads, h.Sum, pid)
}

func (c *collector) collectSections(ch chan<- prometheus.Metric, s *recording.Sections, pid string) {
	if s == nil {
		return
	}
	for part, t := range map[string]recording.Times{"drain": s.Drain, "cpu_wait": s.CPUWait, "work": s.Work} {
		heldHistogram(ch, c.desc.heldSection, t.Counts, t.Sum, part, pid)
	}
}

// heldHistogram sends what took up to each of recording.HeldUpTo, and longer.
func heldHistogram(ch chan<- prometheus.Metric, d *prometheus.Desc, n [5]uint32, sum uint64, labels ...string) {
	count, upTo := uint64(0), map[float64]uint64{}
	for i, n := range n {
		if count += uint64(n); i < len(recording.HeldUpTo) {
			upTo[recording.HeldUpTo[i].Seconds()] = count
		}
	}
	ch <- prometheus.MustNewConstHistogram(d, count, seconds(sum), upTo, labels...)
}

// collectOverhead sends what watching costs each target. Levels hold for all of them.
func (c *collector) collectOverhead(ch chan<- prometheus.Metric, targets []recording.Overhead) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for i := range targets {
		o := &targets[i]
		pid := pidLabel(o.Target)
		gauge(c.desc.budget, o.Budget, pid)
		cost := func(source string, k recording.Cost) {
			if k.Basis != "" {
				gauge(c.desc.overhead, k.Share, source, k.Basis, pid)
				gauge(c.desc.overheadBound, k.Low, source, "low", pid)
				gauge(c.desc.overheadBound, k.High, source, "high", pid)
			}
		}
		cost("total", o.Total)
		for j := range o.Sources {
			cost(o.Sources[j].Name, o.Sources[j].Cost)
			if i == 0 {
				gauge(c.desc.level, float64(o.Sources[j].Index), o.Sources[j].Name, o.Sources[j].Level)
			}
		}
	}
}

// collectLosses names every known reason, so that an alert on one has a series before the first loss.
func (c *collector) collectLosses(ch chan<- prometheus.Metric, losses []loss.Loss) {
	sums := map[loss.Reason]uint64{}
	for _, k := range loss.Kinds() {
		sums[k.Reason] = 0
	}
	for _, l := range losses {
		sums[l.Reason] += l.Count
	}
	for reason, n := range sums {
		counter(ch, c.desc.losses, float64(n), string(reason))
	}
}

// collectTargetLosses has as many series as there are known reasons, at most.
func (c *collector) collectTargetLosses(ch chan<- prometheus.Metric, t *api.Target) {
	sums := map[loss.Reason]uint64{}
	for _, l := range t.Losses {
		sums[l.Reason] += l.Count
	}
	for reason, n := range sums {
		counter(ch, c.desc.targetLosses, float64(n), string(reason), pidLabel(t.PID))
	}
}

func counter(ch chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
}

// pidLabel writes a target's pid; events of a process that nobody knows have none.
func pidLabel(pid uint32) string {
	if pid == 0 {
		return "unknown"
	}
	return strconv.FormatUint(uint64(pid), 10)
}

func seconds(ns uint64) float64 { return float64(ns) / 1e9 }
