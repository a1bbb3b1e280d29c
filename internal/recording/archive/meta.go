package archive

import (
	"maps"
	"reflect"
	"slices"

	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/loss"
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
	rows func(m *recording.Meta, from int) (reflect.Value, bool)
	// take stores rows in a Meta, whose GPU is set.
	take func(m *recording.Meta, rows reflect.Value)
	gpu  bool // the table is one of Meta.GPU
}

// tableOf makes a table of the slice that at points to in a Meta.
func tableOf[T, R any](
	name, doc string,
	grows bool,
	at func(*recording.Meta) *[]T,
	to func(int, T) R,
	back func(R) T,
) nameTable {
	return nameTable{
		name: name, doc: doc, row: reflect.TypeFor[R](), grows: grows,
		rows: func(m *recording.Meta, from int) (reflect.Value, bool) {
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
		take: func(m *recording.Meta, rows reflect.Value) {
			out := make([]T, 0, rows.Len())
			for _, r := range rows.Interface().([]R) {
				out = append(out, back(r))
			}
			*at(m) = out
		},
	}
}

// ofGPU makes a table of a slice in Meta.GPU.
func ofGPU[T, R any](
	name, doc string,
	grows bool,
	at func(*recording.GPU) *[]T,
	to func(int, T) R,
	back func(R) T,
) nameTable {
	t := tableOf(name, doc, grows, func(m *recording.Meta) *[]T {
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
	return slices.Concat(processTables(), requestTables(), stateTables(), codeTables(), gpuTables(),
		[]nameTable{codesTable()})
}

// processTables name what the target is made of.
func processTables() []nameTable {
	return []nameTable{
		tableOf("processes",
			"processes of the target; a reused pid has a row of its own", false,
			func(m *recording.Meta) *[]recording.Process { return &m.Processes },
			func(_ int, v recording.Process) processRow { return processRow(v) },
			func(r processRow) recording.Process { return recording.Process(r) }),
		tableOf("threads",
			"names of the target's threads", false,
			func(m *recording.Meta) *[]recording.Thread { return &m.Threads },
			func(_ int, v recording.Thread) threadRow { return threadRow(v) },
			func(r threadRow) recording.Thread { return recording.Thread(r) }),
		tableOf("other_threads",
			"threads of other processes that woke or preempted a thread of the target", false,
			func(m *recording.Meta) *[]recording.Thread { return &m.OtherThreads },
			func(_ int, v recording.Thread) threadRow { return threadRow(v) },
			func(r threadRow) recording.Thread { return recording.Thread(r) }),
		tableOf("libraries",
			"mapped copies of libcuda and libcudart, and how they are probed", false,
			func(m *recording.Meta) *[]recording.Library { return &m.Libraries },
			func(_ int, v recording.Library) libraryRow { return libraryRow(v) },
			func(r libraryRow) recording.Library { return recording.Library(r) }),
		tableOf("sources",
			"sources of events and their states", false,
			func(m *recording.Meta) *[]recording.Source { return &m.Sources },
			func(_ int, v recording.Source) sourceRow { return sourceRow(v) },
			func(r sourceRow) recording.Source { return recording.Source(r) }),
	}
}

// requestTables have what the target served.
func requestTables() []nameTable {
	return []nameTable{
		tableOf("requests",
			"HTTP requests served, with times and token numbers; content only with --capture-content", false,
			func(m *recording.Meta) *[]recording.Request { return &m.Requests },
			func(_ int, v recording.Request) requestRow { return requestRow(v) },
			func(r requestRow) recording.Request { return recording.Request(r) }),
		tableOf("steps",
			"steps of inference engines, as the engine told its API server", false,
			func(m *recording.Meta) *[]recording.Step { return &m.Steps },
			func(_ int, v recording.Step) stepRow { return stepRow(v) },
			func(r stepRow) recording.Step { return recording.Step(r) }),
		tableOf("engine_requests", "requests as an inference engine sees them; no content", false,
			func(m *recording.Meta) *[]recording.EngineRequest { return &m.EngineRequests },
			func(_ int, v recording.EngineRequest) engineRequestRow { return engineRequestRow(v) },
			func(r engineRequestRow) recording.EngineRequest { return recording.EngineRequest(r) }),
	}
}

// stateTables have losses, and states of the target and of the machine.
func stateTables() []nameTable {
	return []nameTable{
		tableOf("losses", "data known to be missing or uncertain", false,
			func(m *recording.Meta) *[]loss.Loss { return &m.Losses },
			func(_ int, v loss.Loss) lossRow { return lossRow(v) }, func(r lossRow) loss.Loss { return loss.Loss(r) }),
		tableOf("objects",
			"files and sockets that threads waited for", false,
			func(m *recording.Meta) *[]recording.Object { return &m.Objects },
			func(_ int, v recording.Object) objectRow { return objectRow(v) },
			func(r objectRow) recording.Object { return recording.Object(r) }),
		tableOf("pressure", "throttling, memory stalls and page faults, sampled once a second", false,
			func(m *recording.Meta) *[]recording.Pressure { return &m.Pressure }, pressureTo, pressureFrom),
		pagesTable(),
		tableOf("sensors",
			"power, clocks, temperature and memory of the machine's GPUs, sampled ten times a second", false,
			func(m *recording.Meta) *[]recording.Sensor { return &m.Sensors },
			func(_ int, v recording.Sensor) sensorRow { return sensorRow(v) },
			func(r sensorRow) recording.Sensor { return recording.Sensor(r) }),
		tableOf("communicators", "NCCL's communicators: ranks and GPUs", false,
			func(m *recording.Meta) *[]recording.Communicator { return &m.Communicators },
			func(_ int, v recording.Communicator) communicatorRow { return communicatorRow(v) },
			func(r communicatorRow) recording.Communicator { return recording.Communicator(r) }),
	}
}

func pressureTo(_ int, p recording.Pressure) pressureRow {
	return pressureRow{p.TS, p.Throttled, p.Periods, p.MemoryStall, p.MajorFaults, p.GPUNode, p.FreeCPU}
}

func pressureFrom(r pressureRow) recording.Pressure {
	return recording.Pressure{
		TS:          r.TS,
		Throttled:   r.Throttled,
		Periods:     r.Periods,
		MemoryStall: r.MemoryStall,
		MajorFaults: r.MajorFaults,
		GPUNode:     r.GPUNode,
		FreeCPU:     r.FreeCPU,
	}
}

// pagesTable holds the maps of pressure, a row for each NUMA node. It comes after pressure.
func pagesTable() nameTable {
	return nameTable{
		name: "numa_pages", doc: "memory pages of the target by NUMA node, for each row of pressure",
		row: reflect.TypeFor[pagesRow](),
		rows: func(m *recording.Meta, _ int) (reflect.Value, bool) {
			var rows []pagesRow
			for i, p := range m.Pressure {
				for _, node := range slices.Sorted(maps.Keys(p.RemotePages)) {
					rows = append(rows, pagesRow{uint32(i), node, p.RemotePages[node]})
				}
			}
			return reflect.ValueOf(rows), rows != nil
		},
		take: func(m *recording.Meta, rows reflect.Value) {
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
			func(m *recording.Meta) *[]recording.Function { return &m.Functions },
			func(i int, v recording.Function) functionRow {
				return functionRow{uint32(i), v.Name, v.Base, v.Library, v.Group, v.Timed}
			},
			func(r functionRow) recording.Function {
				return recording.Function{
					Name:    r.Name,
					Base:    r.Base,
					Library: r.Library,
					Group:   r.Group,
					Timed:   r.Timed,
				}
			}),
		tableOf("frames", "code locations", true,
			func(m *recording.Meta) *[]recording.Frame { return &m.Frames },
			func(i int, v recording.Frame) frameRow { return frameRow{uint32(i), v.Kind, v.Name, v.File, v.Line} },
			func(r frameRow) recording.Frame {
				return recording.Frame{Kind: r.Kind, Name: r.Name, File: r.File, Line: r.Line}
			}),
		tableOf("stacks", "call tree: each row is a frame and a link to its caller", true,
			func(m *recording.Meta) *[]recording.Node { return &m.Stacks },
			func(i int, v recording.Node) stackRow { return stackRow{uint64(i) + 1, uint64(v.Parent + 1), v.Frame} },
			func(r stackRow) recording.Node {
				return recording.Node{Parent: int32(uint32(r.Parent)) - 1, Frame: r.Frame}
			}),
	}
}

func gpuTables() []nameTable {
	return []nameTable{
		ofGPU("agents", "GPU agents in the target's processes", false,
			func(g *recording.GPU) *[]recording.Agent { return &g.Agents },
			func(_ int, v recording.Agent) agentRow { return agentRow(v) },
			func(r agentRow) recording.Agent { return recording.Agent(r) }),
		ofGPU("gpu_windows", "windows in which all GPU activity or all launches were recorded", false,
			func(g *recording.GPU) *[]recording.GPUWindow { return &g.Windows },
			func(_ int, v recording.GPUWindow) windowRow { return windowRow(v) },
			func(r windowRow) recording.GPUWindow { return recording.GPUWindow(r) }),
		ofGPU("devices", "GPUs that the target uses", false,
			func(g *recording.GPU) *[]recording.Device { return &g.Devices },
			func(_ int, v recording.Device) deviceRow { return deviceRow(v) },
			func(r deviceRow) recording.Device { return recording.Device(r) }),
		ofGPU("streams", "CUDA streams", false,
			func(g *recording.GPU) *[]recording.Stream { return &g.Streams },
			func(_ int, v recording.Stream) streamRow { return streamRow(v) },
			func(r streamRow) recording.Stream { return recording.Stream(r) }),
		ofGPU(
			"kernel_names",
			"kernel functions",
			true,
			func(g *recording.GPU) *[]recording.Kernel { return &g.Kernels },
			func(i int, v recording.Kernel) kernelNameRow {
				return kernelNameRow{uint32(i) + 1, v.Name, v.Registers, v.StaticShared, v.Local}
			},
			func(r kernelNameRow) recording.Kernel {
				return recording.Kernel{
					Name:         r.Name,
					Registers:    r.Registers,
					StaticShared: r.StaticShared,
					Local:        r.Local,
				}
			},
		),
		ofGPU("range_names", "names of ranges", true, func(g *recording.GPU) *[]string { return &g.Ranges },
			func(i int, v string) rangeNameRow { return rangeNameRow{uint32(i) + 1, v} },
			func(r rangeNameRow) string { return r.Name }),
		ofGPU("attributes", "attributes of Python scopes", true,
			func(g *recording.GPU) *[]string { return &g.Attributes },
			func(i int, v string) attributesRow { return attributesRow{uint32(i) + 1, v} },
			func(r attributesRow) string { return r.Text }),
	}
}
