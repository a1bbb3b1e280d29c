package isc

import "slices"

// The pieces that tables are made of.

func times() []field {
	return []field{
		whole("start_ns", int64Kind, packDelta, wordTS, "ns, CLOCK_MONOTONIC, when it began; the manifest's from_ns and wall_from_ns make it a date"),
		whole("duration_ns", int64Kind, packDict, wordDur, "ns; 0 where flags lacks 1 (timed)"),
	}
}

func process() field {
	return part("pid", uint32Kind, packDict, wordIDs, 0, 32, "process, in the initial pid namespace")
}

func thread() field {
	return part("tid", uint32Kind, packDict, wordIDs, 32, 32, "thread, in the initial pid namespace")
}

func stream() field {
	return part("stream", uint32Kind, packDict, wordIDs, 32, 32, "CUPTI stream id; streams.stream; 4294967295: none")
}

func function(name, doc string) field { return part(name, int32Kind, packDict, wordHead, 0, 16, doc) }

func flags() field {
	return part("flags", int32Kind, packDict, wordHead, 24, 8, "bits: enum event_flags and enum offcpu_flags of bpf/event.h; 1 says that duration_ns was measured")
}

func ret(name, doc string) field {
	return part(name, int32Kind, packDict, wordHead, 32, 32, doc)
}

func args(from int) []field {
	all := []field{
		whole("arg0", uint64Kind, packDict, wordArg0, "first argument that the probe kept"),
		whole("arg1", uint64Kind, packDict, wordArg1, "second argument that the probe kept"),
		whole("arg2", uint64Kind, packDict, wordArg2, "third argument that the probe kept"),
		whole("arg3", uint64Kind, packDict, wordArg3, "fourth argument that the probe kept"),
	}
	return all[from:]
}

func grid(word uint8) []field {
	return []field{
		part("grid_x", int64Kind, packDict, word, 0, 32, "blocks"),
		part("grid_y", int32Kind, packDict, word, 32, 16, "blocks"),
		part("grid_z", int32Kind, packDict, word, 48, 16, "blocks"),
	}
}

func block(word uint8) []field {
	return []field{
		part("block_x", int32Kind, packDict, word, 0, 11, "threads"),
		part("block_y", int32Kind, packDict, word, 11, 11, "threads"),
		part("block_z", int32Kind, packDict, word, 22, 10, "threads"),
		part("shared_bytes", int64Kind, packDict, word, 32, 32, "dynamic shared memory, bytes"),
	}
}

// correlation splits the word that a row of the GPU has of the call behind it.
func correlation() []field {
	return []field{
		part("correlation", uint32Kind, packDelta, wordArg0, 0, 32, "CUPTI correlation id: equal to launches.result or calls.result where their flags have 8 (correlated)"),
		part("graph", uint32Kind, packDict, wordArg0, 32, 32, "CUPTI graph id; 0: not out of a graph"),
	}
}

func device() []field {
	return []field{
		part("device", int32Kind, packDict, wordHead, 0, 8, "GPU, as the process counts; devices.device"),
		part("context", int32Kind, packDict, wordHead, 8, 8, "CUPTI context id; 255: that or more"),
	}
}

func graphNode() field {
	return whole("graph_node", uint64Kind, packDict, wordArg1, "CUPTI graph node id; 0: not out of a graph")
}

// The tables.

const functionDoc = "functions.function"

const resultDoc = "result code of a timed call; correlation id where flags has 8; else the auxiliary parameter"

func callFields() []field {
	return slices.Concat(times(), []field{process(), thread(), function("function", functionDoc), flags(), packed(ret("result", resultDoc), packDelta)}, args(0))
}

func packed(f field, p packing) field {
	f.packing = p
	return f
}

func launchFields() []field {
	return slices.Concat(times(), []field{
		process(), thread(), function("function", functionDoc), flags(), packed(ret("result", resultDoc), packDelta),
		whole("function_handle", uint64Kind, packDict, wordArg0, "CUfunction, or the host stub of a runtime launch"),
		whole("stream_handle", uint64Kind, packDict, wordArg1, "CUstream; 0, 1, 2: the default streams"),
	}, grid(wordArg2), block(wordArg3))
}

func kernelFields() []field {
	return slices.Concat(times(), []field{process(), stream()}, device(), []field{
		flags(), ret("kernel", "kernel_names.kernel; 0: its name was lost"),
	}, correlation(), []field{graphNode()}, grid(wordArg2), block(wordArg3))
}

