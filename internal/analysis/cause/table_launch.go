package cause

// launchRows are the causes that lie in how the program uses the GPU's queues.
func launchRows() []Cause { //nolint:funlen // a table
	return []Cause{
		{
			ID: LaunchOverhead, Key: "launch-overhead", Title: "the CPU cannot launch as fast as the GPU runs",
			Group: Framework,
			Means: "Each kernel is over before the next one is launched: the GPU waits for the framework's work " +
				"for each operation (in eager PyTorch some 20 µs) and for the launch itself (5 to 10 µs), again and " +
				"again.",
			Proves: "Gaps between kernels end 5 to 15 µs after a launch that came after the gap had begun, and the " +
				"thread was launching, or in the framework's own code, meanwhile.",
			Refutes: "A launch that had been queued before the gap began (dependency); work of the program between " +
				"the launches (python-work, native-work); a synchronization before (host-sync).",
			Changes: []Change{
				{
					inPyTorch,
					"Let torch.compile fuse operations and record a step as a CUDA graph, which is one launch",
					"model = torch.compile(model, mode=\"reduce-overhead\")",
				},
				{
					inPyTorch,
					"Record the step as a CUDA graph by hand, where shapes do not change",
					"static_in = torch.zeros(shape, device=\"cuda\")\nside = torch.cuda.Stream()\n" +
						"side.wait_stream(torch.cuda.current_stream())\n" +
						"with torch.cuda.stream(side), torch.no_grad():\n    for _ in range(3):\n" +
						"        model(static_in)  # warm-up\ntorch.cuda.current_stream().wait_stream(side)\n" +
						"graph = torch.cuda.CUDAGraph()\nwith torch.no_grad(), torch.cuda.graph(graph):\n" +
						"    static_out = model(static_in)\n\nstatic_in.copy_(batch)\ngraph.replay()\n" +
						"result = static_out.clone()",
				},
				{
					inPyTorch,
					"Do to many small tensors at once what is done to each: an optimizer with foreach=True or fused=True, " +
						"torch._foreach_add_",
					"optimizer = torch.optim.AdamW(model.parameters(), fused=True)",
				},
				{
					inCUDA,
					"Fuse kernels, or record them once with stream capture and launch the graph",
					"cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);\nstep(stream);\n" +
						"cudaStreamEndCapture(stream, &graph);\ncudaGraphInstantiate(&exec, graph, 0);  // CUDA 12\n" +
						"// each step:\ncudaGraphLaunch(exec, stream);",
				},
				{inServing, "Give each launch more to do: a larger batch costs the same number of launches", ""},
			},
		},
		{
			ID: HostSync, Key: "host-sync", Title: "the host waits for the GPU at every step, and the queue runs empty",
			Group: Framework,
			Means: "A thread waits until the GPU is done (.item(), .cpu(), print of a tensor, an if on a tensor, " +
				"synchronize) and only then launches the next work. From the end of the GPU's work until the first " +
				"new kernel runs, the GPU has nothing to do.",
			Proves: "The gap began when the work that a synchronizing call waited for had ended, the same thread " +
				"returned from it, and launched what ended the gap.",
			Refutes: "Work of the program between the return and the next launch, beyond what launching takes: that " +
				"is the cause then (python-work, preprocessing, ...).",
			Changes: []Change{
				{
					inPyTorch,
					"Leave values on the GPU: .item(), .cpu(), .tolist(), bool(tensor), tensor.nonzero() and boolean " +
						"masks all wait; PyTorch can warn of each",
					"torch.cuda.set_sync_debug_mode(\"warn\")",
				},
				{
					inPyTorch,
					"Look at results later, or less often: test a stop condition every few steps, and collect losses " +
						"or tokens in a tensor",
					"tokens = torch.empty(batch, steps, dtype=torch.long, device=\"cuda\")\nfor i in range(steps):\n" +
						"    tokens[:, i] = step()\n    if i % 16 == 15 and bool(finished.all()):  # one wait in 16 " +
						"steps\n        break\nresult = tokens.cpu()",
				},
				{
					inPyTorch,
					"Copy results back without waiting, into pinned memory, launch the next step, and wait for the " +
						"copy alone",
					"host = torch.empty(shape, dtype=torch.long, pin_memory=True)  # once\n\n" +
						"host.copy_(tokens, non_blocking=True)\ndone = torch.cuda.Event()\ndone.record()\n" +
						"launch_next_step()\ndone.synchronize()  # now host may be read",
				},
				{
					inCUDA,
					"Wait for an event of the step before the last instead of for the stream, so that one step is " +
						"always queued",
					"cudaEventRecord(done[i % 2], stream);\nlaunch_step(i + 1, stream);\n" +
						"cudaEventSynchronize(done[i % 2]);",
				},
				{
					inCUDA,
					"Copy results into pinned memory without waiting, and read those of a step while the next one runs",
					"cudaMallocHost(&host[0], bytes);  // once, and host[1]\n" +
						"cudaMemcpyAsync(host[i % 2], result, bytes, cudaMemcpyDeviceToHost, stream);",
				},
			},
		},
	}
}

