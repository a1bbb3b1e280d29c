package e2e

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/inferscope/inferscope/internal/analysis"
	"github.com/inferscope/inferscope/internal/analysis/collectives"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/cudasim"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// chosen are the algorithms and protocols of the simulated NCCL, and how many channels it takes.
var chosen = map[string][]string{
	"AllReduce float32":     {"RING LL 2", "RING SIMPLE 24"},
	"AllReduce bfloat16":    {"TREE LL128 2"},
	"AllGather bfloat16":    {"NVLS SIMPLE 2"},
	"ReduceScatter float32": {"PAT SIMPLE 2"},
	"Broadcast int8":        {"RING LL 2"},
	"Reduce float32":        {"RING LL 2"},
}

// choices are what was seen of them.
func choices(o *collectives.Operation) []string {
	var out []string
	for _, c := range o.Choices {
		text := fmt.Sprintf("%s %s %d", c.Algorithm, c.Protocol, c.FewestChannels)
		if c.MostChannels != c.FewestChannels || c.Calls == 0 || c.Calls > o.Calls {
			text += fmt.Sprintf(" to %d of %d calls", c.MostChannels, c.Calls)
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return out
}

// TestCollectives: of two ranks, each a process, every operation is counted, with its type, bytes, communicator and
// number of ranks, also in groups and where one operation makes another; bandwidths come from the kernels that each
// launched, and algorithms and protocols from the launches' parameters.
func TestCollectives(t *testing.T) {
	needs.Root(t, "it loads BPF programs and attaches probes")
	const turns = 2000
	program := filepath.Join(filepath.Dir(cudasim.Build(t).Victim), "rank")
	for rank := range 2 {
		v := cudasim.Start(t, cudasim.Options{Program: []string{program, fmt.Sprint(rank), "2", fmt.Sprint(turns)}})
		d := startDaemon(t, v.PID, "--gpu", "continuous", "--overhead-budget", "0")
		v.Go()
		v.WaitLine("done")
		rec := d.recording(v.PID)
		r := analysis.Run(rec)
		want := []collectives.Operation{
			{
				Name:     "AllReduce",
				Type:     "float32",
				Calls:    2 * turns,
				Bytes:    4 * (1024 + 4096) * turns,
				Smallest: 4096,
				Largest:  16384,
			},
			{
				Name:     "AllGather",
				Type:     "bfloat16",
				Calls:    4 * turns,
				Bytes:    2 * 4 * 256 * turns,
				Smallest: 512,
				Largest:  512,
			},
			{
				Name:     "ReduceScatter",
				Type:     "float32",
				Calls:    turns,
				Bytes:    4 * 512 * turns,
				Smallest: 2048,
				Largest:  2048,
			},
			{Name: "Recv", Type: "float32", Calls: turns, Bytes: 4 * 300 * turns, Smallest: 1200, Largest: 1200},
			{Name: "Send", Type: "float32", Calls: turns, Bytes: 4 * 300 * turns, Smallest: 1200, Largest: 1200},
			{Name: "AllReduce", Type: "bfloat16", Calls: turns, Bytes: 2 * 100 * turns, Smallest: 200, Largest: 200},
			{Name: "Broadcast", Type: "int8", Calls: turns, Bytes: 77 * turns, Smallest: 77, Largest: 77},
			{Name: "Reduce", Type: "float32", Calls: turns, Bytes: 4 * 10 * turns, Smallest: 40, Largest: 40},
			{Name: "AllToAll", Type: "float32", Calls: turns, Bytes: 4 * 8 * turns, Smallest: 32, Largest: 32},
		}
		if r.Exchanged == nil || len(r.Exchanged.Communicators) != 1 {
			t.Fatalf("rank %d: %+v", rank, r.Exchanged)
		}
		c := r.Exchanged.Communicators[0]
		if c.PID != uint32(v.PID) || c.Rank != rank || c.Ranks != 2 || c.Hash == "" || c.Calls != 13*turns ||
			r.Exchanged.Failed != 0 {
			t.Errorf("rank %d: %+v", rank, c)
		}
		times := cmpopts.IgnoreFields(collectives.Operation{}, "Host", "Kernels", "Kernel", "Seen", "Algorithm", "Bus", "Choices")
		if diff := cmp.Diff(want, c.Operations, times); diff != "" {
			t.Errorf("rank %d: (-want +got)\n%s", rank, diff)
		}
		// The agent comes at the first call of CUDA, so that the first kernels are not seen. Send and receive are a
		// group of two operations, whose kernels belong to none of them.
		for _, o := range c.Operations {
			alone := o.Name != "Send" && o.Name != "Recv"
			if diff := cmp.Diff(chosen[o.Name+" "+o.Type], choices(&o)); diff != "" {
				t.Errorf("rank %d: %s %s (-want +got)\n%s", rank, o.Name, o.Type, diff)
			}
			if alone != (o.Kernels > 0) || o.Kernels > o.Calls || o.Host == 0 {
				t.Errorf("rank %d: %+v", rank, o)
			}
			if each := o.Bytes / o.Calls; o.Smallest == o.Largest && o.Seen != o.Kernels*each && o.Name != "AllGather" {
				t.Errorf("rank %d: kernels of %d bytes were seen: %+v", rank, o.Seen, o)
			}
		}
		launches := map[event.Flags]int{}
		for i := range rec.Events {
			if _, known := rec.Events[i].NCCLFunction(); known {
				launches[rec.Events[i].Flags&event.Correlated]++
			}
		}
		if launches[0] == 0 || launches[event.Correlated] == 0 { // by probes at first, then by the agent
			t.Errorf("rank %d: launches of NCCL were seen %v times", rank, launches)
		}
		// Kernels of 50 us on the simulated GPU: 5120 floats in 100 us, and of two ranks as much on the links.
		if o := c.Operations[0]; o.Algorithm < 0.9*4*5120/100e-6 || o.Algorithm > 1.01*4*5120/100e-6 ||
			o.Bus != o.Algorithm {
			t.Errorf("rank %d: %v and %v bytes/s", rank, o.Algorithm, o.Bus)
		}
		v.Go()
		v.Finish()
		d.stop()
	}
}

// copyEngineSpans are, by the time at which the first copy of an operation began, how long it took to the end of the
// last one, by the truth: of a flag, of data of so many bytes, and of a flag.
func copyEngineSpans(truth *cudasim.Truth, bytes uint64) map[uint64]uint64 {
	out, streams := map[uint64]uint64{}, map[uint64][]cudasim.Op{}
	for _, op := range truth.Ops {
		if op.Kind == cudasim.Copy {
			streams[op.StreamID] = append(streams[op.StreamID], op)
		}
	}
	for _, ops := range streams {
		for first := range ops {
			last := first + 1
			for last < len(ops) && ops[last].Bytes == bytes {
				last++
			}
			if last > first+1 && last < len(ops) && ops[first].Bytes == 4 {
				out[ops[first].Start] = ops[last].End - ops[first].Start
			}
		}
	}
	return out
}

// TestCopyEngines: copies that copy engines make for NCCL's operations count for these, by the truth of the simulator,
// and copies of the program's own beside and between them do not.
func TestCopyEngines(t *testing.T) {
	needs.Root(t, "it loads BPF programs and attaches probes")
	const turns, ranks, own = 2000, 4, 12345
	program := filepath.Join(filepath.Dir(cudasim.Build(t).Victim), "rank")
	v := cudasim.Start(t, cudasim.Options{
		Program: []string{program, "0", fmt.Sprint(ranks), fmt.Sprint(turns), "copies"},
		Env:     []string{"CUDASIM_NCCL_COPIES=1"},
	})
	d := startDaemon(t, v.PID, "--gpu", "continuous", "--overhead-budget", "0")
	v.Go()
	v.WaitLine("done")
	rec := d.recording(v.PID)
	v.Go()
	v.Finish()
	truth := v.Truth()
	d.stop()

	tl := timeline.Build(rec)
	must.NoError(t, tl.Check())
	missing, seen, owns := 0, 0, uint64(0)
	for _, i := range tl.Copies {
		a := &tl.Activities[i]
		switch bytes := rec.Events[a.Event].Args[2]; {
		case bytes == own && a.Exchange:
			t.Fatalf("a copy of the program's own counts as NCCL's: %+v", a)
		case bytes != own && !a.Exchange:
			missing++
		case bytes != own:
			seen++
		default:
			owns++
		}
	}
	if seen == 0 || missing > 45 { // those of the turn in which the recording of copies began
		t.Errorf("%d copies of NCCL's were found, %d not", seen, missing)
	}
	spans, sum := copyEngineSpans(truth, 400_000), uint64(0)
	byCall := map[int32]timeline.Span{}
	for _, x := range tl.Exchanges {
		a := &tl.Activities[x.Activity]
		s, known := byCall[x.Call]
		if !known {
			s = timeline.Span{From: a.Start}
		}
		byCall[x.Call] = timeline.Span{From: min(s.From, a.Start), To: max(s.To, a.End)}
	}
	for call, s := range byCall {
		if e := &rec.Events[call]; rec.Meta.Functions[e.Func].Base == "ncclAllGather" && spans[s.From] == s.To-s.From {
			sum += s.To - s.From
		}
	}
	// Calls, copies of each, and bytes of each; the group of two operations counts for none of them.
	want := map[string][3]uint64{
		"AllGather float32":  {turns, ranks + 2, 400_000},
		"AllToAll float32":   {turns, ranks + 2, 4000},
		"Scatter float32":    {turns, ranks + 2, 8000},
		"AllGather bfloat16": {3 * turns, ranks + 2, 1000},
		"Gather int8":        {turns, 0, 700},
		"AllGather int8":     {turns, 0, 600},
	}
	r := analysis.Run(rec)
	plain := uint64(0)
	for i := range r.GPU.Copies {
		plain += r.GPU.Copies[i].Count
	}
	if plain != owns+uint64(missing) {
		t.Errorf("%d copies are told as such, %d of the program's own", plain, owns)
	}
	if r.Exchanged == nil || len(r.Exchanged.Communicators) != 1 ||
		len(r.Exchanged.Communicators[0].Operations) != len(want) {
		t.Fatalf("%+v", r.Exchanged)
	}
	for _, o := range r.Exchanged.Communicators[0].Operations {
		w := want[o.Name+" "+o.Type]
		edge := w[1] * w[0] / turns // copies of a turn, in the midst of which the recording of them may begin
		if o.Calls != w[0] || o.Copied > w[0] || o.Kernels != 0 || o.Seen != o.Copied*w[2] ||
			(o.Copied > 0) != (w[1] > 0) || o.Copies > o.Copied*w[1] || o.Copies+edge < o.Copied*w[1] {
			t.Errorf("%+v, want calls, copies and bytes of each %v", o, w)
		}
		if bus := float64(o.Seen) * (ranks - 1) / (float64(o.Copy) / 1e9); w[1] > 0 && math.Abs(o.Bus/bus-1) > 1e-9 {
			t.Errorf("%+v: bandwidth %v, want %v", o, o.Bus, bus)
		}
		if o.Name == "AllGather" && o.Type == "float32" && (o.Copy < sum || o.Copy-sum > o.Copy/100) {
			t.Errorf("copies of the all-gather took %d ns, by the truth %d", o.Copy, sum)
		}
	}
}

// lateRanks runs ranks as children of one process under one daemon, of which one is late, until collectives of all of
// them were recorded. They come before all else that the machine runs: a rank that gets no CPU is late as well, or its
// GPU has nothing to do.
func lateRanks(t *testing.T, ranks, late int, delay time.Duration, what string) (*cudasim.Victim, *daemon, []int) {
	t.Helper()
	const most, enough = 20_000, 300 // turns
	v, d, pids := startRanks(t, ranks, []string{
		"all", fmt.Sprint(ranks), fmt.Sprint(most), fmt.Sprint(late), fmt.Sprint(delay.Microseconds()), what,
	})
	waitFor(t, "all-reduces of all ranks", func() bool {
		sleep(200)
		rec := d.fetch(v.PID)
		return !slices.ContainsFunc(pids, func(pid int) bool { return len(kernelsIn(rec, pid, "AllReduce")) < enough })
	})
	v.Go()
	return v, d, pids
}

// startRanks runs ranks as children of one process under one daemon, and returns their pids.
func startRanks(t *testing.T, ranks int, args []string, env ...string) (*cudasim.Victim, *daemon, []int) {
	t.Helper()
	program := filepath.Join(filepath.Dir(cudasim.Build(t).Victim), "rank")
	v := cudasim.Start(t, cudasim.Options{
		Program: append([]string{program}, args...),
		Env: append(env, "CUDASIM_DEVICES="+fmt.Sprint(ranks),
			"CUDASIM_NCCL_MEET="+filepath.Join(t.TempDir(), "meet")),
	})
	d := startDaemon(t, v.PID, "--gpu", "continuous", "--overhead-budget", "0")
	if what := args[len(args)-1]; args[0] == "all" && what != "hang" { // which would keep its CPU
		attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
		if err := unix.SchedSetAttr(v.PID, &attr, 0); err != nil {
			t.Logf("ranks keep their priority, so that a loaded machine disturbs them: %v", err)
		}
	}
	v.Go()
	pids := make([]int, ranks)
	for r := range pids {
		pids[r] = atoi(t, strings.Fields(v.WaitLine("rank"))[1])
	}
	return v, d, pids
}

// TestRanksAttachedLate: of communicators made before the attach the ranks are known from the communicators themselves,
// without a call of the program's that tells them and without NCCL's RAS.
func TestRanksAttachedLate(t *testing.T) {
	needs.Root(t, "it loads BPF programs and attaches probes")
	const ranks = 3
	program := filepath.Join(filepath.Dir(cudasim.Build(t).Victim), "rank")
	meet := filepath.Join(t.TempDir(), "meet")
	v := cudasim.Start(t, cudasim.Options{
		Program: []string{program, "all", fmt.Sprint(ranks), "1000000", "0", "0", "cpu"},
		Env:     []string{"CUDASIM_DEVICES=" + fmt.Sprint(ranks), "CUDASIM_NCCL_MEET=" + meet},
	})
	v.Go()
	want := map[uint32][3]int{} // rank, ranks and GPU by process
	for r := range ranks {
		want[uint32(atoi(t, strings.Fields(v.WaitLine("rank"))[1]))] = [3]int{r, ranks, r}
	}
	waitFor(t, "a second operation, which waits for the first one of all ranks", func() bool {
		b, err := os.ReadFile(meet)
		return err == nil && len(b) >= 8 && binary.NativeEndian.Uint64(b) >= 2 // operations of rank 0
	})
	d := startDaemon(t, v.PID, "--gpu", "off", "--overhead-budget", "0")
	got := map[uint32][3]int{}
	waitFor(t, "calls of all ranks", func() bool {
		sleep(200)
		rec := d.fetch(v.PID)
		for i := range rec.Events {
			e := &rec.Events[i]
			if e.Kind == event.Call && strings.HasPrefix(rec.Meta.Functions[e.Func].Base, "ncclComm") {
				t.Fatalf("%s was recorded: the attach came early", rec.Meta.Functions[e.Func].Base)
			}
		}
		x := analysis.Run(rec).Exchanged
		for _, c := range rec.Meta.Communicators {
			got[c.PID] = [3]int{c.Rank, c.Ranks, c.GPU}
		}
		return x != nil && len(x.Communicators) == ranks && len(got) == ranks &&
			!slices.ContainsFunc(x.Communicators, func(c collectives.Communicator) bool {
				return c.Rank != want[c.PID][0] || c.Ranks != ranks || c.Hash != x.Communicators[0].Hash
			})
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	v.Go()
	v.WaitLine("done")
	v.Go()
	v.Finish()
	d.stop()
}

// TestStraggler: of ranks under one daemon the one that comes late, because it computes on the CPU or because its GPU
// does, is named first, and how late it is agrees with the clocks of the ranks themselves.
func TestStraggler(t *testing.T) {
	needs.Long(t)
	needs.Root(t, "it loads BPF programs and attaches probes")
	const late = 1
	// A CPU that computes also leaves its own GPU idle, for as long as the other one waits: of three ranks two wait.
	for what, ranks := range map[string]int{"cpu": 3, "gpu": 2} {
		v, d, pids := lateRanks(t, ranks, late, 3*time.Millisecond, what)
		truth := int64(atoi(t, v.WaitLine("skew")))
		r := analysis.Run(d.recording(v.PID))
		if r.Exchanged == nil || r.Exchanged.Skew == nil {
			t.Fatalf("%s: no skew: %+v", what, r.Exchanged)
		}
		skew := r.Exchanged.Skew
		if off := int64(skew.Median) - truth; max(off, -off) > 150_000 {
			t.Errorf("%s: skew %d ns, by the ranks' own clocks %d ns", what, skew.Median, truth)
		}
		for _, rank := range skew.Ranks {
			isLate := int(rank.PID) == pids[late]
			if share := float64(rank.Last) / float64(skew.Collectives); isLate != (share > 0.95) ||
				!isLate && share > 0.05 {
				t.Errorf("%s: %+v of %d collectives, %d is late", what, rank, skew.Collectives, pids[late])
			}
		}
		if len(r.Diagnosis.Findings) == 0 {
			t.Fatalf("%s: no finding", what)
		}
		reason := map[string]string{
			"cpu": "because of native code on the CPU in straggle",
			"gpu": "its GPU computed for 9",
		}
		if said := fmt.Sprint(r.Diagnosis.Findings[0].Evidence); !strings.Contains(said, reason[what]) {
			t.Errorf("%s: the evidence lacks %q: %s", what, reason[what], said)
		}
		if f := &r.Diagnosis.Findings[0]; f.Cause != "straggler" || int(f.PID) != pids[late] {
			t.Errorf("%s: the first finding is %s of %d (%q), want the straggler %d",
				what, f.Cause, f.PID, f.Title, pids[late])
		}
		v.Go()
		v.Finish()
		d.stop()
	}
}

// TestImbalance: where one rank after the other has more to do on its GPU, that is named, and no rank is a straggler.
func TestImbalance(t *testing.T) {
	needs.Long(t)
	needs.Root(t, "it loads BPF programs and attaches probes")
	const ranks = 3
	v, d, _ := lateRanks(t, ranks, 0, 4*time.Millisecond, "uneven")
	v.WaitLine("done")
	findings := analysis.Run(d.recording(v.PID)).Diagnosis.Findings
	found := false
	for i := range findings {
		f := &findings[i]
		if f.Cause == "straggler" {
			t.Errorf("%s", f.Title)
		}
		if f.Cause != "imbalance" {
			continue
		}
		found = true
		// The one computes for 4 ms and the others for 1 ms: the mean is 2 ms, and two of three wait for 3 ms of a
		// step.
		said := fmt.Sprint(f.Evidence)
		if f.Title != "GPUs have uneven work: the most of a step is 2.0 times the mean" || f.Share < 0.3 || f.Share > 0.55 ||
			!strings.Contains(said, "steps between collectives in which all 3 ranks took part") {
			t.Errorf("%s, %.2f of the time: %s", f.Title, f.Share, said)
		}
	}
	if !found {
		t.Errorf("no imbalance among %d findings: %+v", len(findings), findings)
	}
	v.Go()
	v.Finish()
	d.stop()
}

// answerAsRAS answers every client as NCCL's RAS does of two ranks, of which the second has launched one operation
// less.
func answerAsRAS(l net.Listener, pids func() []int) {
	const ranks = `{"rank": 0, "host": "127.0.0.1", "pid": %d, "cuda_dev": 0, "collective_counts": {"AllReduce": 2001}},
		{"rank": 1, "host": "127.0.0.1", "pid": %d, "cuda_dev": 1, "collective_counts": {"AllReduce": 2000}}`
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, "SERVER PROTOCOL 2\nOK\nOK\n")
		for lines := bufio.NewScanner(c); lines.Scan() && lines.Text() != "verbose status"; {
		}
		p := pids()
		const job = `{"nccl_version": "2.28.9", "communicators": [{"hash": "0xae94", "size": 2, "ranks": [` + ranks + `]}]}`
		_, _ = fmt.Fprintf(c, job, p[0], p[1])
		_ = c.Close()
	}
}

// TestHang: of two ranks one comes no more. The report says who, where its thread is, and what NCCL's RAS says of it.
func TestHang(t *testing.T) {
	needs.Long(t)
	needs.Root(t, "it loads BPF programs and attaches probes")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	defer l.Close()
	var known atomic.Pointer[[]int]
	go answerAsRAS(l, func() []int {
		if p := known.Load(); p != nil {
			return *p
		}
		return []int{0, 0}
	})
	// GPU records begin a second after the agents come.
	v, d, pids := startRanks(t, 2, []string{"all", "2", "4000", "1", "1000", "hang"}, "NCCL_RAS_ADDR="+l.Addr().String())
	known.Store(&pids)
	var hangs []collectives.Hang
	waitFor(t, "a hang in the analysis", func() bool {
		sleep(500)
		if x := analysis.Run(d.fetch(v.PID)).Exchanged; x != nil {
			hangs = x.Hangs
		}
		return len(hangs) > 0
	})
	h := hangs[0]
	if len(hangs) != 1 || h.Operation != "AllReduce" || len(h.Waiting) != 1 || int(h.Waiting[0]) != pids[0] ||
		h.Waited < 3_000_000_000 || len(h.Missing) != 1 {
		t.Fatalf("%+v", hangs)
	}
	m := h.Missing[0]
	stack := strings.Join(m.Stack, "\n")
	if int(m.PID) != pids[1] || int(m.TID) != pids[1] || m.Behind != 1 || m.Ended ||
		!strings.Contains(stack, "straggle") || !strings.Contains(stack, "main (rank)") {
		t.Errorf("%+v", m)
	}
	text, complaint, code := d.inferscope("report", fmt.Sprint(v.PID), "--full", "--no-pager", "-f", "text")
	for _, want := range []string{
		fmt.Sprintf("NCCL's RAS: rank 1 (process %d on 127.0.0.1) of communicator ae94", pids[1]),
		"Ranks that have not come", "AllReduce of 2 processes cannot end", fmt.Sprint(pids[1]), "straggle",
	} {
		if code != 0 || !strings.Contains(text, want) {
			t.Errorf("%d, %s: the report lacks %q:\n%s", code, complaint, want, text)
		}
	}
	for form, list := range map[string][]string{
		"json": {`"version": "2.28.9"`, `"hangs"`, `"missing"`, `"verdict": "hung"`, `"cause": "hang"`},
		"text": {
			"Hung:", "has not come to AllReduce, in which 1 rank waits", "up to the end of the recording",
		},
	} {
		text, complaint, code = d.inferscope("report", fmt.Sprint(v.PID), "--no-pager", "--format", form)
		for _, want := range list {
			if code != 0 || !strings.Contains(strings.Join(strings.Fields(text), " "), want) {
				t.Errorf("%d, %s: the %s report lacks %q", code, complaint, form, want)
			}
		}
	}
	v.Go()
	v.Finish()
	d.stop()
}