func copyFields() []field {
	return slices.Concat(times(), []field{process(), stream()}, device(), []field{
		flags(),
		part("copy_kind", int32Kind, packDict, wordHead, 32, 8, "CUpti_ActivityMemcpyKind: 1 host to device, 2 device to host, 8 device to device, 10 peer to peer"),
		part("source_memory", int32Kind, packDict, wordHead, 40, 8, "CUpti_ActivityMemoryKind: 1 pageable, 2 pinned, 3 device, 4 array, 5 managed"),
		part("destination_memory", int32Kind, packDict, wordHead, 48, 8, "CUpti_ActivityMemoryKind"),
		part("asynchronous", int32Kind, packDict, wordHead, 56, 8, "1: the call did not wait for it"),
	}, correlation(), []field{
		graphNode(),
		whole("bytes", int64Kind, packDict, wordArg2, "bytes copied"),
		part("source_device", uint32Kind, packDict, wordArg3, 0, 32, "GPU copied from"),
		part("destination_device", uint32Kind, packDict, wordArg3, 32, 32, "GPU copied to"),
	})
}

func setFields() []field {
	return slices.Concat(times(), []field{process(), stream()}, device(), []field{
		flags(), ret("memory", "CUpti_ActivityMemoryKind"),
	}, correlation(), []field{
		graphNode(),
		whole("bytes", int64Kind, packDict, wordArg2, "bytes set"),
		whole("value", uint64Kind, packDict, wordArg3, "value that was written"),
	})
}

func syncFields() []field {
	return slices.Concat(times(), []field{process(), stream()}, device(), []field{
		flags(), ret("sync_kind", "CUpti_ActivitySynchronizationType: 1 event, 2 stream waits for event, 3 stream, 4 context"),
	}, correlation(), []field{
		whole("arg1", uint64Kind, packDict, wordArg1, "not used: 0"),
		whole("cuda_event", uint64Kind, packDict, wordArg2, "CUPTI event id, of the kinds that have one"),
		whole("arg3", uint64Kind, packDict, wordArg3, "not used: 0"),
	})
}

func overheadFields() []field {
	return slices.Concat(times(), []field{
		process(), thread(), function("func", "not used: 0"), flags(),
		ret("overhead_kind", "CUpti_ActivityOverheadKind / 65536; 0: the driver's compiler"),
	}, args(0))
}

func rangeFields() []field {
	return slices.Concat(times(), []field{
		process(), thread(), function("origin", "0: NVTX; 1: a scope of the Python package"), flags(),
		ret("range", "range_names.range; 0: its name was lost"),
		whole("range_id", uint64Kind, packDelta, wordArg0, "id within the process; 0: none"),
		whole("parent_id", uint64Kind, packDict, wordArg1, "range_id of the range around it; 0: none"),
		whole("task", uint64Kind, packDict, wordArg2, "of a scope: asyncio task, from 1; 0: none"),
		whole("attributes", uint64Kind, packDict, wordArg3, "of a scope: attributes.attributes; 0: none"),
	})
}

func sampleFields() []field {
	return slices.Concat(times(), []field{
		process(), thread(), function("cause", "0: the sampling clock, the thread ran; 1: the thread left its CPU"), flags(),
		ret("cpu", "number of the CPU"),
		whole("stack", uint64Kind, packDict, wordArg0, "stacks.stack of the leaf; 0: nothing is known"),
		whole("origin", uint64Kind, packDict, wordArg1, "0: unwound whole; 1: spliced; 2: Python frames and the leaf; 3: the leaf only"),
	}, args(2))
}

func stateFields() []field {
	return slices.Concat(times(), []field{
		process(), thread(), function("syscall", "number of the system call; 65535: none; 65534: stopped; where flags has 4: enum offcpu_mark of bpf/event.h"), flags(),
		part("cpu_left", int32Kind, packDict, wordHead, 32, 16, "number of the CPU that it ran on before"),
		part("cpu_taken", int32Kind, packDict, wordHead, 48, 16, "number of the CPU that it ran on after"),
		whole("blocked_ns", int64Kind, packDict, wordArg0, "ns from start_ns to the wake-up; 0: preempted, or no wake-up was seen"),
		part("waker_tid", uint32Kind, packDict, wordArg1, 0, 32, "who woke it, or took its CPU; 0: an interrupt"),
		part("waker_pid", uint32Kind, packDict, wordArg1, 32, 32, "process of waker_tid"),
		whole("syscall_arg", uint64Kind, packDict, wordArg2, "first argument of the system call"),
		part("inode", int64Kind, packDict, wordArg3, 0, 48, "of the file that the system call is about; objects.inode"),
		part("file_type", int32Kind, packDict, wordArg3, 48, 4, "S_IFMT / 4096 of that file's mode: 1 pipe, 8 regular file, 12 socket"),
		part("arg3_high", int32Kind, packDict, wordArg3, 52, 12, "bits 52-63 of the system call's second argument, where it is not about a file"),
	})
}

func otherFields() []field {
	return slices.Concat(times(), []field{
		process(), thread(), function("func", "as the event has it"),
		part("kind", int32Kind, packDict, wordHead, kindShift, kindBits, "enum event_kind of bpf/event.h: 2 fork, 3 exec, 4 exit"),
		flags(), ret("ret", "exit: as wait(2) gives it"),
	}, args(0))
}
