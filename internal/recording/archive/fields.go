package archive

import "slices"

// The pieces that tables are made of.

func times() []field {
	return []field{
		whole(
			"start_ns",
			int64Kind,
			packDelta,
			wordTS,
			"start, CLOCK_MONOTONIC ns; the manifest's from_ns and wall_from_ns convert it to wall-clock time",
		),
		whole("duration_ns", int64Kind, packDict, wordDur, "ns; 0 unless flags has 1 (timed)"),
	}
}

func process() field {
	return part("pid", uint32Kind, packDict, wordIDs, 0, 32, "process id in the initial pid namespace")
}

func thread() field {
	return part("tid", uint32Kind, packDict, wordIDs, 32, 32, "thread id in the initial pid namespace")
}

func stream() field {
	return part("stream", uint32Kind, packDict, wordIDs, 32, 32, "CUPTI stream id (streams.stream); 4294967295: none")
}

func function(name, doc string) field { return part(name, int32Kind, packDict, wordHead, 0, 16, doc) }

func flags() field {
	return part("flags", int32Kind, packDict, wordHead, 24, 8,
		"bit mask of enum event_flags and enum offcpu_flags (bpf/event.h); 1: duration_ns was measured")
}

func ret(name, doc string) field {
	return part(name, int32Kind, packDict, wordHead, 32, 32, doc)
}

func args(from int) []field {
	all := []field{
		whole("arg0", uint64Kind, packDict, wordArg0, "first recorded argument"),
		whole("arg1", uint64Kind, packDict, wordArg1, "second recorded argument"),
		whole("arg2", uint64Kind, packDict, wordArg2, "third recorded argument"),
		whole("arg3", uint64Kind, packDict, wordArg3, "fourth recorded argument"),
	}
	return all[from:]
}

func grid(word uint8) []field {
	return []field{
		part("grid_x", int64Kind, packDict, word, 0, 32, "grid size in blocks, x"),
		part("grid_y", int32Kind, packDict, word, 32, 16, "grid size in blocks, y"),
		part("grid_z", int32Kind, packDict, word, 48, 16, "grid size in blocks, z"),
	}
}

func block(word uint8) []field {
	return []field{
		part("block_x", int32Kind, packDict, word, 0, 11, "block size in threads, x"),
		part("block_y", int32Kind, packDict, word, 11, 11, "block size in threads, y"),
		part("block_z", int32Kind, packDict, word, 22, 10, "block size in threads, z"),
		part("shared_bytes", int64Kind, packDict, word, 32, 32, "dynamic shared memory in bytes"),
	}
}

// correlation splits the word that a row of the GPU has of the call behind it.
func correlation() []field {
	return []field{
		part(
			"correlation",
			uint32Kind,
			packDelta,
			wordArg0,
			0,
			32,
			"CUPTI correlation id; equals launches.result or calls.result of a row whose flags have 8 (correlated)",
		),
		part("graph", uint32Kind, packDict, wordArg0, 32, 32, "CUPTI graph id; 0: not part of a graph"),
	}
}

func device() []field {
	return []field{
		part("device", int32Kind, packDict, wordHead, 0, 8, "device index within the process (devices.device)"),
		part("context", int32Kind, packDict, wordHead, 8, 8, "CUPTI context id; 255: 255 or higher"),
	}
}

func graphNode() field {
	return whole("graph_node", uint64Kind, packDict, wordArg1, "CUPTI graph node id; 0: not part of a graph")
}

// The tables.

const functionDoc = "functions.function"

const resultDoc = "correlation id if flags has 8; else the result code if flags has 1; else the auxiliary parameter"

func callFields() []field {
	return slices.Concat(
		times(),
		[]field{
			process(),
			thread(),
			function("function", functionDoc),
			flags(),
			packed(ret("result", resultDoc), packDelta),
		},
		args(0),
	)
}

func packed(f field, p packing) field {
	f.packing = p
	return f
}

