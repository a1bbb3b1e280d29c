package importer

import (
	"math"
	"strings"

	"github.com/inferscope/inferscope/internal/cuda"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// activity makes the event of a row of a GPU, for settle: whose it is may not be known yet.
func (k *kineto) activity(r *row) error {
	a := &r.Args
	device, stream := a.Device, a.Stream
	if !device.ok {
		device = r.PID
	}
	if !stream.ok {
		stream = r.TID.number
	}
	if !r.TS.ok || !device.ok {
		k.skip("rows of GPUs without a device or a time")
		return nil
	}
	if ok, err := k.room(r.TS.ns); !ok {
		return err
	}
	id := uint64(0)
	if a.Correlation.n <= math.MaxUint32 {
		id = a.Correlation.n
	}
	e := event.Event{
		TS: r.TS.ns, Dur: r.Dur.ns, PID: uint32(a.Process.n), TID: clip(stream), Func: place(device.n, a.Context.n),
		Flags: event.Timed,
		Args:  [4]uint64{id | min(a.Graph.n, math.MaxUint32)<<32, a.Node.n},
	}
	switch r.Cat {
	case "cuda_sync":
		e.Kind, e.Ret, e.Args[1] = event.Sync, syncOf(a.Sync+r.Name), 0
		if !a.Stream.ok {
			e.TID = math.MaxUint32
		}
	case "kernel", "Kernel":
		if err := k.kernelRow(r, &e); err != nil {
			return err
		}
	case "gpu_memcpy", "Memcpy":
		e.Kind, e.Ret = event.Copy, copyOf(r)
		e.Args[2], e.Args[3] = a.Bytes.n, device.n|device.n<<32
		if a.FromDevice.ok && a.ToDevice.ok {
			e.Args[3] = uint64(clip(a.FromDevice)) | uint64(clip(a.ToDevice))<<32
		}
	default:
		e.Kind, e.Ret = event.Set, int32(memoryOf(between(r.Name, "(", ")")))
		e.Args[2], e.Args[3] = a.Bytes.n, a.Value.n
	}
	k.rows = append(k.rows, e)
	return nil
}

// settle adds the event of a GPU's row, now that all calls are known.
func (k *kineto) settle(e *event.Event) error {
	if e.PID == 0 {
		pid, ok := k.processOf(uint32(e.Args[0]))
		if !ok {
			k.skip("rows of GPUs whose process cannot be told")
			return nil
		}
		e.PID = pid
	}
	k.process(e.PID)
	if e.Kind != event.Sync {
		k.stream(e.PID, uint32(e.Func>>8), e.TID)
		k.describe(e.PID, uint32(e.Func&0xff))
	}
	if e.Kind == event.Kernel && e.Args[0]>>32 == 0 {
		k.launched[key(e.PID, uint32(e.Args[0]))] = launch{grid: e.Args[2], block: e.Args[3], kernel: e.Ret}
	}
	return k.worked(*e)
}

// processOf finds whose a row of a GPU is: Kineto has the device where the process stands.
func (k *kineto) processOf(id uint32) (uint32, bool) {
	if k.several {
		pid, ok := k.owners[id]
		return pid, ok && id != 0
	}
	if k.only == 0 { // no calls: the profiler recorded activities alone
		return 1, true
	}
	return k.only, true
}

func (k *kineto) kernelRow(r *row, e *event.Event) error {
	a := &r.Args
	dynamic := a.Dynamic.n
	static := a.Shared.n - min(a.Shared.n, dynamic)
	i, err := k.kernel(recording.Kernel{
		Name:         r.Name,
		Registers:    clip(a.Registers),
		StaticShared: uint32(min(static, math.MaxUint32)),
		Local:        clip(a.Local),
	})
	e.Kind, e.Ret = event.Kernel, i
	e.Args[2] = packGrid(a.Grid.dims)
	e.Args[3] = packBlock(a.Block.dims, dynamic)
	return err
}

func clip(n number) uint32 { return uint32(min(n.n, math.MaxUint32)) }

// syncOf reads CUpti_ActivitySynchronizationType.
func syncOf(name string) int32 {
	switch {
	case strings.Contains(name, "Event Sync"):
		return 1
	case strings.Contains(name, "Stream Wait Event"):
		return 2
	case strings.Contains(name, "Stream Sync"):
		return 3
	case strings.Contains(name, "Context Sync"):
		return 4
	}
	return 0
}

// copyOf reads the kinds of a copy out of its name: "Memcpy HtoD (Pinned -> Device)".
func copyOf(r *row) int32 {
	from, to, _ := strings.Cut(between(r.Name, "(", ")"), "->")
	ret := int(cuda.CopyKindIn(r.Name)) | memoryOf(from)<<8 | memoryOf(to)<<16
	if r.Args.Async.n != 0 {
		ret |= asyncCopy
	}
	return int32(ret)
}

// memoryOf reads a kind of memory. Old versions of Kineto call pageable memory the host's.
func memoryOf(word string) int {
	if word = strings.TrimSpace(word); word == "Host" {
		return int(cuda.Pageable)
	}
	return int(cuda.MemoryKindOf(word))
}

func between(s, open, end string) string {
	_, s, _ = strings.Cut(s, open)
	s, _, _ = strings.Cut(s, end)
	return s
}

// describe enters a device of a process.
func (k *kineto) describe(pid, id uint32) {
	at := [2]uint32{pid, id}
	if _, ok := k.devices[at]; ok {
		return
	}
	d := recording.Device{PID: pid, ID: id}
	for i := range k.device {
		if x := &k.device[i]; x.ID.ok && x.ID.n == uint64(id) {
			d.Name, d.UUID, d.SMs, d.Memory = x.Name, x.UUID, clip(x.SMs), x.Memory.n
			d.Major, d.Minor = clip(x.Major), clip(x.Minor)
		}
	}
	k.devices[at] = d
}
