package cause

// deviceRows are the causes for which a GPU that runs could do better.
func deviceRows() []Cause {
	return []Cause{
		{
			ID: CopyNotOverlapped, Key: "copy-not-overlapped", Title: "copies run while no kernel does", Group: OnGPU,
			Means: "Data goes to or from the GPU while the GPU computes nothing. Copy engines work beside the " +
				"kernels, so that the copy for the next batch can hide behind this batch's work.",
			Proves:  "Records of copies in times in which no kernel ran.",
			Refutes: "Copies whose result the very next kernel needs, and that cannot be asked for earlier.",
			Changes: []Change{
				{
					inPyTorch,
					"Copy the next batch in a stream of its own while this one is computed; the host memory must be " +
						"pinned",
					"copy = torch.cuda.Stream()\n\ndef fetch(batch):\n    with torch.cuda.stream(copy):\n" +
						"        return batch.to(\"cuda\", non_blocking=True)  # pinned: " +
						"DataLoader(pin_memory=True)\n\nahead = fetch(next(it))\n" +
						"for following in itertools.chain(it, [None]):\n" +
						"    torch.cuda.current_stream().wait_stream(copy)\n    now = ahead\n" +
						"    now.record_stream(torch.cuda.current_stream())\n" +
						"    ahead = fetch(following) if following is not None else None\n    model(now)",
				},
				{
					inCUDA,
					"Use two buffers and two streams, so that one is filled while the other is computed with",
					"for (int i = 0; i < n; i++) {\n    int b = i % 2;\n    cudaStreamWaitEvent(copy, used[b], 0);\n" +
						"    cudaMemcpyAsync(in[b], host[i], bytes, cudaMemcpyHostToDevice, copy);\n" +
						"    cudaEventRecord(filled[b], copy);\n    cudaStreamWaitEvent(compute, filled[b], 0);\n" +
						"    kernel<<<grid, block, 0, compute>>>(in[b], out[b]);\n" +
						"    cudaEventRecord(used[b], compute);\n}",
				},
				{
					inPyTorch,
					"Copy less: send uint8 or float16 and convert on the GPU, and leave on the GPU what is used again",
					"batch = batch.to(\"cuda\", non_blocking=True).float().div_(255)  # uint8 over the bus",
				},
			},
		},
	}
}

// communicationRows are the causes that lie between GPUs.
func communicationRows() []Cause {
	return []Cause{
		{
			ID: ExposedCommunication, Key: "exposed-communication",
			Title: "GPUs exchange data and compute nothing meanwhile", Group: OnGPU,
			Means: "Collective operations (all-reduce, all-gather, all-to-all, send and receive) run while no " +
				"kernel computes. A collective ends when the slowest GPU has taken part, so that its time is also " +
				"that of waiting for a GPU that is late.",
			Proves: "Kernels of NCCL, RCCL, NVSHMEM or a custom all-reduce, known by their names, or copies that " +
				"calls of NCCL launched, in times in which no other kernel ran on the GPU. Communication that a " +
				"kernel covers costs nothing and is not counted.",
			Refutes: "Kernels that compute and communicate in one, which no name tells from computing.",
			Changes: []Change{
				{
					inPyTorch,
					"Let communication run beside computing: larger buckets that start earlier, prefetching of the " +
						"next layer's weights, asynchronous collectives that are waited for late",
					"model = DDP(model, bucket_cap_mb=100, gradient_as_bucket_view=True)\n" +
						"# FSDP: backward_prefetch=BackwardPrefetch.BACKWARD_PRE, forward_prefetch=True\n" +
						"work = dist.all_reduce(x, async_op=True)\ny = other(z)  # what does not need x\nwork.wait()",
				},
				{
					inServing,
					"Communicate less: fewer GPUs per replica where the model fits, more replicas; pipeline or " +
						"expert parallelism across slow links and tensor parallelism on NVLink only",
					"vllm serve MODEL --tensor-parallel-size 2 --data-parallel-size 4",
				},
				{
					inServing,
					"Use the fast path for small messages: a custom or fused all-reduce, symmetric memory",
					"vllm serve MODEL --compilation-config '{\"pass_config\": {\"fuse_allreduce_rms\": true}}'",
				},
				{
					onHost,
					"Look for a GPU that is late: with the traces of all ranks in one analysis, the rank that waits " +
						"least in collectives is the one that the others wait for",
					"inferscope analyze traces/",
				},
			},
		},
	}
}

