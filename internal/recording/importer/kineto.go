package importer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// kineto reads one trace. Kineto (libkineto/src/output_json.cpp) writes an object with the rows in traceEvents; times
// are in µs, whole ones before PyTorch 2.3, from the epoch or from baseTimeNanoseconds.
type kineto struct {
	*builder
	base     int64 // ns since 1970 that are to be added to times
	owners   map[uint32]uint32
	only     uint32 // the process that has calls
	several  bool   // there are more
	labels   map[uint32]string
	comms    map[uint32]string
	device   []deviceRow
	rank     int    // -1: the trace does not say
	operated uint64 // rows that say what a thread was in
}

// row is one element of traceEvents. Fields that do not fit their type are errors; the rest is not read.
type row struct {
	Ph   string  `json:"ph"`
	Cat  string  `json:"cat"`
	Name string  `json:"name"`
	PID  number  `json:"pid"`
	TID  word    `json:"tid"`
	TS   micros  `json:"ts"`
	Dur  micros  `json:"dur"`
	Args rowArgs `json:"args"`
}

// rowArgs are the args that are read.
type rowArgs struct {
	Name        string     `json:"name"`
	Labels      string     `json:"labels"`
	Function    string     `json:"function"`
	Correlation number     `json:"correlation"`
	Device      number     `json:"device"`
	FromDevice  number     `json:"fromDevice"` // of copies between GPUs
	ToDevice    number     `json:"toDevice"`
	Context     number     `json:"context"`
	Stream      number     `json:"stream"`
	Bytes       number     `json:"bytes"`
	Value       number     `json:"value"`
	Process     number     `json:"process"`
	Async       number     `json:"async"`
	Grid        dimensions `json:"grid"`
	Block       dimensions `json:"block"`
	Registers   number     `json:"registers per thread"`
	Shared      number     `json:"shared memory"`
	Dynamic     number     `json:"dynamic shared memory"`
	Local       number     `json:"local memory per thread"`
	Graph       number     `json:"graph id"`
	Node        number     `json:"graph node id"`
	Sync        string     `json:"cuda_sync_kind"`
	Timed       *bool      `json:"timed"`
}

// deviceRow is one element of deviceProperties.
type deviceRow struct {
	ID     number `json:"id"`
	Name   string `json:"name"`
	Memory number `json:"totalGlobalMem"`
	Major  number `json:"computeMajor"`
	Minor  number `json:"computeMinor"`
	SMs    number `json:"numSms"`
	UUID   string `json:"uuid"`
}

func readKineto(r *limited, limits Limits) (part, error) {
	k := &kineto{
		builder: newBuilder(limits, "Kineto JSON"),
		rank:    -1,
		owners:  map[uint32]uint32{}, labels: map[uint32]string{}, comms: map[uint32]string{},
	}
	d := json.NewDecoder(r)
	r.used = d.InputOffset
	if err := k.document(d); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("it is cut off after %d rows: %w", len(k.events)+len(k.rows), io.ErrUnexpectedEOF)
		}
		return part{}, err
	}
	rec, err := k.done()
	return part{rec, k.rank}, err
}

// document reads the object, or the plain list of rows that Chrome's format allows too.
func (k *kineto) document(d *json.Decoder) error {
	t, err := d.Token()
	if err != nil {
		return err
	}
	switch t {
	case json.Delim('['):
		return k.list(d)
	case json.Delim('{'):
	default:
		return errors.New("it is JSON, but neither an object nor a list of rows")
	}
	found := false
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return err
		}
		if name == "traceEvents" {
			found = true
		}
		if err := k.member(d, name); err != nil {
			return fmt.Errorf("%v: %w", name, err)
		}
	}
	if _, err := d.Token(); err != nil {
		return err
	}
	if !found {
		return errors.New("it has no traceEvents: this is JSON, but no trace")
	}
	return nil
}

func (k *kineto) member(d *json.Decoder, name json.Token) error {
	switch name {
	case "traceEvents":
		if t, err := d.Token(); err != nil {
			return err
		} else if t != json.Delim('[') {
			return errors.New("it is no list")
		}
		return k.list(d)
	case "baseTimeNanoseconds":
		return d.Decode(&k.base)
	case "distributedInfo":
		return k.distributed(d)
	case "deviceProperties":
		return k.deviceRows(d)
	case "inferscope":
		return k.ownWindows(d)
	}
	return skipValue(d)
}

// distributed reads which rank of a program the trace is of.
func (k *kineto) distributed(d *json.Decoder) error {
	var info struct {
		Rank number `json:"rank"`
	}
	if err := d.Decode(&info); err != nil && !isRow(err) {
		return err
	}
	if info.Rank.ok && info.Rank.n < 1<<20 {
		k.rank = int(info.Rank.n)
	}
	return nil
}

