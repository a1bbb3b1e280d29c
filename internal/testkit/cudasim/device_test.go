package cudasim

import (
	"testing"
	"time"
)

// run runs a script to its end and returns the truth.
func run(t *testing.T, env []string, script ...string) *Truth {
	t.Helper()
	v := Start(t, Options{Env: env}, script...)
	v.Finish()
	return v.Truth()
}

func kernels(tr *Truth, name string) []Op {
	var out []Op
	for _, o := range tr.Ops {
		if o.Kind == Kernel && (name == "" || o.Name == name) {
			out = append(out, o)
		}
	}
	return out
}

func TestStreamKeepsOrderAndKernelsKeepTheirTime(t *testing.T) {
	tr := run(t, nil, "launch 100 kernel=a_us20", "sync")
	ks := kernels(tr, "a_us20")
	if len(ks) != 100 {
		t.Fatalf("%d kernels", len(ks))
	}
	for i, k := range ks {
		if k.End-k.Start != 20000 || k.Start < k.Submit+4000 {
			t.Fatalf("kernel %d: %+v", i, k)
		}
		if i > 0 && k.Start < ks[i-1].End {
			t.Fatalf("kernel %d starts before kernel %d ends", i, i-1)
		}
	}
	sync := tr.CallsOf("cuCtxSynchronize")[0]
	if sync.Exit < ks[99].End {
		t.Errorf("the sync returned %d ns before the last kernel's end", ks[99].End-sync.Exit)
	}
	calls := map[uint64]Call{}
	for _, c := range tr.CallsOf("cuLaunchKernel") {
		calls[c.ID] = c
	}
	for _, k := range ks {
		if c := calls[k.Call]; c.Enter > k.Submit || k.Submit > c.Exit {
			t.Fatalf("kernel %+v was not queued by call %+v", k, c)
		}
	}
}

func TestKernelSlotsSetHowManyRunAtOnce(t *testing.T) {
	script := []string{
		"stream-new nonblocking",
		"stream-new nonblocking",
		"launch 1 kernel=a_ms40 stream=1",
		"launch 1 kernel=b_ms40 stream=2",
		"sync",
	}
	for _, slots := range []string{"1", "2"} {
		tr := run(t, []string{"CUDASIM_KERNEL_SLOTS=" + slots}, script...)
		a, b := kernels(tr, "a_ms40")[0], kernels(tr, "b_ms40")[0]
		if together := b.Start < a.End; together != (slots == "2") {
			t.Errorf("%s slots: a %d-%d, b %d-%d", slots, a.Start, a.End, b.Start, b.End)
		}
	}
}

func TestEventHoldsBackAnotherStream(t *testing.T) {
	tr := run(t, []string{"CUDASIM_KERNEL_SLOTS=8"}, "stream-new nonblocking", "stream-new nonblocking",
		"launch 1 kernel=a_ms5 stream=1", "event-record 0 stream=1", "event-wait 0 stream=2",
		"launch 1 kernel=b_us1 stream=2", "event-sync 0")
	a, b := kernels(tr, "a_ms5")[0], kernels(tr, "b_us1")[0]
	if b.Start < a.End {
		t.Errorf("b starts %d ns before the event it waits for", a.End-b.Start)
	}
	if s := tr.CallsOf("cuEventSynchronize")[0]; s.Exit < a.End {
		t.Error("the event's synchronize returned too early")
	}
}

func TestLegacyStreamWaitsForBlockingStreamsOnly(t *testing.T) {
	tr := run(t, []string{"CUDASIM_KERNEL_SLOTS=8"}, "stream-new", "stream-new nonblocking",
		"launch 1 kernel=blocking_ms20 stream=1", "launch 1 kernel=free_ms80 stream=2",
		"launch 1 kernel=legacy_us1", "launch 1 kernel=after_us1 stream=1", "sync")
	blocking, free := kernels(tr, "blocking_ms20")[0], kernels(tr, "free_ms80")[0]
	legacy, after := kernels(tr, "legacy_us1")[0], kernels(tr, "after_us1")[0]
	if legacy.Start < blocking.End || legacy.Start > free.End || after.Start < legacy.End {
		t.Errorf("blocking ends %d, legacy %d-%d, after starts %d, free ends %d",
			blocking.End, legacy.Start, legacy.End, after.Start, free.End)
	}
}