// stragglerRows are the causes that lie in one of several GPUs.
func stragglerRows() []Cause {
	return []Cause{
		{
			ID: Straggler, Key: "straggler", Title: "GPUs wait for one that is late", Group: OnGPU,
			Means: "One process comes last to most collective operations, and the GPUs of all others wait inside " +
				"of them until it does.",
			Proves: "Collective operations that ran on all processes and ended together, begun last by the same " +
				"process in most cases. Their times must be on one clock: one host, or hosts whose clocks agree.",
			Refutes: "Processes that come last in turn: that is jitter, and the time is that of communication.",
			Changes: []Change{
				{
					onHost,
					"Look at the late process alone, and compare it with another one: its own report says what it " +
						"does before each collective",
					"inferscope diff rank0.json.gz rank3.json.gz",
				},
				{
					Code,
					"Give each process the same work: batches of equal tokens instead of equal counts, experts and " +
						"embedding tables placed by load",
					"",
				},
				{
					onHost,
					"Give the late process CPUs of its own, near its GPU, and check that its GPU's clock is not " +
						"lowered",
					"numactl --cpunodebind=0 --membind=0 python train.py\nnvidia-smi -q -d CLOCK,PERFORMANCE",
				},
			},
		},
	}
}

// imbalanceRows are the causes that lie in how work is spread over GPUs.
func imbalanceRows() []Cause {
	return []Cause{
		{
			ID: Imbalance, Key: "imbalance", Title: "GPUs have different amounts of work in a step", Group: OnGPU,
			Means: "Between two collective operations one GPU computes longer than the others, not always the " +
				"same one, and " +
				"the others wait for it in the next operation. A step takes as long as its largest part.",
			Proves: "Between collective operations of all ranks, the ranks that waited ran kernels for less " +
				"time, by about " +
				"as much as they waited.",
			Refutes: "One rank that is always last (straggler); ranks that compute for as long as the others " +
				"and come late " +
				"because of their CPUs.",
			Changes: []Change{
				{
					Code,
					"Give each rank the same number of tokens instead of the same number of samples or " +
						"requests: sort and " +
						"pack sequences by length",
					"",
				},
				{
					inServing,
					"Spread requests over data-parallel ranks by their tokens, and experts by their load",
					"vllm serve MODEL --enable-expert-parallel --enable-eplb",
				},
				{
					Code,
					"Synchronize less often, so that differences even out: accumulate gradients over several batches",
					"with model.no_sync():\n    loss(model(first)).backward()\nloss(model(second)).backward()",
				},
			},
		},
	}
}

// pipelineRows are the causes that lie in the order in which GPUs work.
func pipelineRows() []Cause {
	return []Cause{
		{
			ID: PipelineBubble, Key: "pipeline-bubble", Title: "a GPU waits until another GPU has done its part",
			Group: HostWaits,
			Means: "Each GPU has a part of the model, and what one computes the next one needs: while one " +
				"works, the others " +
				"have nothing to do. With one batch at a time, of n GPUs 1 works.",
			Proves: "Work that was launched in time and whose stream waits for an event of another GPU's " +
				"stream; or the " +
				"thread that launches waits for another GPU, which works meanwhile; or a send or receive of " +
				"NCCL, or a " +
				"collective after it, that the other rank has not come to and works, or waits for one that does.",
			Refutes: "A GPU that works on another batch meanwhile: then it is not idle. Ranks that wait for one " +
				"whose GPU " +
				"has nothing to do, or for the transfer itself: that is straggler or exposed-communication.",
			Changes: []Change{
				{
					Code,
					"Cut each batch into micro-batches and keep as many under way as there are stages, so that " +
						"all GPUs work " +
						"at once",
					"",
				},
				{
					inCUDA,
					"Queue the work of all GPUs before the thread waits for one: let streams wait for events of " +
						"the other GPU's " +
						"stream, and read results late",
					"stage<<<grid, block, 0, first>>>(batch);\ncudaEventRecord(done, first);\n" +
						"cudaStreamWaitEvent(second, done, 0);  // instead of cudaStreamSynchronize(first)",
				},
				{
					inServing,
					"Use tensor parallelism instead where GPUs have a fast link: all of them work on each layer",
					"vllm serve MODEL --tensor-parallel-size 2",
				},
				{
					inPyTorch,
					"Where the model fits on one GPU, give each GPU a whole copy and batches of its own instead " +
						"of spreading " +
						"layers (device_map=\"auto\" does that)",
					"model = AutoModelForCausalLM.from_pretrained(name, device_map={\"\": rank})",
				},
			},
		},
	}
}

