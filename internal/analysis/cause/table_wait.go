package cause

import "fmt"

// waitRows are the causes in which a thread waits for another one, or for somebody outside.
func waitRows(cpus int) []Cause {
	return []Cause{
		{
			ID: Worker, Key: "worker", Title: "the launching thread waits for another thread or process of the program",
			Group: HostWaits,
			Means: "The thread that launches the GPU's work waits for a result of another thread or process, such " +
				"as a data loader or a scheduler, which computes meanwhile.",
			Proves: "The thread was blocked on a pipe, a queue or a condition, and a thread of the program woke it. " +
				"The report names what that thread did meanwhile.",
			Refutes: "A wait that ended because something came from outside of the program (network, no-work) or " +
				"because a lock was released (lock).",
			Changes: []Change{
				{
					inPyTorch,
					"Give the loader more workers, and let each be more than one batch ahead",
					fmt.Sprintf(
						"loader = DataLoader(dataset, batch_size=32, num_workers=%d, prefetch_factor=4,\n"+
							"                    pin_memory=True, persistent_workers=True)",
						min(8, cpus),
					),
				},
				{
					inCode,
					"Make the queue between the two deep enough that the launching thread seldom finds it empty, and " +
						"fill it while the GPU works",
					"batches = queue.Queue(maxsize=8)  # 1 makes both sides take turns",
				},
				{inCode, "Make the worker faster: the report names what it spends its time on", ""},
			},
		},
		{
			ID: Lock, Key: "lock", Title: "a lock that another thread holds", Group: HostWaits,
			Means: "The thread that launches the GPU's work waits for a mutex or a file lock that another thread " +
				"has.",
			Proves: "The thread was blocked in a lock's acquisition (its frames say so), and the thread that " +
				"released the lock woke it.",
			Refutes: "A wait for a condition or a queue (worker), or for the interpreter's lock (gil).",
			Changes: []Change{
				{
					inPython,
					"Hold the lock for less: copy what is needed under it, and compute outside",
					"with lock:\n    snapshot = list(pending)\nfor item in snapshot:\n    process(item)",
				},
				{
					inCUDA,
					"Hold the lock for less: copy what is needed under it, and compute outside",
					"std::vector<Item> mine;\n{\n    std::lock_guard<std::mutex> held(mutex);\n" +
						"    mine.swap(pending);\n}\nfor (Item &item : mine) process(item);",
				},
				{
					inPython,
					"Give each thread what it needs for itself, or hand work over by a queue instead of sharing it " +
						"under a lock",
					"",
				},
				{
					inCUDA,
					"Let one thread do all the launching of a GPU: the driver has locks of its own, and threads that " +
						"launch into one context take turns",
					"",
				},
			},
		},
	}
}

// outsideRows are the causes in which a thread waits for what is outside of the program, or for time to pass.
func outsideRows() []Cause {
	return []Cause{
		{
			ID: Network, Key: "network", Title: "an answer from another service", Group: HostWaits,
			Means: "The thread that launches the GPU's work, or one that it waits for, waits for an answer over a " +
				"connection that the program has opened (a database, a feature store, another model), or for another " +
				"program at the other end of a pipe.",
			Proves: "The thread was blocked in receiving, sending, connecting or polling, was woken from outside of " +
				"the program, and the connection is one that the program opened, or a pipe.",
			Refutes: "A connection that somebody opened to the program: then nobody asks for anything (no-work).",
			Changes: []Change{
				{
					inCode,
					"Ask for it before the GPU needs it: start the request for the next batch, then run this one",
					"async def serve(batches):\n    ahead = asyncio.create_task(fetch(batches[0]))\n" +
						"    for following in batches[1:] + [None]:\n        data = await ahead\n" +
						"        if following is not None:\n" +
						"            ahead = asyncio.create_task(fetch(following))\n" +
						"        await asyncio.to_thread(infer, data)",
				},
				{
					inCode,
					"Ask once for many: batch the requests, and keep connections open",
					"session = requests.Session()  # once, not requests.get() for each",
				},
				{inServing, "Keep answers that come again in the process", ""},
			},
		},
		{
			ID: NoWork, Key: "no-work", Title: "nobody asks for anything", Group: Offered,
			Means: "The program is a server, and waits for requests. The GPU is idle because there is nothing to do.",
			Proves: "The thread that launches, or the one that it waits for, was blocked on a listening socket or " +
				"on a connection that a client opened, and was woken from outside of the program; or it waited while " +
				"no recorded HTTP request was in progress, and GPUs do next to nothing at such times.",
			Refutes: "Requests that wait in a queue of the program while the GPU is idle.",
			Changes: []Change{
				{
					inServing,
					"Nothing is wrong with the program. Look at it under load: record while requests come",
					"inferscope report --pid 1234 --for 10s",
				},
				{
					inServing,
					"Use the GPU for more: put several models on it, share it by MPS or MIG, or run fewer replicas",
					"nvidia-cuda-mps-control -d",
				},
			},
		},
		{
			ID: Sleep, Key: "sleep", Title: "the program sleeps", Group: HostWaits,
			Means: "The thread that launches the GPU's work, or one that it waits for, sleeps on purpose for a " +
				"fixed time: it polls, waits for a batch to fill, or holds to a rate.",
			Proves:  "The thread was blocked in nanosleep or clock_nanosleep.",
			Refutes: "A wait with a time limit that something else ended.",
			Changes: []Change{
				{
					inCode,
					"Wait for the event instead of looking for it again and again",
					"item = queue.get(timeout=1.0)  # not: while queue.empty(): time.sleep(0.01)",
				},
				{
					inServing,
					"Where it is a batching delay, make it shorter, or end it as soon as the GPU is idle (in Triton: " +
						"max_queue_delay_microseconds)",
					"dynamic_batching { max_queue_delay_microseconds: 100 }",
				},
			},
		},
	}
}
