package profile

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/inferscope/inferscope/internal/recording"
)

func pythonStack(names ...string) []frame {
	var out []frame
	for _, n := range names {
		out = append(out, frame{kind: pythonFrame, name: n})
	}
	return out
}

func rowsOf(frames []frame) []recording.Frame {
	rows := make([]recording.Frame, len(frames))
	for i := range frames {
		rows[i] = recording.Frame{Name: frames[i].name}
	}
	return rows
}

// spelled returns a stack, leaf first, as a recording has it.
func spelled(frames []recording.Frame, nodes []recording.Node, index uint64) string {
	out := ""
	for n := int32(index) - 1; n >= 0; n = nodes[n].Parent {
		out += frames[nodes[n].Frame].Name
	}
	return out
}

func TestTableTree(t *testing.T) {
	var table table
	abc := table.add(pythonStack("c", "b", "a"), 1, 0)
	abd := table.add(pythonStack("d", "b", "a"), 2, 0)
	ab := table.add(pythonStack("b", "a"), 3, 0)
	if again := table.add(pythonStack("c", "b", "a"), 4, 0); again != abc {
		t.Errorf("the same stack is %d and %d", abc, again)
	}
	if none := table.add(nil, 5, 0); none != 0 {
		t.Errorf("no stack is %d", none)
	}
	p := table.pick([]uint64{abd, ab, 999, 0})
	frames, nodes, at := p.named(rowsOf(p.frames))
	if len(nodes) != 3 || len(frames) != 3 || len(at) != 2 {
		t.Errorf("%d nodes, %d frames, %d stacks: only what was asked for, once", len(nodes), len(frames), len(at))
	}
	for number, want := range map[uint64]string{abd: "dba", ab: "ba"} {
		if got := spelled(frames, nodes, at[number]); got != want {
			t.Errorf("stack %d is %q, not %q", number, got, want)
		}
	}
}

// Addresses of one function become one frame, and stacks that differ in them one stack.
func TestTableNamed(t *testing.T) {
	var table table
	m := &module{}
	a := table.add([]frame{{module: m, addr: 1}, {module: m, addr: 9}}, 1, 0)
	b := table.add([]frame{{module: m, addr: 2}, {module: m, addr: 9}}, 1, 0)
	p := table.pick([]uint64{a, b})
	rows := make([]recording.Frame, len(p.frames))
	for i, f := range p.frames {
		rows[i].Name = map[bool]string{true: "caller", false: "leaf"}[f.addr == 9]
	}
	frames, nodes, at := p.named(rows)
	if len(frames) != 2 || len(nodes) != 2 || at[a] != at[b] {
		t.Errorf("%v %v %v", frames, nodes, at)
	}
}

// Memory stays bounded, numbers stay unique, and what the recorder may still name is there.
func TestTableGenerations(t *testing.T) {
	var table table
	random := rand.New(rand.NewPCG(1, 2))
	type kept struct {
		ts     uint64
		number uint64
		text   string
	}
	var all []kept
	const keep = 2000 // how long the recorder keeps events
	last := uint64(0)
	for ts := uint64(1); ts < 60000; ts++ {
		var names []string
		want := ""
		for range 1 + random.IntN(12) {
			name := fmt.Sprint(random.IntN(1000), " ")
			names = append(names, name)
			want += name
		}
		number := table.add(pythonStack(names...), ts, ts-min(ts, keep))
		all = append(all, kept{ts, number, want})
		if number == 0 {
			t.Fatal("a stack has no number")
		}
		last = max(last, number)
	}
	if len(table.gens) > maxGenerations {
		t.Errorf("%d generations", len(table.gens))
	}
	numbers := make([]uint64, len(all))
	texts := map[uint64]string{}
	for i, k := range all {
		numbers[i] = k.number
		if old, ok := texts[k.number]; ok && old != k.text {
			t.Fatalf("number %d is %q and %q", k.number, old, k.text)
		}
		texts[k.number] = k.text
	}
	p := table.pick(numbers)
	frames, nodes, at := p.named(rowsOf(p.frames))
	newest := all[len(all)-1].ts
	for _, k := range all {
		index, ok := at[k.number]
		if !ok && k.ts >= newest-keep {
			t.Fatalf("the stack of %d is gone at %d", k.ts, newest)
		}
		if ok && spelled(frames, nodes, index) != k.text {
			t.Fatalf("stack %d is %q, not %q", k.number, spelled(frames, nodes, index), k.text)
		}
	}
	if _, ok := at[all[0].number]; ok {
		t.Error("the oldest stack is still held: the table does not let go")
	}
}

// A recorder that holds on for ever cannot make the table grow without end.
func TestTableForced(t *testing.T) {
	var table table
	for i := range uint64(maxNodes * (maxGenerations + 2)) {
		table.add(pythonStack(fmt.Sprint(i)), i, 0)
	}
	if len(table.gens) > maxGenerations {
		t.Errorf("%d generations", len(table.gens))
	}
}

// TestTableOfShortPrograms: each program brings stacks of its own, and those that no event has any more do not add up
// until a generation is full.
func TestTableOfShortPrograms(t *testing.T) {
	var table table
	const keep = 4 * minNodes
	for ts := uint64(1); ts < 20*keep; ts++ {
		table.add(pythonStack(fmt.Sprint(ts)), ts, ts-min(ts, keep))
	}
	nodes := 0
	for _, g := range table.gens {
		nodes += len(g.nodes)
	}
	if nodes < keep || nodes > 4*keep {
		t.Errorf("%d stacks are kept, want those of %d events and not many more", nodes, keep)
	}
}

// TestNamesGoWithTheirStacks: names of programs that have ended are remembered for as long as stacks have them.
func TestNamesGoWithTheirStacks(t *testing.T) {
	n := newNamer(nil, nil)
	table := table{left: n.keep}
	const keep = 4 * minNodes
	for ts := uint64(1); ts < 20*keep; ts++ {
		f := frame{kind: nativeFrame, pid: uint32(ts), addr: ts}
		table.add([]frame{f}, ts, ts-min(ts, keep))
		n.names[f] = "[vdso]"
	}
	if len(n.names) < keep || len(n.names) > 4*keep {
		t.Errorf("%d names are kept, want those of %d events and not many more", len(n.names), keep)
	}
	for _, g := range table.gens {
		for _, f := range g.frames {
			if n.names[f] == "" {
				t.Fatalf("the name of a stack that is held is forgotten: %+v", f)
			}
		}
	}
}

// BenchmarkTable adds stacks as an eager PyTorch has them, 60 native frames of which the outer 45 are often the same,
// until the table is full, and says what a stack costs in time and all of it in memory.
func BenchmarkTable(b *testing.B) {
	m := &module{}
	random := rand.New(rand.NewPCG(1, 2))
	stack := make([]frame, 60)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var t table
	ts := uint64(0)
	for b.Loop() {
		for i := range stack {
			places := 4000
			if i > 15 {
				places = 1 + i%3
			}
			stack[i] = frame{module: m, addr: uint64(i*10000 + random.IntN(places))}
		}
		ts++
		t.add(stack, ts, 0)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1e6, "MB")
	b.ReportMetric(float64(len(t.gens)), "generations")
	runtime.KeepAlive(&t)
}