// hangRows are the causes for which nothing goes on.
func hangRows() []Cause {
	return []Cause{
		{
			ID: Hang, Key: "hang", Title: "GPUs wait in a collective for a rank that has not come", Group: OnGPU,
			Means: "Some ranks have called a collective operation that others have not called for three seconds or " +
				"more, up to the end of the recording. It cannot end before all have come: their GPUs spin in it, " +
				"and tools show them as busy.",
			Proves: "Calls of NCCL on one communicator, counted on each rank from the last collective in which all " +
				"took part, or from the making of the communicators. A rank made fewer than the others, and is in " +
				"none.",
			Refutes: "Calls that were lost, or that a CUDA graph makes; a rank that was attached late and of which " +
				"no collective was recorded; communicators of parts of the ranks. Where any of these is possible no " +
				"hang is named.",
			Changes: []Change{
				{
					Code,
					"Look at where the missing rank is: its stack is in the evidence. Ranks that branch differently " +
						"(on data, errors, the last batch) make different collectives",
					"",
				},
				{
					onHost,
					"Where it has ended, look for why: an exception on one rank only, or the kernel's OOM killer",
					"dmesg | grep -i -E 'killed process|oom'",
				},
				{
					inPyTorch,
					"Let NCCL's watchdog end a job that hangs, and dump what each rank called",
					"export TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_FR_BUFFER_SIZE=2000\n" +
						"dist.init_process_group(\"nccl\", timeout=timedelta(minutes=2))",
				},
			},
		},
	}
}

// errorRows are the causes for which a GPU works no more.
func errorRows() []Cause {
	return []Cause{
		{
			ID: GPUError, Key: "gpu-error", Title: "a GPU stopped working after an error", Group: OnGPU,
			Means: "The driver reported an error (Xid), and the GPU did nothing more for the program. CUDA calls of " +
				"a process whose context has failed return an error at once, until the process is restarted.",
			Proves: "A message of the driver in the kernel's log that names the program, or an error of the whole " +
				"GPU. No kernel or copy began between it and the end of the recording.",
			Refutes: "Work that began after the error; an error in the work of another process.",
			Changes: []Change{
				{
					onHost,
					"Drain the machine, look at what the driver says, reset the GPU, and replace it if the error " +
						"comes back: Xid 48, 63, 64, 74, 79, 92, 94, 95, 119, 120 and 154 are of the hardware or the driver",
					"dmesg | grep Xid\nnvidia-smi -q -d ECC,ROW_REMAPPER\nsudo nvidia-smi --gpu-reset -i 0",
				},
				{
					inCUDA,
					"Find the kernel whose access is wrong: Xid 13, 31 and 43 are as a rule of the program",
					"compute-sanitizer python infer.py\nCUDA_LAUNCH_BLOCKING=1 python infer.py",
				},
			},
		},
	}
}

// clockRows are the causes that lie in the GPU itself.
func clockRows() []Cause {
	return []Cause{
		{
			ID: LowClocks, Key: "low-clocks", Title: "heat or the power supply holds the GPU's clocks down",
			Group: OnGPU,
			Means: "The GPU lowers its clocks to protect itself: it is too hot, or its board or power supply asks " +
				"for less. Kernels that compute take longer by as much; kernels that wait for memory lose less.",
			Proves: "The reasons for low clocks that the GPU reports (clocks_event_reasons of nvidia-smi), read ten " +
				"times a second, in times in which kernels ran.",
			Refutes: "A GPU at its own power limit, which much work brings about; clocks that somebody set; clocks " +
				"that are low because nothing runs.",
			Changes: []Change{
				{
					onHost,
					"Look at the GPU's cooling: fans, air flow, dust, the temperature of the room and of the GPUs " +
						"beside it",
					"nvidia-smi -q -d TEMPERATURE,PERFORMANCE",
				},
				{
					onHost,
					"Look at the host's power supply and its limits where the reason is the power brake or the " +
						"hardware",
					"nvidia-smi -q -d POWER,PERFORMANCE\nipmitool sdr type \"Power Supply\"",
				},
				{onHost, "Move the work to a GPU that is not held down, and have this one looked at", ""},
			},
		},
	}
}

