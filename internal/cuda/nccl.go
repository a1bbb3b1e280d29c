package cuda

// A communicator is an address of the process's own. Where a function has more than one slot of these, they lie as
// Collective reads them.

// ncclRows are NCCL's collective operations and what makes and ends communicators: nccl.h of 2.19 to 2.32; RCCL exports
// the same names with the same parameters. Work begins at the end of the outermost group.
func ncclRows() []Row {
	return []Row{
		exchange("ncclAllReduce", countAt(3), commAt(6), streamAt(7)).typed(4).configured(),
		exchange("ncclReduceScatter", countAt(3), commAt(6), streamAt(7)).typed(4).configured(),
		exchange("ncclAllGather", countAt(3), commAt(5), streamAt(6)).typed(4).configured(),
		exchange("ncclAlltoAll", countAt(3), commAt(5), streamAt(6)).typed(4).configured(),
		exchange("ncclAllToAll", countAt(3), commAt(5), streamAt(6)).typed(4),
		exchange("ncclBroadcast", countAt(3), commAt(6), streamAt(7)).typed(4).configured(),
		exchange("ncclBcast", countAt(2), commAt(5), streamAt(6)).typed(3),
		exchange("ncclReduce", countAt(3), commAt(7), streamAt(8)).typed(4).configured(),
		exchange("ncclGather", countAt(3), commAt(6), streamAt(7)).typed(4).configured(),
		exchange("ncclScatter", countAt(3), commAt(6), streamAt(7)).typed(4).configured(),
		exchange("ncclSend", countAt(2), commAt(5), streamAt(6)).typed(3),
		exchange("ncclRecv", countAt(2), commAt(5), streamAt(6)).typed(3),
		entry(groupCollective, "ncclGroupStart"),
		timed(groupCollective, "ncclGroupEnd"),
		// The 128 bytes of a unique id by value take no register on x86-64; on arm64 they are one, by address.
		timed(groupCollective, "ncclCommInitRank", commAt(1), countAt(2)).made(),
		timed(groupCollective, "ncclCommInitRankConfig", commAt(1), countAt(2)).made(),
		timed(groupCollective, "ncclCommInitAll", commAt(1), countAt(2)).made(),
		timed(groupCollective, "ncclCommSplit", commAt(1)),
		timed(groupCollective, "ncclCommDestroy", commAt(1)),
		timed(groupCollective, "ncclCommFinalize", commAt(1)),
		timed(groupCollective, "ncclCommAbort", commAt(1)),
	}
}

// exchange is a row for an operation in which data goes between GPUs.
func exchange(name string, count, comm, stream slot) Row {
	r := timed(groupCollective, name, count, comm)
	r.Slots[3] = stream // whose upper byte has room for the type
	return r
}

// configured declares that the operation is also exported with a configuration, as its last parameter (2.32).
func (r Row) configured() Row { return r.only(r.Name, r.Name+"Config") }

// Exchanges reports whether it is an operation in which data goes between GPUs.
func (r *Row) Exchanges() bool { return r.Aux.Meaning == meansDataType }

// typed declares which parameter is the enum ncclDataType_t.
func (r Row) typed(param uint8) Row { r.Aux = slot{param, meansDataType}; return r }

func countAt(param uint8) slot { return slot{param, meansCount} }
func commAt(param uint8) slot  { return slot{param, meansCommunicator} }

// Exchange is what a call of NCCL asks for.
type Exchange struct {
	Communicator uint64 // its address in the process
	Elements     uint64 // of what one rank gives (of all-to-all and scatter, to each), or of reduce-scatter, gets
	Type         DataKind
	Stream       uint64 // as Call.Stream, but for a library that was built for default streams per thread
}

// Bytes is Elements in bytes.
func (x *Exchange) Bytes() uint64 { return times(x.Elements, x.Type.size()) }

// ReadExchange reads the arguments of an event of a function whose name exchange was given.
func ReadExchange(args *[4]uint64) Exchange {
	x := Exchange{Elements: args[0], Communicator: args[1], Stream: args[3] & lowBytes, Type: DataKind(args[3] >> 56)}
	if x.Stream == legacyHandle {
		x.Stream = LegacyStream
	}
	return x
}

// DataKind is enum ncclDataType_t.
type DataKind uint8

// dataKinds are their names and sizes in bytes, by number (nccl.h 2.32).
var dataKinds = []struct {
	name  string
	bytes uint64
}{
	{"int8", 1},
	{"uint8", 1},
	{"int32", 4},
	{"uint32", 4},
	{"int64", 8},
	{"uint64", 8},
	{"float16", 2},
	{"float32", 4},
	{"float64", 8},
	{"bfloat16", 2},
	{"float8e4m3", 1},
	{"float8e5m2", 1},
}

// String returns the type's name; "" where it is none of NCCL's.
func (k DataKind) String() string {
	if int(k) >= len(dataKinds) {
		return ""
	}
	return dataKinds[k].name
}

func (k DataKind) size() uint64 {
	if int(k) >= len(dataKinds) {
		return 0
	}
	return dataKinds[k].bytes
}
