package isc

import (
	"maps"
	"reflect"
	"slices"

	"github.com/inferscope/inferscope/internal/loss"
	"github.com/inferscope/inferscope/internal/record"
)

// nameTable is a table that names things: a part of Meta.
type nameTable struct {
	name string
	doc  string
	row  reflect.Type
	// grows: rows are numbered and never change, so that each stretch adds its new ones. The others are
	// written whole with each stretch.
	grows bool
	// rows returns the rows of a Meta from a number on, as a slice of the row type; false: there is no such table.
	rows func(m *record.Meta, from int) (reflect.Value, bool)
	// take puts rows into a Meta, whose GPU is set.
	take func(m *record.Meta, rows reflect.Value)
	gpu  bool // the table is one of Meta.GPU
}

// tableOf makes a table of the slice that at points to in a Meta.
func tableOf[T, R any](name, doc string, grows bool, at func(*record.Meta) *[]T, to func(int, T) R, back func(R) T) nameTable {
	return nameTable{
		name: name, doc: doc, row: reflect.TypeFor[R](), grows: grows,
		rows: func(m *record.Meta, from int) (reflect.Value, bool) {
			all := at(m)
			if all == nil || *all == nil {
				return reflect.Value{}, false
			}
			rows := make([]R, 0, len(*all)-from)
			for i, v := range (*all)[from:] {
				rows = append(rows, to(from+i, v))
			}
			return reflect.ValueOf(rows), true
		},
		take: func(m *record.Meta, rows reflect.Value) {
			out := make([]T, 0, rows.Len())
			for _, r := range rows.Interface().([]R) {
				out = append(out, back(r))
			}
			*at(m) = out
		},
	}
}

// ofGPU makes a table of a slice in Meta.GPU.
func ofGPU[T, R any](name, doc string, grows bool, at func(*record.GPU) *[]T, to func(int, T) R, back func(R) T) nameTable {
	t := tableOf(name, doc, grows, func(m *record.Meta) *[]T {
		if m.GPU == nil {
			return nil
		}
		return at(m.GPU)
	}, to, back)
	t.gpu = true
	return t
}

// nameTables returns all of them.
func nameTables() []nameTable {
	return slices.Concat(targetTables(), codeTables(), gpuTables())
}

func targetTables() []nameTable {
	return []nameTable{
		tableOf("processes", "processes of the target; a pid that was used again is another row", false,
			func(m *record.Meta) *[]record.Process { return &m.Processes },
			func(_ int, v record.Process) processRow { return processRow(v) }, func(r processRow) record.Process { return record.Process(r) }),
		tableOf("threads", "names of the target's threads", false,
			func(m *record.Meta) *[]record.Thread { return &m.Threads },
			func(_ int, v record.Thread) threadRow { return threadRow(v) }, func(r threadRow) record.Thread { return record.Thread(r) }),
		tableOf("strangers", "threads of other processes that woke or displaced the target's", false,
			func(m *record.Meta) *[]record.Thread { return &m.Strangers },
			func(_ int, v record.Thread) threadRow { return threadRow(v) }, func(r threadRow) record.Thread { return record.Thread(r) }),
		tableOf("libraries", "mapped copies of libcuda and libcudart, and how they are probed", false,
			func(m *record.Meta) *[]record.Library { return &m.Libraries },
			func(_ int, v record.Library) libraryRow { return libraryRow(v) }, func(r libraryRow) record.Library { return record.Library(r) }),
		tableOf("sources", "sources of events and how they were", false,
			func(m *record.Meta) *[]record.Source { return &m.Sources },
			func(_ int, v record.Source) sourceRow { return sourceRow(v) }, func(r sourceRow) record.Source { return record.Source(r) }),
		tableOf("losses", "what is known to be missing or doubtful", false,
			func(m *record.Meta) *[]loss.Loss { return &m.Losses },
			func(_ int, v loss.Loss) lossRow { return lossRow(v) }, func(r lossRow) loss.Loss { return loss.Loss(r) }),
		tableOf("objects", "files and sockets that threads waited for", false,
			func(m *record.Meta) *[]record.Object { return &m.Objects },
			func(_ int, v record.Object) objectRow { return objectRow(v) }, func(r objectRow) record.Object { return record.Object(r) }),
		tableOf("pressure", "throttling, memory stalls and faults, once a second", false,
			func(m *record.Meta) *[]record.Pressure { return &m.Pressure }, pressureTo, pressureFrom),
		pagesTable(),
	}
}

func pressureTo(_ int, p record.Pressure) pressureRow {
	return pressureRow{p.TS, p.Throttled, p.Periods, p.MemoryStall, p.MajorFaults, p.GPUNode}
}

func pressureFrom(r pressureRow) record.Pressure {
	return record.Pressure{TS: r.TS, Throttled: r.Throttled, Periods: r.Periods, MemoryStall: r.MemoryStall, MajorFaults: r.MajorFaults, GPUNode: r.GPUNode}
}