// ownWindows reads when an exported recording had seen the GPU and launches.
func (k *kineto) ownWindows(d *json.Decoder) error {
	type window struct {
		PID  uint32 `json:"pid"`
		From uint64 `json:"from_ns"`
		To   uint64 `json:"to_ns"`
	}
	var own struct {
		Mode     string   `json:"gpu_mode"`
		Activity []window `json:"activity_windows"`
		Calls    []window `json:"call_windows"`
	}
	if err := d.Decode(&own); err != nil {
		if isRow(err) {
			return nil
		}
		return err
	}
	if own.Mode == "windows" {
		k.gpu.Mode = own.Mode
	}
	add := func(list []window, activity, calls bool) {
		for _, w := range list {
			k.recorded = append(k.recorded, recording.GPUWindow{
				PID: w.PID, From: w.From, To: w.To, Activity: activity, Calls: calls, End: "kept",
			})
		}
	}
	add(own.Activity, true, len(own.Calls) == 0)
	add(own.Calls, false, true)
	return nil
}

// maxDevices bounds the GPUs of a trace.
const maxDevices = 1024

func (k *kineto) deviceRows(d *json.Decoder) error {
	if t, err := d.Token(); err != nil {
		return err
	} else if t != json.Delim('[') {
		return errors.New("it is no list")
	}
	for d.More() {
		var r deviceRow
		if err := d.Decode(&r); err != nil {
			return err
		}
		if k.device = append(k.device, r); len(k.device) > maxDevices {
			return fmt.Errorf("it has more than %d devices, the limit", maxDevices)
		}
	}
	_, err := d.Token()
	return err
}

// maxNesting bounds how deep values are nested that are read over; the decoder keeps an entry for each level.
const maxNesting = 10_000

// skipValue reads over a value without keeping it.
func skipValue(d *json.Decoder) error {
	depth := 0
	for {
		t, err := d.Token()
		if err != nil {
			return err
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			if depth++; depth > maxNesting {
				return fmt.Errorf("it is nested deeper than %d levels", maxNesting)
			}
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth <= 0 {
			return nil
		}
	}
}

// list reads rows up to the end of the list.
func (k *kineto) list(d *json.Decoder) error {
	for n := 0; d.More(); n++ {
		var r row
		if err := d.Decode(&r); err != nil {
			if !isRow(err) {
				return fmt.Errorf("row %d, at byte %d: %w", n, d.InputOffset(), err)
			}
			k.skip("rows that cannot be read")
			continue
		}
		if err := k.take(&r); err != nil {
			return fmt.Errorf("row %d, at byte %d: %w", n, d.InputOffset(), err)
		}
	}
	_, err := d.Token()
	return err
}

// isRow reports whether an error is about what one row says: the JSON is whole, and the next row can be read.
func isRow(err error) bool {
	var wrong *json.UnmarshalTypeError
	return errors.As(err, &wrong) || errors.Is(err, errTime)
}

func (k *kineto) take(r *row) error {
	if r.Ph == "M" {
		return k.metadata(r)
	}
	if r.Ph != "X" {
		return nil // arrows, instants: rows have correlation ids
	}
	switch r.Cat {
	case "cuda_runtime", "cuda_driver", "Runtime":
		return k.call(r)
	case "kernel", "gpu_memcpy", "gpu_memset", "cuda_sync", "Kernel", "Memcpy", "Memset":
		return k.activity(r)
	case "user_annotation":
		return k.annotation(r)
	case "cpu_op", "Operator":
		if strings.HasPrefix(r.Name, "ProfilerStep#") {
			return k.annotation(r)
		}
		return k.inside(r, operatorFrame(r.Name))
	case "python_function":
		return k.inside(r, functionFrame(r.Name))
	}
	k.skip("rows of category " + shortened(r.Cat))
	return nil
}

// shortened bounds a text of the file that a person may see, and the number of different ones.
func shortened(s string) string {
	const most = 40
	if len(s) > most || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) {
		return "(other)"
	}
	return s
}

func (k *kineto) metadata(r *row) error {
	pid, tid := uint32(r.PID.n), uint32(r.TID.n)
	switch r.Name {
	case "process_name":
		k.comms[pid] = r.Args.Name
	case "process_labels":
		k.labels[pid] = r.Args.Labels
	case "thread_name":
		if r.PID.ok && r.TID.ok {
			k.threads[key(pid, tid)] = r.Args.Name
		}
	default:
		return nil
	}
	return k.name(r.Args.Name + r.Args.Labels)
}