func launchFields() []field {
	return slices.Concat(times(), []field{
		process(), thread(), function("function", functionDoc), flags(), packed(ret("result", resultDoc), packDelta),
		whole("function_handle", uint64Kind, packDict, wordArg0, "CUfunction; the host stub for a runtime launch"),
		whole("stream_handle", uint64Kind, packDict, wordArg1, "CUstream; 0, 1 and 2 are the default streams. If flags has 16, bits 48 to 63 are the index of NCCL's function"),
	}, grid(wordArg2), block(wordArg3))
}

func kernelFields() []field {
	return slices.Concat(times(), []field{process(), stream()}, device(), []field{
		flags(), ret("kernel", "kernel_names.kernel; 0: the name was lost"),
	}, correlation(), []field{graphNode()}, grid(wordArg2), block(wordArg3))
}

func copyFields() []field {
	return slices.Concat(times(), []field{process(), stream()}, device(), []field{
		flags(),
		part(
			"copy_kind",
			int32Kind,
			packDict,
			wordHead,
			32,
			8,
			"CUpti_ActivityMemcpyKind: 1 host to device, 2 device to host, 8 device to device, 10 peer to peer",
		),
		part("source_memory", int32Kind, packDict, wordHead, 40, 8,
			"CUpti_ActivityMemoryKind: 1 pageable, 2 pinned, 3 device, 4 array, 5 managed"),
		part("destination_memory", int32Kind, packDict, wordHead, 48, 8, "CUpti_ActivityMemoryKind"),
		part("asynchronous", int32Kind, packDict, wordHead, 56, 8, "1: the call did not wait for the copy"),
	}, correlation(), []field{
		graphNode(),
		whole("bytes", int64Kind, packDict, wordArg2, "bytes copied"),
		part("source_device", uint32Kind, packDict, wordArg3, 0, 32, "source GPU"),
		part("destination_device", uint32Kind, packDict, wordArg3, 32, 32, "destination GPU"),
	})
}

func setFields() []field {
	return slices.Concat(times(), []field{process(), stream()}, device(), []field{
		flags(), ret("memory", "CUpti_ActivityMemoryKind"),
	}, correlation(), []field{
		graphNode(),
		whole("bytes", int64Kind, packDict, wordArg2, "bytes set"),
		whole("value", uint64Kind, packDict, wordArg3, "value written"),
	})
}

func syncFields() []field {
	return slices.Concat(times(), []field{process(), stream()}, device(), []field{
		flags(), ret("sync_kind",
			"CUpti_ActivitySynchronizationType: 1 event, 2 stream waits for event, 3 stream, 4 context"),
	}, correlation(), []field{
		whole("arg1", uint64Kind, packDict, wordArg1, "unused, 0"),
		whole("cuda_event", uint64Kind, packDict, wordArg2, "CUPTI event id, for the kinds that have one"),
		whole("arg3", uint64Kind, packDict, wordArg3, "unused, 0"),
	})
}

func overheadFields() []field {
	return slices.Concat(times(), []field{
		process(), thread(), function("func", "unused, 0"), flags(),
		ret("overhead_kind", "CUpti_ActivityOverheadKind / 65536; 0: the driver's compiler"),
	}, args(0))
}

func rangeFields() []field {
	return slices.Concat(times(), []field{
		process(), thread(), function("origin", "0: NVTX; 1: Python scope"), flags(),
		ret("range", "range_names.range; 0: the name was lost"),
		whole("range_id", uint64Kind, packDelta, wordArg0, "id of the range within the process; 0: none"),
		whole("parent_id", uint64Kind, packDict, wordArg1, "range_id of the enclosing range; 0: none"),
		whole("task", uint64Kind, packDict, wordArg2, "Python scope: number of the asyncio task, from 1; 0: none"),
		whole("attributes", uint64Kind, packDict, wordArg3, "Python scope: attributes.attributes; 0: none"),
	})
}

