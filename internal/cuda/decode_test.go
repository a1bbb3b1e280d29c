package cuda

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/fuzzing"
)

// function is the entry of a recording's function table for an exported name.
func function(t testing.TB, name string, major int) recording.Function {
	t.Helper()
	row, ok := match(name, major)
	if !ok {
		t.Fatalf("%s is not in the table", name)
	}
	p := Point{Row: row, Name: name}
	return p.Function()
}

func TestDecode(t *testing.T) {
	const timed, deref = event.Timed, event.Timed | event.Deref
	for _, c := range []struct {
		name  string
		major int
		event event.Event
		want  Call
	}{
		{
			"cuMemcpyHtoDAsync_v2", 0,
			event.Event{Flags: timed, Args: [4]uint64{0x7f00, 0x5500, 4096, 0xabc}},
			Call{
				Direction: H2D, Dst: 0x7f00, Src: 0x5500, Bytes: 4096, HasBytes: true, Stream: 0xabc, HasStream: true,
				Timed: true,
			},
		},
		{
			"cuMemcpyHtoDAsync_v2_ptsz", 0,
			event.Event{Flags: timed, Args: [4]uint64{1, 2, 3, 0}},
			Call{
				Direction: H2D, Dst: 1, Src: 2, Bytes: 3, HasBytes: true, Stream: PerThreadStream, HasStream: true,
				Timed: true,
			},
		},
		{
			"cuMemcpyDtoH_v2", 0,
			event.Event{Flags: timed, Ret: 700, Args: [4]uint64{1, 2, 3}},
			Call{Direction: D2H, Dst: 1, Src: 2, Bytes: 3, HasBytes: true, HasStream: true, Timed: true, Result: 700},
		},
		{
			"cuMemcpyDtoH_v2_ptds", 0,
			event.Event{Flags: timed, Args: [4]uint64{1, 2, 3}},
			Call{
				Direction: D2H, Dst: 1, Src: 2, Bytes: 3, HasBytes: true, HasStream: true, Stream: PerThreadStream,
				Timed: true,
			},
		},
		// before CUDA 3.2: the upper half is noise
		{
			"cuMemcpyDtoD", 0,
			event.Event{Flags: timed, Args: [4]uint64{0xdead_0000_0010}},
			Call{Direction: D2D, Bytes: 16, HasBytes: true, HasStream: true, Timed: true},
		},
		{
			"cuMemcpyPeerAsync", 0,
			event.Event{Flags: timed, Args: [4]uint64{1, 2, 3, 1}},
			Call{
				Direction: Peer, Dst: 1, Src: 2, Bytes: 3, HasBytes: true, Stream: LegacyStream, HasStream: true,
				Timed: true,
			},
		},
		{
			"cudaMemcpyAsync", 12,
			event.Event{Flags: timed, Args: [4]uint64{1, 2, 3, 2<<56 | 0x7f12_3456_7890}},
			Call{
				Direction: D2H, Dst: 1, Src: 2, Bytes: 3, HasBytes: true, Stream: 0x7f12_3456_7890, HasStream: true,
				Timed: true,
			},
		},
		// nested too deep to be timed
		{
			"cudaMemcpyAsync", 12,
			event.Event{Ret: 1, Args: [4]uint64{1, 2, 3, 0x7f12_3456_7890}},
			Call{Direction: H2D, Dst: 1, Src: 2, Bytes: 3, HasBytes: true, Stream: 0x7f12_3456_7890, HasStream: true},
		},
		{
			"cudaMemcpy", 12,
			event.Event{Flags: timed, Args: [4]uint64{1, 2, 3, 4 << 56}},
			Call{Direction: Unknown, Dst: 1, Src: 2, Bytes: 3, HasBytes: true, HasStream: true, Timed: true},
		},
		{
			"cudaMemcpy2D", 12,
			event.Event{Flags: timed, Args: [4]uint64{1, 2, 100, 3<<56 | 7}},
			Call{Direction: D2D, Dst: 1, Src: 2, Bytes: 700, HasBytes: true, HasStream: true, Timed: true},
		},
		{
			"cuMemcpy2DAsync_v2", 0,
			event.Event{Flags: timed, Args: [4]uint64{1, 2, 64, 1<<56 | 0x99}},
			Call{Direction: H2D, Dst: 1, Src: 2, Bytes: 64, HasBytes: true, Stream: 0x99, HasStream: true, Timed: true},
		},
		{
			"cuMemcpy3D_v2", 0,
			event.Event{Flags: timed, Args: [4]uint64{1, 2, 64, 4 << 56}},
			Call{Direction: Unknown, Dst: 1, Src: 2, Bytes: 64, HasBytes: true, HasStream: true, Timed: true},
		},
		{
			"cuMemcpy3DPeer", 0,
			event.Event{Flags: timed, Args: [4]uint64{1, 2, 64, 3 << 56}},
			Call{Direction: Peer, Dst: 1, Src: 2, Bytes: 64, HasBytes: true, HasStream: true, Timed: true},
		},
		{
			"cuMemcpy3D_v2", 0,
			event.Event{Flags: timed | event.Fault, Args: [4]uint64{0, 0, 0, 4 << 56}},
			Call{Direction: Unknown, HasStream: true, Timed: true},
		}, // no bytes is not 0 bytes
		{
			"cudaMemcpyBatchAsync", 13,
			event.Event{Flags: timed, Args: [4]uint64{5}},
			Call{Direction: Unknown, Stream: 5, HasStream: true, Timed: true},
		},
		{
			"cuMemsetD2D32Async", 0,
			event.Event{Args: [4]uint64{1, 10, 3, 2}},
			Call{Dst: 1, Bytes: 120, HasBytes: true, Stream: 2, HasStream: true},
		},
		{"cuMemsetD32_v2", 0, event.Event{Flags: timed, Args: [4]uint64{1, 1 << 63}}, // an absurd size saturates
			Call{Dst: 1, Bytes: ^uint64(0), HasBytes: true, HasStream: true, Timed: true}},
		{
			"cuMemAlloc_v2", 0,
			event.Event{Flags: deref, Args: [4]uint64{0x7f00, 1 << 20}},
			Call{Pointer: 0x7f00, Bytes: 1 << 20, HasBytes: true, Timed: true},
		},
		// failed: the slot is no address of memory
		{
			"cuMemAlloc_v2", 0,
			event.Event{Flags: timed, Ret: 2, Args: [4]uint64{0x7ffd_0000, 1 << 20}},
			Call{Bytes: 1 << 20, HasBytes: true, Timed: true, Result: 2},
		},
		{
			"cuStreamCreate", 0,
			event.Event{Flags: timed, Ret: 2, Args: [4]uint64{0x7ffd_0000}},
			Call{Timed: true, Result: 2},
		},
		{
			"cuStreamCreate", 0,
			event.Event{Flags: deref, Args: [4]uint64{0x77}},
			Call{Stream: 0x77, HasStream: true, Timed: true},
		},
		{
			"cuModuleLoadData", 0,
			event.Event{Flags: timed, Ret: 2, Args: [4]uint64{0x7ffd_0000}},
			Call{Timed: true, Result: 2},
		},
		{
			"cuGraphLaunch", 0,
			event.Event{Flags: timed, Args: [4]uint64{0x11, 0x22}},
			Call{Handle: 0x11, Stream: 0x22, HasStream: true, Timed: true},
		},
		{
			"cuLaunchKernel", 0,
			event.Event{Args: [4]uint64{0xf0, 0x22, 1000 | 2<<32 | 3<<48, 256 | 4<<11 | 5<<22 | 49152<<32}},
			Call{
				Handle: 0xf0, Stream: 0x22, HasStream: true, Grid: [3]uint32{1000, 2, 3}, Block: [3]uint32{256, 4, 5},
				Shared: 49152,
			},
		},
		{
			"cuLaunchKernelEx_ptsz", 0,
			event.Event{Args: [4]uint64{0xf0, 0, 1<<31 - 1 | 65535<<32 | 65535<<48, 1024 | 1<<11 | 1<<22}},
			Call{
				Handle: 0xf0, Stream: PerThreadStream, HasStream: true, Grid: [3]uint32{1<<31 - 1, 65535, 65535},
				Block: [3]uint32{1024, 1, 1},
			},
		},
		// an unread stream is not stream 0
		{"cuLaunchKernelEx", 0, event.Event{Flags: event.Fault, Args: [4]uint64{0xf0}}, Call{Handle: 0xf0}},
		{"cuCtxGetFlags", 0, event.Event{Args: [4]uint64{1, 2, 3, 4}}, Call{}},
	} {
		fn := function(t, c.name, c.major)
		c.event.Kind = event.Call
		c.want.Func = &Func{Name: c.name, Base: fn.Base, Library: Library(fn.Library), Group: Group(fn.Group)}
		got := NewDecoder([]recording.Function{fn}).Decode(&c.event)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

// TestDecodeUnknown: recordings of other versions and damaged ones decode to calls
// without arguments.
func TestDecodeUnknown(t *testing.T) {
	d := NewDecoder([]recording.Function{
		{Name: "cuFromTheFuture_v7", Base: "cuFromTheFuture", Library: "driver", Group: "future", Timed: true},
		{
			Name:    "cuMemcpyHtoD_v2",
			Base:    "cuMemcpyHtoD",
			Library: "driver",
			Group:   "copy",
			Timed:   false,
		}, // the row is timed: another layout
		{Name: "cuMemcpyHtoD_v2", Base: "cuMemcpyHtoD", Library: "runtime", Group: "copy", Timed: true},
	})
	e := event.Event{Kind: event.Call, Flags: event.Timed, Ret: 1, Args: [4]uint64{1, 2, 3, 4}}
	for i, want := range []Func{
		{"cuFromTheFuture_v7", "cuFromTheFuture", Driver, "future"},
		{"cuMemcpyHtoD_v2", "cuMemcpyHtoD", Driver, Copy},
		{"cuMemcpyHtoD_v2", "cuMemcpyHtoD", Runtime, Copy},
		{"unknown", "unknown", "", ""},
	} {
		e.Func = uint16(i)
		got := d.Decode(&e)
		if *got.Func != want {
			t.Errorf("function %d is %+v, want %+v", i, *got.Func, want)
		}
		if diff := cmp.Diff(Call{Timed: true, Result: 1}, got, cmpopts.IgnoreFields(Call{}, "Func")); diff != "" {
			t.Errorf("function %d has arguments (-want +got):\n%s", i, diff)
		}
	}
	e.Func = 65535
	if got := NewDecoder(nil).Decode(&e); got.Name != "unknown" {
		t.Errorf("an empty table knows %q", got.Name)
	}
}

// TestCookie fixes the layout that bpf/event.h describes.
func TestCookie(t *testing.T) {
	for name, want := range map[string]uint64{
		"cuLaunchKernel":         7 | 1<<36,
		"cuLaunchKernelEx":       7 | 2<<36,
		"cudaLaunchKernel":       7 | 3<<36,
		"cudaLaunchKernelExC":    7 | 4<<36,
		"cuMemcpyHtoDAsync_v2":   7 | 1<<16 | 2<<20 | 3<<24 | 4<<28,
		"cudaMemcpyAsync":        7 | 1<<16 | 2<<20 | 3<<24 | 5<<28 | 4<<32,
		"cuMemAlloc_v2":          7 | 1<<16 | 2<<20 | 1<<40 | 1<<41,
		"cuMemcpy2DAsync_v2":     7 | 2<<28 | 5<<36,
		"cuMemcpy3D_v2":          7 | 6<<36,
		"cuCtxSynchronize":       7,
		"cudaMemcpy2DFromArray":  7 | 1<<16 | 3<<20 | 6<<24 | 7<<28 | 8<<32,
		"cuStreamEndCapture":     7 | 2<<16 | 1<<20 | 1<<40,
		"cuMemcpyBatchAsync_v2":  7 | 8<<16,
		"cudaMemcpyPeerAsync":    7 | 1<<16 | 3<<20 | 5<<24 | 6<<28,
		"cuMemsetD2D8Async_ptsz": 7 | 1<<16 | 4<<20 | 5<<24 | 6<<28,
	} {
		row, ok := Match(name)
		if !ok {
			t.Fatalf("%s is not in the table", name)
		}
		if got := row.Cookie(7); got != want {
			t.Errorf("%s: cookie %#x, want %#x", name, got, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	var fns []recording.Function
	for _, r := range Rows() {
		p := Point{Row: r, Name: r.Name + "_ptsz"}
		fns = append(fns, p.Function())
	}
	d := NewDecoder(fns)
	f.Add(uint16(3), uint8(7), int32(-1), uint64(1), ^uint64(0), uint64(1)<<63, uint64(0xff)<<56)
	f.Add(uint16(65535), uint8(0), int32(0), uint64(0), uint64(0), uint64(0), uint64(0))
	fuzzing.Run(f, func(t *testing.T, fn uint16, flags uint8, ret int32, a, b, c, e uint64) {
		call := d.Decode(
			&event.Event{Func: fn, Kind: event.Call, Flags: event.Flags(flags), Ret: ret, Args: [4]uint64{a, b, c, e}},
		)
		if call.Func == nil || call.Stream == legacyHandle && call.HasStream {
			t.Errorf("function %d decodes to %+v", fn, call)
		}
		if !call.HasBytes && call.Bytes != 0 {
			t.Errorf("function %d has bytes that it does not have: %+v", fn, call)
		}
		if !call.Timed && call.Result != 0 {
			t.Errorf("function %d has a result that nobody saw: %+v", fn, call)
		}
	})
}

// sink keeps the compiler from removing what a benchmark measures.
var sink uint64

func BenchmarkDecode(b *testing.B) {
	for _, name := range []string{
		"cuLaunchKernel", "cudaMemcpyAsync", "cuMemcpy2DAsync_v2", "cuMemsetD2D32Async", "cuCtxSynchronize",
	} {
		b.Run(name, func(b *testing.B) {
			d := NewDecoder([]recording.Function{function(b, name, 12)})
			e := event.Event{Kind: event.Call, Flags: event.Timed, Args: [4]uint64{1, 2, 3, 4}}
			b.ReportAllocs()
			for b.Loop() {
				c := d.Decode(&e)
				sink += c.Bytes + c.Stream
			}
		})
	}
}

// TestUnreadCopyHasNoDirection holds that a copy whose arguments were not read is none from host to host, which is kind
// 0.
func TestUnreadCopyHasNoDirection(t *testing.T) {
	d := NewDecoder([]recording.Function{
		{Name: "cudaMemcpyAsync", Base: "cudaMemcpyAsync", Library: "runtime", Group: "copy", Timed: true},
	})
	read := event.Event{Kind: event.Call, Flags: event.Timed, Args: [4]uint64{1, 2, 3}}
	if c := d.Decode(&read); c.Direction != H2H {
		t.Errorf("kind 0 is %s", c.Direction)
	}
	unread := event.Event{Kind: event.Call, Flags: event.Timed | event.Fault}
	if c := d.Decode(&unread); c.Direction != Unknown || c.HasBytes {
		t.Errorf("a copy that was not read goes %s and has bytes: %v", c.Direction, c.HasBytes)
	}
}

// TestHIPTableNamesRows finds rows that a change of CUDA's table would leave without a meaning.
func TestHIPTableNamesRows(t *testing.T) {
	for name, like := range hipNames {
		if row, ok := MatchHIP(name); !ok || row.Group == "" {
			t.Errorf("%s stands for %s, which the table does not have", name, like)
		}
	}
}