func copies(tr *Truth) []Op {
	var out []Op
	for _, o := range tr.Ops {
		if o.Kind == Copy {
			out = append(out, o)
		}
	}
	return out
}

func TestCopyTimeIsBytesOverBandwidth(t *testing.T) {
	env := []string{"CUDASIM_PINNED_GBPS=20", "CUDASIM_PAGEABLE_GBPS=4", "CUDASIM_D2D_GBPS=1000"}
	tr := run(t, env, "h2d 4000000 async pinned", "h2d 4000000", "d2h 4000000 async", "d2d 4000000 async", "sync")
	want := []uint64{200001, 1000001, 1000001, 4001}
	for i, c := range copies(tr) {
		if c.End-c.Start != want[i] {
			t.Errorf("copy %d took %d ns on the device, want %d", i, c.End-c.Start, want[i])
		}
	}
}

func TestWhichCopiesHoldTheCaller(t *testing.T) {
	tr := run(t, nil, "launch 1 kernel=k_ms40", "h2d 4000000 async pinned", "h2d 1000 async",
		"d2h 4000000 async pinned", "d2d 100 async", "sync", "launch 1 kernel=k_ms40", "h2d 4000000 async",
		"launch 1 kernel=k_ms40", "d2h 1000 async", "launch 1 kernel=k_ms40", "h2d 4000000")
	held := []bool{false, false, false, false, true, true, true}
	byCall := map[uint64]Op{}
	for _, c := range copies(tr) {
		byCall[c.Call] = c
	}
	i := 0
	for _, c := range tr.Calls {
		op, ok := byCall[c.ID]
		if !ok {
			continue
		}
		if got := c.Exit >= op.End; got != held[i] {
			t.Errorf("copy %d (%s, %d bytes): held %v, want %v", i, c.Name, c.Bytes, got, held[i])
		}
		i++
	}
	if i != len(held) {
		t.Errorf("%d copies, want %d", i, len(held))
	}
}

func TestGraphExpandsAtEachLaunch(t *testing.T) {
	tr := run(
		t,
		nil,
		"stream-new nonblocking",
		"graph stream=1 { launch 10 kernel=n_us2 stream=1; h2d 4096 async pinned stream=1; memset 4096 async "+
			"stream=1 }",
		"graph-launch 3 stream=1", "ssync stream=1",
	)
	want(t, tr, map[string]uint64{"cuGraphLaunch": 3, "cuLaunchKernel": 10, "cuGraphInstantiateWithFlags": 1})
	if k, c, m := tr.Operations(Kernel).Count, tr.Copies(HostToDevice).Count, tr.Operations(Memset).Count; k != 30 ||
		c != 3 ||
		m != 3 {
		t.Errorf("%d kernels, %d copies, %d memsets on the device, want 30, 3, 3", k, c, m)
	}
	launches := map[uint64]int{}
	var last uint64
	for _, k := range kernels(tr, "n_us2") {
		launches[k.Call]++
		if k.Start < last {
			t.Fatal("nodes of one stream overlap")
		}
		last = k.End
	}
	for _, c := range tr.CallsOf("cuGraphLaunch") {
		if launches[c.ID] != 10 {
			t.Errorf("graph launch %d made %d kernels", c.ID, launches[c.ID])
		}
	}
	if s := tr.CallsOf("cuStreamSynchronize")[0]; s.Exit < last {
		t.Error("the stream's synchronize returned before the graph's end")
	}
}

func TestCaptureForksAndJoinsThroughEvents(t *testing.T) {
	tr := run(
		t,
		[]string{"CUDASIM_KERNEL_SLOTS=4"},
		"stream-new nonblocking",
		"stream-new nonblocking",
		"graph stream=1 { launch 1 kernel=root_us5 stream=1; event-record 0 stream=1; event-wait 0 stream=2; launch "+
			"1 kernel=left_us50 stream=1; launch 1 kernel=right_us50 stream=2;"+
			"event-record 1 stream=2; event-wait 1 stream=1; launch 1 kernel=join_us5 stream=1 }",
		"graph-launch 1 stream=1",
		"sync",
		"launch 1 stream=2",
		"sync",
	)
	root, left, right, join := kernels(tr, "root_us5")[0], kernels(tr, "left_us50")[0], kernels(tr,
		"right_us50")[0], kernels(tr, "join_us5")[0]
	if left.Start < root.End || right.Start < root.End || left.Start > right.End || right.Start > left.End ||
		join.Start < max(left.End, right.End) {
		t.Errorf("root %v left %v right %v join %v", root, left, right, join)
	}
}