// pagesTable holds the maps of pressure, a row for each NUMA node. It comes after pressure.
func pagesTable() nameTable {
	return nameTable{
		name: "numa_pages", doc: "pages of the target by NUMA node, at each time of pressure", row: reflect.TypeFor[pagesRow](),
		rows: func(m *record.Meta, _ int) (reflect.Value, bool) {
			var rows []pagesRow
			for i, p := range m.Pressure {
				for _, node := range slices.Sorted(maps.Keys(p.RemotePages)) {
					rows = append(rows, pagesRow{uint32(i), node, p.RemotePages[node]})
				}
			}
			return reflect.ValueOf(rows), rows != nil
		},
		take: func(m *record.Meta, rows reflect.Value) {
			for _, r := range rows.Interface().([]pagesRow) {
				if uint64(r.Pressure) >= uint64(len(m.Pressure)) {
					continue // of a row that is not there: nothing to say it about
				}
				p := &m.Pressure[r.Pressure]
				if p.RemotePages == nil {
					p.RemotePages = map[string]uint64{}
				}
				p.RemotePages[r.Node] = r.Pages
			}
		},
	}
}

func codeTables() []nameTable {
	return []nameTable{
		tableOf("functions", "probed CUDA functions", true,
			func(m *record.Meta) *[]record.Function { return &m.Functions },
			func(i int, v record.Function) functionRow {
				return functionRow{uint32(i), v.Name, v.Base, v.Library, v.Group, v.Timed}
			},
			func(r functionRow) record.Function {
				return record.Function{Name: r.Name, Base: r.Base, Library: r.Library, Group: r.Group, Timed: r.Timed}
			}),
		tableOf("frames", "places in code", true,
			func(m *record.Meta) *[]record.Frame { return &m.Frames },
			func(i int, v record.Frame) frameRow { return frameRow{uint32(i), v.Kind, v.Name, v.File, v.Line} },
			func(r frameRow) record.Frame {
				return record.Frame{Kind: r.Kind, Name: r.Name, File: r.File, Line: r.Line}
			}),
		tableOf("stacks", "a tree of stacks: each row is a frame and its caller", true,
			func(m *record.Meta) *[]record.Node { return &m.Stacks },
			func(i int, v record.Node) stackRow { return stackRow{uint64(i) + 1, uint64(v.Parent + 1), v.Frame} },
			func(r stackRow) record.Node { return record.Node{Parent: int32(uint32(r.Parent)) - 1, Frame: r.Frame} }),
	}
}

func gpuTables() []nameTable {
	return []nameTable{
		ofGPU("agents", "agents in the target's processes", false, func(g *record.GPU) *[]record.Agent { return &g.Agents },
			func(_ int, v record.Agent) agentRow { return agentRow(v) }, func(r agentRow) record.Agent { return record.Agent(r) }),
		ofGPU("gpu_windows", "stretches of time in which GPU activity or launches were recorded whole", false, func(g *record.GPU) *[]record.GPUWindow { return &g.Windows },
			func(_ int, v record.GPUWindow) windowRow { return windowRow(v) }, func(r windowRow) record.GPUWindow { return record.GPUWindow(r) }),
		ofGPU("devices", "GPUs that the target uses", false, func(g *record.GPU) *[]record.Device { return &g.Devices },
			func(_ int, v record.Device) deviceRow { return deviceRow(v) }, func(r deviceRow) record.Device { return record.Device(r) }),
		ofGPU("streams", "CUDA streams", false, func(g *record.GPU) *[]record.Stream { return &g.Streams },
			func(_ int, v record.Stream) streamRow { return streamRow(v) }, func(r streamRow) record.Stream { return record.Stream(r) }),
		ofGPU("kernel_names", "kernel functions", true, func(g *record.GPU) *[]record.Kernel { return &g.Kernels },
			func(i int, v record.Kernel) kernelNameRow {
				return kernelNameRow{uint32(i) + 1, v.Name, v.Registers, v.StaticShared, v.Local}
			},
			func(r kernelNameRow) record.Kernel {
				return record.Kernel{Name: r.Name, Registers: r.Registers, StaticShared: r.StaticShared, Local: r.Local}
			}),
		ofGPU("range_names", "names of ranges", true, func(g *record.GPU) *[]string { return &g.Ranges },
			func(i int, v string) rangeNameRow { return rangeNameRow{uint32(i) + 1, v} }, func(r rangeNameRow) string { return r.Name }),
		ofGPU("attributes", "what scopes of the Python package carry", true, func(g *record.GPU) *[]string { return &g.Attributes },
			func(i int, v string) attributesRow { return attributesRow{uint32(i) + 1, v} }, func(r attributesRow) string { return r.Text }),
	}
}