// where reads the process and thread of a row of the CPU, and whether it has any.
func (k *kineto) where(r *row) (pid, tid uint32, ok bool) {
	if !r.PID.ok || !r.TID.ok || !r.TS.ok {
		k.skip("rows without a process, thread or time")
		return 0, 0, false
	}
	return uint32(r.PID.n), uint32(r.TID.n), true
}

func (k *kineto) call(r *row) error {
	pid, tid, ok := k.where(r)
	if !ok {
		return nil
	}
	library := "runtime"
	if r.Cat == "cuda_driver" {
		library = "driver"
	}
	name := r.Name
	if r.Args.Function != "" {
		name = r.Args.Function
	}
	fn, ok, err := k.function(name, library)
	if err != nil || !ok {
		return err
	}
	k.process(pid)
	// Kineto has no arguments: Fault says that those slots are not known.
	e := event.Event{
		TS:    r.TS.ns,
		Dur:   r.Dur.ns,
		PID:   pid,
		TID:   tid,
		Func:  fn,
		Kind:  event.Call,
		Flags: event.Timed | event.Fault,
	}
	if r.Args.Timed != nil && !*r.Args.Timed {
		e.Flags, e.Dur = event.Fault, 0
	}
	if id := r.Args.Correlation; id.ok {
		e.Flags |= event.Correlated
		e.Ret = int32(uint32(id.n))
		if e.TS < k.until {
			k.owner(uint32(id.n), pid)
		}
	}
	return k.worked(e)
}

// owner notes the process of a correlation id.
func (k *kineto) owner(id, pid uint32) {
	k.several = k.several || k.only != 0 && k.only != pid
	k.only = pid
	if k.several || len(k.owners) < k.limits.Events {
		k.owners[id] = pid
	}
}

// annotation reads a range.
func (k *kineto) annotation(r *row) error {
	pid, tid, ok := k.where(r)
	if !ok {
		return nil
	}
	name := stepName(r.Name)
	i, err := k.rangeName(name)
	if err == nil {
		err = k.inside(r, annotationFrame(name))
	}
	if err != nil {
		return err
	}
	k.process(pid)
	return k.add(
		event.Event{TS: r.TS.ns, Dur: r.Dur.ns, PID: pid, TID: tid, Kind: event.Range, Flags: event.Timed, Ret: i},
	)
}

// inside reads a row that says what a thread was in.
func (k *kineto) inside(r *row, f recording.Frame) error {
	pid, tid, ok := k.where(r)
	if !ok {
		return nil
	}
	k.operated++
	return k.addSpan(pid, tid, r.TS.ns, r.Dur.ns, f)
}

func (k *kineto) done() (*recording.Recording, error) {
	rows := k.rows // of GPUs: PID is 0, where the row does not name its process
	k.rows = nil
	for i := range rows {
		if err := k.settle(&rows[i]); err != nil {
			return nil, err
		}
	}
	for i := range k.meta.Processes {
		p := &k.meta.Processes[i]
		p.Comm, p.Cmdline = k.comms[p.PID], k.labels[p.PID]
	}
	k.dropForeignThreads()
	return k.finish(func(ns uint64) int64 { return int64(ns) + k.base }, k.sources())
}

// dropForeignThreads leaves out the names of threads of what is no process: Kineto names streams like that.
func (k *kineto) dropForeignThreads() {
	for id := range k.threads {
		if _, ok := k.processes[uint32(id>>32)]; !ok {
			delete(k.threads, id)
		}
	}
}

func (k *kineto) sources() []recording.Source {
	lack := "a Kineto trace has no arguments of calls; a call that failed is not marked"
	inside := recording.Source{
		Name:  "ranges",
		State: "running",
		Detail: fmt.Sprintf(
			"%d rows of operators, Python functions and annotations say what threads were in, not whether they ran "+
				"or waited",
			k.operated,
		),
	}
	if k.operated == 0 {
		inside = recording.Source{
			Name:     "ranges",
			State:    "unavailable",
			Optional: true,
			Detail:   "the trace has no rows of operators or Python functions: record with ProfilerActivity.CPU",
		}
	}
	out := []recording.Source{inside}
	if k.rank >= 0 {
		out = append(out, recording.Source{
			Name: rankSource, State: "running", Detail: fmt.Sprintf("the trace is of rank %d", k.rank),
		})
	}
	return append(out, []recording.Source{
		{Name: "cuda", State: "running", Detail: lack},
		{
			Name:   "gpu",
			State:  "running",
			Detail: "as the profiler recorded it, from its first to its last row; what it lost is not known",
		},
	}...)
}
