package cause

// interpreterRows are the causes that lie in CPython.
func interpreterRows() []Cause {
	return []Cause{
		{
			ID: GIL, Key: "gil", Title: "another thread holds Python's global interpreter lock", Group: HostWaits,
			Means: "The thread that launches the GPU's work could go on, but another Python thread of the process " +
				"is running: only one at a time may.",
			Proves: "The thread was blocked, or asked again and again, in take_gil or in CPython's timed wait for " +
				"it; samples say which thread ran Python meanwhile.",
			Refutes: "A wait for another lock or condition (lock, worker): those have other frames.",
			Changes: []Change{
				{
					inPython,
					"Move the other thread's work into a process of its own",
					"import multiprocessing as mp\n\n" +
						"ctx = mp.get_context(\"spawn\")  # fork and CUDA do not go together\n" +
						"ctx.Process(target=collect_metrics, args=(queue,), daemon=True).start()",
				},
				{
					inPython,
					"Let the work run in code that releases the GIL: fast tokenizers, NumPy, torch, and C++ " +
						"extensions that say so",
					"m.def(\"encode\", &encode, py::call_guard<py::gil_scoped_release>());  // pybind11",
				},
				{
					inPython,
					"Let the thread that launches get the GIL back sooner; the default is 5 ms. It costs switches",
					"import sys\nsys.setswitchinterval(0.0005)",
				},
				{
					inPyTorch,
					"Launch less often from Python: a CUDA graph is one launch for a whole step, so the GIL is " +
						"needed once",
					"model = torch.compile(model, mode=\"reduce-overhead\")",
				},
			},
		},
		{
			ID: GC, Key: "gc", Title: "Python's garbage collection", Group: CPUWork,
			Means: "CPython looks for cycles of objects that nobody uses. A full collection visits every object of " +
				"the process, which takes tens of milliseconds or more with a model and its libraries loaded.",
			Proves:  "Samples of the thread that the GPU waits for show CPython's collector.",
			Refutes: "Destructors outside of the collector: freeing objects one by one is the program's own work.",
			Changes: []Change{
				{
					inPython,
					"Take everything that exists after loading out of the collector's sight",
					"import gc\n\nmodel = load_model()\ngc.collect()\ngc.freeze()",
				},
				{
					inPython,
					"Collect between requests instead of within them",
					"gc.disable()\nwhile True:\n    handle(queue.get())\n    if queue.empty():\n        gc.collect(1)",
				},
				{
					inPython,
					"Let it run more seldom: by default after 700 to 2,000 new objects, depending on the version",
					"gc.set_threshold(50_000, 20, 100)",
				},
			},
		},
	}
}
