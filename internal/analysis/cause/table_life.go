package cause

// lifeRows are what a program pays once, however long it runs.
func lifeRows() []Cause {
	return []Cause{
		{
			ID: StartEnd, Key: "start-end", Title: "the program starts or ends", Group: Other,
			Means: "What a program does before its first iteration (imports, loading of the model, warm-up) and " +
				"after its last (tearing down the interpreter and the libraries). It is paid once for each run, not " +
				"in each iteration, so that it is no part of the breakdown.",
			Proves: "The start of each process that uses the GPU lies in the recording, and up to the first " +
				"iteration the GPU ran no more kernels than one iteration has; or its exit does, and the same holds " +
				"from the last iteration on. Where no iterations were found, the first and the last work of the GPU " +
				"stand for them.",
			Refutes: "A process that ran before the recording began, or goes on after it; a server that waits for " +
				"requests (no-work): from there on it is neither starting nor ending.",
			Changes: []Change{
				{
					inServing,
					"Keep the process and give it one request after the other, instead of starting a program for each",
					"while (request := queue.get()) is not None:  # the model is loaded once\n" +
						"    answer(model(request))",
				},
				{
					inPython,
					"Look at what is imported, and import what is seldom needed where it is needed",
					"python -X importtime infer.py 2> imports.txt\n" +
						"sort -t'|' -k2 -n imports.txt | tail -20  # the slowest, with what they import, in µs",
				},
				{
					inPyTorch,
					"Load the weights without making others first, and from a file that is mapped: safetensors, or " +
						"torch.load(mmap=True)",
					"with torch.device(\"meta\"):\n    model = Model(config)  # no memory, no random numbers\n" +
						"model.load_state_dict(torch.load(path, mmap=True), assign=True)",
				},
				{
					inPyTorch,
					"Keep what is compiled at the start on a volume that outlives the container",
					"TORCHINDUCTOR_CACHE_DIR=/cache/inductor TRITON_CACHE_DIR=/cache/triton " +
						"CUDA_CACHE_PATH=/cache/nv python infer.py",
				},
				{
					inPython,
					"Where the end takes long: end without tearing everything down, once all that must be kept is " +
						"written and closed",
					"sys.stdout.flush()\nos._exit(0)  # no finalizers, no atexit: only after the last file is closed",
				},
			},
		},
	}
}
