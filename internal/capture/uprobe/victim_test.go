package uprobe_test

import (
	stdcmp "cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/google/go-cmp/cmp"

	"github.com/inferscope/inferscope/internal/capture/feature"
	"github.com/inferscope/inferscope/internal/capture/uprobe"
	"github.com/inferscope/inferscope/internal/capture/uprobe/elffile"
	"github.com/inferscope/inferscope/internal/recording/event"
	"github.com/inferscope/inferscope/internal/testkit/child"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// victim is a running testdata/main.c.
type victim struct {
	*child.Child
	t   testing.TB
	lib string
	// tick is the address of v_tick in the file.
	tick uint64
}

// answer is what the victim says about one command.
type answer struct {
	from, to uint64 // ns, CLOCK_MONOTONIC, around it
	n        int64
}

// needRoot skips where probes cannot be attached: not being root is no obstacle, a
// missing capability is.
func needRoot(t testing.TB) {
	t.Helper()
	for _, n := range (feature.Prober{}).Detect().Capabilities.Missing() {
		if !n.Optional {
			t.Skip("needs root, or ", n.Needs, " for ", n.For)
		}
	}
}

// buildVictim compiles the library and the program into a directory of the test's,
// or takes those in INFERSCOPE_TEST_VICTIM, for a machine without a compiler.
func buildVictim(t testing.TB) (dir string) {
	t.Helper()
	if dir := os.Getenv("INFERSCOPE_TEST_VICTIM"); dir != "" {
		return dir
	}
	cc := needs.Tool(t, "cc")
	dir = t.TempDir()
	for _, args := range [][]string{
		{
			"-shared", "-fPIC", "-O2", "-fvisibility=hidden", "-Wl,-soname,libvictim.so", "-o",
			filepath.Join(dir, "libvictim.so"), "testdata/lib.c",
		},
		{
			"-O2", "-pthread", "-o", filepath.Join(dir, "victim"), "testdata/main.c", "-L" + dir, "-lvictim",
			"-Wl,-rpath," + dir,
		},
	} {
		must.Run(t, exec.Command(cc, args...))
	}
	return dir
}

func startVictim(t testing.TB, dir string) *victim {
	t.Helper()
	cmd := exec.Command(filepath.Join(dir, "victim"))
	v := &victim{Child: child.Start(t, cmd), t: t, lib: filepath.Join(dir, "libvictim.so")}
	t.Cleanup(func() {
		if err := v.Wait(); err != nil {
			t.Errorf("the victim did not end well: %v", err)
		}
	})
	v.Line()
	v.tick = v.function("v_tick").Addr
	return v
}

func (v *victim) pid() uint32 { return uint32(v.PID) }

func (v *victim) send(command string) { fmt.Fprintln(v.In, command) }

func (v *victim) receive() answer {
	v.t.Helper()
	var a answer
	line := v.Line()
	if _, err := fmt.Sscan(line, &a.from, &a.to, &a.n); err != nil {
		v.t.Fatalf("the victim said %q: %v", line, err)
	}
	return a
}

func (v *victim) do(format string, args ...any) answer {
	v.t.Helper()
	v.send(fmt.Sprintf(format, args...))
	return v.receive()
}

// rings are maps like those of package ring, with the library's own slow reader.
type rings struct {
	t       testing.TB
	maps    map[string]*ebpf.Map
	readers []*ringbuf.Reader
}

func newRings(t testing.TB, bytes uint32) *rings {
	t.Helper()
	cpus := uint32(ebpf.MustPossibleCPU())
	inner := &ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: bytes}
	newMap := func(s *ebpf.MapSpec) *ebpf.Map {
		m, err := ebpf.NewMap(s)
		must.NoError(t, err)
		t.Cleanup(func() { m.Close() })
		return m
	}
	r := &rings{t: t, maps: map[string]*ebpf.Map{
		"rings": newMap(
			&ebpf.MapSpec{Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: cpus, InnerMap: inner},
		),
		"losses": newMap(&ebpf.MapSpec{Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: 4}),
	}}
	for cpu := range cpus {
		m := newMap(inner)
		must.NoError(t, r.maps["rings"].Put(cpu, m))
		rd, err := ringbuf.NewReader(m)
		must.NoError(t, err)
		t.Cleanup(func() { rd.Close() })
		r.readers = append(r.readers, rd)
	}
	return r
}

// events takes all events out of the rings and orders them by their ends.
func (r *rings) events() []event.Event {
	r.t.Helper()
	var out []event.Event
	for _, rd := range r.readers {
		rd.SetDeadline(time.Unix(1, 0))
		for {
			rec, err := rd.Read()
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			must.NoError(r.t, err)
			var e event.Event
			if n, err := binary.Decode(rec.RawSample, binary.NativeEndian, &e); err != nil || n != event.Size ||
				n != len(rec.RawSample) {
				r.t.Fatalf("record of %d bytes: %v", len(rec.RawSample), err)
			}
			out = append(out, e)
		}
	}
	slices.SortStableFunc(out, func(a, b event.Event) int { return stdcmp.Compare(a.End(), b.End()) })
	return out
}

// losses are the counters of bpf/event.h, summed over CPUs.
func (r *rings) losses() (out [4]uint64) {
	r.t.Helper()
	for i := range out {
		var per []uint64
		must.NoError(r.t, r.maps["losses"].Lookup(uint32(i), &per))
		for _, n := range per {
			out[i] += n
		}
	}
	return out
}

func (r *rings) noLosses() {
	r.t.Helper()
	if diff := cmp.Diff([4]uint64{}, r.losses()); diff != "" {
		r.t.Errorf("losses (-want +got):\n%s", diff)
	}
}

// want is a function to be probed: its name, and its cookie without the index.
type want struct {
	name   string
	cookie uint64
	timed  bool
}

// sites finds the probe points of ws in the victim's library; event.Func is the
// index in ws.
func (v *victim) sites(ws ...want) (file *os.File, sites []uprobe.Site) {
	v.t.Helper()
	file, err := os.Open(v.lib)
	must.NoError(v.t, err)
	v.t.Cleanup(func() { file.Close() })
	for i, w := range ws {
		fn := v.function(w.name)
		at := uprobe.Choose(fn.Code, fn.Addr, v.elf().Machine)
		sites = append(sites, uprobe.Site{Offset: fn.Offset + at.Offset, Cookie: w.cookie | uint64(i), Timed: w.timed})
	}
	return file, sites
}

func (v *victim) elf() *elffile.File {
	v.t.Helper()
	file, err := os.Open(v.lib)
	must.NoError(v.t, err)
	v.t.Cleanup(func() { file.Close() })
	st, err := file.Stat()
	must.NoError(v.t, err)
	f, err := elffile.Open(file, st.Size())
	must.NoError(v.t, err)
	return f
}

func (v *victim) function(name string) elffile.Function {
	v.t.Helper()
	fns, err := v.elf().Functions()
	must.NoError(v.t, err)
	for _, fn := range fns {
		if fn.Name == name {
			return fn
		}
	}
	v.t.Fatalf("libvictim.so does not export %s", name)
	return elffile.Function{}
}