// memoryRows are the causes that lie in copies, allocation and dependencies.
func memoryRows() []Cause { //nolint:funlen // a table
	return []Cause{
		{
			ID: SyncCopy, Key: "sync-copy", Title: "copies hold their caller, or go through pageable memory",
			Group: Framework,
			Means: "A copy between host and GPU that is synchronous, or whose host memory is not pinned, holds the " +
				"thread that would launch. Pageable memory is copied twice: by the CPU into a pinned buffer of the " +
				"driver, and then by the GPU.",
			Proves: "The thread was in a copy call that returns when the copy is done, or the copy's record says " +
				"pageable memory, while the GPU ran nothing.",
			Refutes: "Pinned memory with an asynchronous copy; a copy of a few bytes back to the host, which is a " +
				"wait for a result (host-sync).",
			Changes: []Change{
				{
					inPyTorch,
					"Pin the memory and copy asynchronously: one without the other changes nothing",
					"loader = DataLoader(dataset, batch_size=32, pin_memory=True)\nfor batch in loader:\n" +
						"    batch = batch.to(\"cuda\", non_blocking=True)",
				},
				{
					inPyTorch,
					"Reuse one pinned buffer; pinning memory anew for each batch costs more than it gains",
					"staging = torch.empty(shape, dtype=torch.float32, pin_memory=True)  # once\n\n" +
						"staging.copy_(batch)\ninput.copy_(staging, non_blocking=True)\n" +
						"# wait for an event recorded here before staging is written again",
				},
				{
					inCUDA,
					"Use pinned memory and cudaMemcpyAsync in a stream of its own",
					"cudaMallocHost(&host, bytes);  // once\n" +
						"cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, copy_stream);\n" +
						"cudaEventRecord(copied, copy_stream);\ncudaStreamWaitEvent(compute_stream, copied, 0);",
				},
				{
					inCUDA,
					"Pin memory that somebody else allocates where it is, once",
					"cudaHostRegister(host, bytes, cudaHostRegisterDefault);  // once, not for each copy",
				},
			},
		},
		{
			ID: Allocation, Key: "allocation", Title: "memory is allocated, freed or pinned during inference",
			Group: Framework,
			Means: "cudaMalloc, cudaFree, pinning and their kin take 10 µs to milliseconds, and cudaFree waits " +
				"until the GPU is idle. In PyTorch they mean that the caching allocator grows, or gives memory back.",
			Proves:  "The thread that the GPU waits for was in a call that allocates, frees, pins or maps memory.",
			Refutes: "Allocations that the caching allocator or a pool serves: those make no such call.",
			Changes: []Change{
				{
					inPyTorch,
					"Let the caching allocator keep its memory: no torch.cuda.empty_cache() in a loop, and segments " +
						"that can grow, so that new shapes need no new ones",
					"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python infer.py",
				},
				{
					inPyTorch,
					"Allocate outputs and caches once, for the largest size, and write into them",
					"out = torch.empty(max_batch, hidden, device=\"cuda\")\n" +
						"torch.matmul(x, weight, out=out[: x.shape[0]])",
				},
				{
					inCUDA,
					"Allocate from a pool in stream order, and let the pool keep what is freed",
					"cudaMemPool_t pool;\nuint64_t keep = UINT64_MAX;\ncudaDeviceGetDefaultMemPool(&pool, device);\n" +
						"cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep);\n\n" +
						"cudaMallocAsync(&p, bytes, stream);\ncudaFreeAsync(p, stream);",
				},
				{
					inCUDA,
					"Allocate once when the program starts, for the largest size, and reuse it",
					"cudaMalloc(&workspace, largest);  // once",
				},
				{
					inPyTorch,
					"Pin host memory once, when the program starts, and reuse it",
					"staging = torch.empty(max_batch, width, pin_memory=True)",
				},
				{
					inCUDA,
					"Pin host memory once, when the program starts, and reuse it",
					"cudaMallocHost(&staging, largest);  // once",
				},
			},
		},
		{
			ID: Dependency, Key: "dependency", Title: "queued work waits for another stream, GPU or host function",
			Group: Framework,
			Means: "The next kernel was launched in time, but may not begin: its stream waits for an event of " +
				"another stream or GPU, or for a function on the host that was put into the stream.",
			Proves: "The launch of what ended the gap returned long before it began (more than 0.1 ms; a queue that " +
				"is empty takes 10 µs), and its stream waits for an event, or nothing else of the GPU's ran.",
			Refutes: "A launch that came after the gap had begun; an event of another GPU (pipeline-bubble).",
			Changes: []Change{
				{
					inCUDA,
					"Find the event that the stream waits for, and record it earlier: right after the work that is " +
						"needed, not after all of the stream",
					"produce(stream_a);\ncudaEventRecord(ready, stream_a);  // here,\n" +
						"other_work(stream_a);              // not after this\n" +
						"cudaStreamWaitEvent(stream_b, ready, 0);",
				},
				{
					inCUDA,
					"Keep functions on the host out of the streams that compute (cudaLaunchHostFunc, " +
						"cudaStreamAddCallback); poll an event from a thread instead",
					"",
				},
				{
					inPyTorch,
					"Replace wait_stream by wait_event, which waits for one thing and not for everything that was " +
						"queued",
					"ready = torch.cuda.Event()\nready.record(copy_stream)\n" +
						"torch.cuda.current_stream().wait_event(ready)",
				},
			},
		},
	}
}