// kernelRows are the causes that lie in the kernels that run.
func kernelRows() []Cause {
	return []Cause{
		{
			ID: SmallBatch, Key: "small-batch", Title: "kernels are too small to fill the GPU", Group: OnGPU,
			Means: "Most of the time the kernels that run have fewer blocks than the GPU has multiprocessors: a " +
				"part of it stands idle while they run.",
			Proves: "Grids of fewer blocks than the device has multiprocessors, weighed by time.",
			Refutes: "Several kernels at once that fill the GPU together; persistent kernels, which have few blocks " +
				"on purpose.",
			Changes: []Change{
				{
					inServing,
					"Work on more requests at once: batch them, continuously where they generate text (vLLM, " +
						"TensorRT-LLM, TGI), dynamically else (Triton)",
					"vllm serve MODEL --max-num-seqs 256",
				},
				{
					inPyTorch,
					"Raise the batch size until latency or memory forbids; a batch twice as large costs hardly more " +
						"time here",
					"",
				},
				{
					inCUDA,
					"Run independent work in several streams, or several processes with MPS, so that small kernels " +
						"run beside each other",
					"nvidia-cuda-mps-control -d",
				},
			},
		},
		{
			ID: TinyKernels, Key: "tiny-kernels", Title: "kernels are so short that starting them takes as long",
			Group: OnGPU,
			Means: "Most kernels run for a few microseconds, as long as the GPU takes from one kernel to the next.",
			Proves: "Kernels of a few microseconds make up a large part of the time that the GPU runs, and there " +
				"are many of them.",
			Refutes: "Few short kernels among long ones.",
			Changes: []Change{
				{
					inPyTorch,
					"Let torch.compile fuse elementwise operations into one kernel",
					"model = torch.compile(model)",
				},
				{
					inPyTorch,
					"Use fused operators: scaled_dot_product_attention, fused layer norm and activation, one matrix " +
						"for query, key and value",
					"y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)",
				},
				{inServing, "Give each kernel more to do: a larger batch makes them longer, not more", ""},
			},
		},
		{
			ID: BandwidthBound, Key: "bandwidth-bound",
			Title: "kernels wait for the GPU's memory, as in decoding with a small batch", Group: OnGPU,
			Means: "At each step of decoding all weights are read for few tokens: the time is that of reading " +
				"them, and the arithmetic units wait.",
			Proves: "Kernels that multiply a matrix by one or a few vectors, by their names and shapes, make up " +
				"most of the time. It rests on shapes, not on counters of the hardware.",
			Refutes: "Large matrix products: prefill, training, large batches.",
			Changes: []Change{
				{
					inServing,
					"Decode more sequences at once: the weights are read once for all of them",
					"vllm serve MODEL --max-num-seqs 256",
				},
				{
					inServing,
					"Make the weights smaller: FP8, INT8 or 4-bit weights are read 2 to 4 times as fast as 16-bit ones",
					"vllm serve MODEL --quantization fp8",
				},
				{inServing, "Get more tokens out of each pass: speculative decoding", ""},
			},
		},
	}
}

// copyRows are the causes that lie in the copies that run.
func copyRows() []Cause {
	return []Cause{
		{
			ID: CopyBound, Key: "copy-bound", Title: "copies take more time than computing", Group: OnGPU,
			Means:   "The GPU spends more time on moving data than on computing.",
			Proves:  "The time in which copies ran exceeds the time in which kernels ran.",
			Refutes: "Copies that overlap with kernels and do not delay them.",
			Changes: []Change{
				{
					inPyTorch,
					"Leave data on the GPU between steps: caches, embeddings, intermediate results",
					"embeddings = embeddings.to(\"cuda\")  # once, not for each request",
				},
				{
					inPyTorch,
					"Send smaller types, and convert on the GPU: uint8 images, int32 tokens, float16 features",
					"images = images.to(\"cuda\", non_blocking=True).to(torch.float16).div_(255)  # uint8 over the bus",
				},
				{
					inPyTorch,
					"Pin the host's memory: pageable copies reach a fraction of the bus's speed",
					"loader = DataLoader(dataset, batch_size=32, pin_memory=True)",
				},
			},
		},
	}
}