func sampleFields() []field {
	return slices.Concat(times(), []field{
		process(), thread(), function("cause",
			"0: sampling clock, the thread was running; 1: the thread left its CPU"), flags(),
		ret("cpu", "CPU number"),
		whole("stack", uint64Kind, packDict, wordArg0, "stacks.stack of the leaf; 0: no stack"),
		whole(
			"origin",
			uint64Kind,
			packDict,
			wordArg1,
			"0: complete stack; 1: Python frames, native frames incomplete; 2: Python frames and the leaf; 3: leaf "+
				"only",
		),
	}, args(2))
}

func stateFields() []field {
	return slices.Concat(times(), []field{
		process(), thread(), function(
			"syscall",
			"system call number; 65535: none; 65534: stopped; if flags has 4: enum offcpu_mark (bpf/event.h)",
		), flags(),
		part("cpu_left", int32Kind, packDict, wordHead, 32, 16, "CPU before"),
		part("cpu_taken", int32Kind, packDict, wordHead, 48, 16, "CPU after"),
		whole("blocked_ns", int64Kind, packDict, wordArg0,
			"ns from start_ns to the wake-up; 0: preempted, or no wake-up seen"),
		part("waker_tid", uint32Kind, packDict, wordArg1, 0, 32,
			"thread that woke or preempted it; 0: an interrupt or the idle task"),
		part("waker_pid", uint32Kind, packDict, wordArg1, 32, 32, "process of waker_tid"),
		whole("syscall_arg", uint64Kind, packDict, wordArg2, "first argument of the system call"),
		part("inode", int64Kind, packDict, wordArg3, 0, 48,
			"inode of the file that the system call is about (objects.inode)"),
		part("file_type", int32Kind, packDict, wordArg3, 48, 4,
			"type of that file, mode >> 12: 1 pipe, 8 regular file, 12 socket"),
		part(
			"arg3_high",
			int32Kind,
			packDict,
			wordArg3,
			52, 12,
			"bits 52-63 of the system call's second argument, if it is not about a file (the lower bits are in "+
				"file_type and inode)",
		),
	})
}

// requestChunkFields describe a write of a part of an answer.
func requestChunkFields() []field {
	return slices.Concat(times(), []field{
		process(), thread(), function("func", "unused, 0"), flags(), ret("ret", "unused, 0"),
		whole("request", uint64Kind, packDict, wordArg0, "requests.request"),
		whole("parts", int64Kind, packDict, wordArg1, "parts with content in this write"),
		whole("arg2", uint64Kind, packDict, wordArg2, "unused, 0"),
		whole("arg3", uint64Kind, packDict, wordArg3, "unused, 0"),
	})
}

// lifecycleFields describe fork, exec and exit (bpf/process.bpf.c).
func lifecycleFields() []field {
	return rawFields(rawDocs{
		function: "unused, 0", kind: "enum event_kind (bpf/event.h): 2 fork, 3 exec, 4 exit",
		ret: "exit: status as wait(2) returns it",
		args: [4]string{
			"fork: pid of the parent",
			"exec: first 8 bytes of the new comm",
			"exec: last 8 bytes of the new comm",
			"fourth word of the event",
		},
	})
}

// otherFields describe skipped calls, and whatever newer writers add.
func otherFields() []field {
	return rawFields(rawDocs{
		function: "kind 13: functions.function", kind: "enum event_kind (bpf/event.h): 13 skipped calls",
		ret: "kind 13: about one call in this many has its own row in calls",
		args: [4]string{
			"kind 13: calls made by the program itself",
			"kind 13: calls made inside other CUDA calls",
			"third word of the event",
			"fourth word of the event",
		},
	})
}

// rawDocs are the descriptions of columns whose meaning depends on the kind of the event.
type rawDocs struct {
	function, kind, ret string
	args                [4]string
}

// rawFields are the words of an event as they are.
func rawFields(d rawDocs) []field {
	last := args(0)
	for i := range last {
		last[i].doc = d.args[i]
	}
	return slices.Concat(times(), []field{
		process(), thread(), function("func", d.function),
		part("kind", int32Kind, packDict, wordHead, kindShift, kindBits, d.kind),
		flags(), ret("ret", d.ret),
	}, last)
}