func TestFullLaunchQueueHoldsTheCaller(t *testing.T) {
	tr := run(t, []string{"CUDASIM_QUEUE=4"}, "launch 5 kernel=k_ms40", "sync")
	ks, cs := kernels(tr, ""), tr.CallsOf("cuLaunchKernel")
	if cs[3].Exit > ks[0].End || cs[4].Exit < ks[0].End {
		t.Errorf("launch 4 returned at %d, launch 5 at %d, the first kernel ended at %d",
			cs[3].Exit, cs[4].Exit, ks[0].End)
	}
}

func TestHostFunctionHoldsTheStream(t *testing.T) {
	tr := run(t, []string{"CUDASIM_HOSTFN_NS=2000000"}, "launch 1 kernel=a_us1", "hostfunc",
		"launch 1 kernel=b_us1", "sync")
	a, b := kernels(tr, "a_us1")[0], kernels(tr, "b_us1")[0]
	if b.Start < a.End+2000000 {
		t.Errorf("the kernel after the host function starts %d ns after the one before", b.Start-a.End)
	}
}

func TestFreeWaitsForTheDevice(t *testing.T) {
	tr := run(t, nil, "malloc 4096", "malloc 4096 async", "launch 1 kernel=k_ms40", "free async", "free")
	k := kernels(tr, "")[0]
	if tr.CallsOf("cuMemFreeAsync")[0].Exit > k.End || tr.CallsOf("cuMemFree_v2")[0].Exit < k.End {
		t.Error("cuMemFree must wait for the device, cuMemFreeAsync must not")
	}
}

func TestFaultsOnRequest(t *testing.T) {
	v := Start(t,
		Options{Env: []string{"CUDASIM_FAIL=cuMemAlloc_v2:3:2", "CUDASIM_SLOW=cuLaunchKernel:2:3000000"}},
		"launch 3 kernel=k_ns1", "malloc 100 x5")
	if err := v.Wait(); err == nil {
		t.Error("the victim did not see the injected error")
	}
	tr := v.Truth()
	if tr.FailedCount("cuMemAlloc_v2") != 1 || tr.Count("cuMemAlloc_v2") != 3 {
		t.Errorf("%d of %d allocations failed, want 1 of 3", tr.FailedCount("cuMemAlloc_v2"), tr.Count("cuMemAlloc_v2"))
	}
	if c := tr.CallsOf("cuLaunchKernel")[1]; c.Exit-c.Enter < 3000000 {
		t.Errorf("the slow launch took %d ns", c.Exit-c.Enter)
	}
}

func TestPerThreadDefaultStream(t *testing.T) {
	v := Start(t, Options{Args: []string{"--ptds"}}, "thread 2 { launch 5 }", "sync")
	v.Finish()
	tr := v.Truth()
	want(t, tr, map[string]uint64{"cuLaunchKernel_ptsz": 10, "cuLaunchKernel": 0})
	streams := map[uint64]bool{}
	for _, k := range kernels(tr, "") {
		streams[k.StreamID] = true
	}
	if len(streams) != 2 {
		t.Errorf("%d streams, want one per thread", len(streams))
	}
}

func TestRateKeepsItsPace(t *testing.T) {
	tr := run(t, []string{"CUDASIM_TRUTH_LEVEL=counts"}, "rate 100000 for 200ms", "sync")
	want(t, tr, map[string]uint64{"cuLaunchKernel": 20000})
}

func TestDecodeLoopLooksLikeInference(t *testing.T) {
	start := time.Now()
	tr := run(t, nil, "decode 10 kernels=5 cpu=1ms sample=100us")
	if d := time.Since(start); d < 11*time.Millisecond {
		t.Errorf("ten tokens of 1.1 ms CPU work took %v", d)
	}
	want(t, tr, map[string]uint64{
		"cuLaunchKernel":       50,
		"cuMemcpyHtoDAsync_v2": 10,
		"cuMemcpyDtoHAsync_v2": 10,
		"cuStreamSynchronize":  10,
	})
}
