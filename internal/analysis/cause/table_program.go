package cause

import "fmt"

// The places of a Change.
const (
	inPyTorch = "PyTorch"
	inCUDA    = "CUDA"
	inPython  = "Python"
	onHost    = "host"
	inServing = "serving"
	inCode    = Code
)

// programRows are the causes that lie in the program's own computing.
func programRows(cpus int) []Cause {
	return []Cause{
		{
			ID: Unknown, Key: "unknown", Title: "it is not known why the GPU ran nothing", Group: Other,
			Means: "The GPU ran nothing, and nothing that was recorded says why: no call that ended the gap is " +
				"known, or its thread was neither seen running nor seen waiting.",
			Proves:  "Nothing: this is what is left where no evidence of another cause was recorded.",
			Refutes: "Any evidence of another cause.",
			Changes: []Change{
				{
					onHost,
					"Record more: run the daemon with CPU sampling and scheduling switched on (both are by default) " +
						"and let it load its agent, then ask for a longer stretch",
					"inferscope report --pid 1234 --for 10s --gpu continuous",
				},
				{
					onHost,
					"Look at the losses that the report prints: a full ring or recorder hides causes. Raise the " +
						"memory that is set aside",
					"INFERSCOPE_TRACE_SIZE_MB=400",
				},
			},
		},
		{
			ID: PythonWork, Key: "python-work", Title: "Python code of the program", Group: CPUWork,
			Means: "The thread that launches the GPU's work runs Python code of the program between two launches, " +
				"and the queue of the GPU is empty meanwhile.",
			Proves: "The thread was on a CPU during the gap, and samples of it show Python code that is not the " +
				"framework's.",
			Refutes: "Samples in PyTorch's own code (launch-overhead), in a tokenizer or image decoder " +
				"(preprocessing), in the garbage collector (gc); a thread that was off the CPU.",
			Changes: []Change{
				{
					inPython,
					"Move the code off the critical path: prepare the next batch in a thread or process while the " +
						"GPU works on this one",
					"from concurrent.futures import ThreadPoolExecutor\n\npool = ThreadPoolExecutor(1)\n" +
						"ahead = pool.submit(prepare, batches[0])\nfor following in batches[1:] + [None]:\n" +
						"    batch = ahead.result()\n    if following is not None:\n" +
						"        ahead = pool.submit(prepare, following)  # while the GPU works\n    model(batch)",
				},
				{
					inPython,
					"Profile the function that the report names and take work out of it: hoist what does not change " +
						"out of the loop, replace loops over elements by one call of NumPy or torch",
					"",
				},
				{
					inPyTorch,
					"Do per-element work on the GPU as tensor operations instead of in Python: masking, sampling, " +
						"penalties, stop conditions",
					"next_token = torch.where(finished, pad_id, logits.argmax(-1))  # no Python loop over the batch",
				},
			},
		},
		{
			ID: NativeWork, Key: "native-work", Title: "native code on the CPU", Group: CPUWork,
			Means: "The thread that launches the GPU's work computes in native code (NumPy, a C++ extension, an " +
				"operator of PyTorch on the CPU) between two launches.",
			Proves: "The thread was on a CPU during the gap, and samples of it end in native code that is neither " +
				"the framework's launching nor known preprocessing.",
			Refutes: "Samples in libcuda or PyTorch's dispatcher (launch-overhead); a thread that was off the CPU.",
			Changes: []Change{
				{
					inPyTorch,
					"Move the operation to the GPU: an operator that runs on the CPU between two that run on the GPU " +
						"costs two copies as well. Look for tensors made without device=",
					"mask = torch.ones(n, n, device=\"cuda\").tril()  # not torch.ones(n, n).tril().to(\"cuda\")",
				},
				{
					inCUDA,
					"Run it in another thread while the GPU works on the step before, and hand the result over by a " +
						"queue",
					"",
				},
				{
					onHost,
					"Give the library as many threads as the container has CPUs, no more: more threads than CPUs " +
						"wait for each other",
					fmt.Sprintf("OMP_NUM_THREADS=%d MKL_NUM_THREADS=%d python infer.py", cpus, cpus),
				},
			},
		},
	}
}

// bytesRows are the causes that turn one form of data or code into another.
func bytesRows(cpus int) []Cause { //nolint:funlen // a table
	return []Cause{
		{
			ID: Preprocessing, Key: "preprocessing", Title: "tokenization, decoding or parsing on the CPU",
			Group: CPUWork,
			Means: "Text is tokenized, images are decoded and resized, or CSV, HTML and the like is parsed while " +
				"the GPU has nothing to do.",
			Proves: "The thread that the GPU waits for was on a CPU, and samples of it show a tokenizer, an image " +
				"library, a parser of text or tables, or a function named so.",
			Refutes: "The same code in a thread that the GPU does not wait for: it then overlaps with the GPU's work " +
				"and costs nothing.",
			Changes: []Change{
				{
					inPyTorch,
					"Prepare the next batch while the GPU works on this one: a DataLoader with workers does " +
						"that for you",
					fmt.Sprintf(
						"loader = DataLoader(dataset, batch_size=32, num_workers=%d, prefetch_factor=2,\n"+
							"                    pin_memory=True, persistent_workers=True)",
						min(4, cpus),
					),
				},
				{
					inPython,
					"Tokenize whole batches with a fast (Rust) tokenizer: one call uses several cores, and releases " +
						"the GIL",
					"tokenizer = AutoTokenizer.from_pretrained(name, use_fast=True)\n" +
						"batch = tokenizer(texts, padding=True, truncation=True, return_tensors=\"pt\")  # a list, " +
						"not one text at a time",
				},
				{
					inPyTorch,
					"Decode and resize images on the GPU",
					"from torchvision.io import decode_jpeg, read_file\nfrom torchvision.transforms import v2\n\n" +
						"image = decode_jpeg(read_file(path), device=\"cuda\")  # nvJPEG\n" +
						"image = v2.functional.resize(image, [224, 224], antialias=True)",
				},
				{
					inCUDA,
					"Prepare the next batch in a thread of its own while the GPU works on this one, and hand it over " +
						"by a queue",
					"auto ahead = std::async(std::launch::async, prepare, batches[i + 1]);\nlaunch(batch, stream);\n" +
						"batch = ahead.get();",
				},
				{
					inCode,
					"Keep results that come again, for instance of a system prompt, instead of computing them for " +
						"each request",
					"@functools.lru_cache(maxsize=10_000)\ndef encode(text: str) -> tuple[int, ...]:\n" +
						"    return tuple(tokenizer.encode(text))",
				},
			},
		},
		{
			ID: Serialization, Key: "serialization", Title: "objects are pickled or unpickled, JSON is written or parsed",
			Group: CPUWork,
			Means: "Objects are turned into bytes or text or back, mostly to send them to another process or to " +
				"a client, " +
				"while the GPU has nothing to do.",
			Proves: "Samples of the thread that the GPU waits for show pickle, cloudpickle, multiprocessing's " +
				"reduction, torch.save and torch.load, or code that writes or parses JSON.",
			Refutes: "The same code in a thread that the GPU does not wait for.",
			Changes: []Change{
				{
					inPython,
					"Write JSON with orjson, which is several times as fast, or in another process while the GPU works",
					"answer = orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY)",
				},
				{
					inPython,
					"Parse JSON with orjson or msgspec, which take a fraction of the time, or let clients send " +
						"numbers as " +
						"bytes",
					"request = orjson.loads(body)\n# or, without parsing:\n" +
						"scores = torch.frombuffer(bytearray(body), dtype=torch.float32)",
				},
				{
					inPyTorch,
					"Hand tensors to other processes through shared memory: torch.multiprocessing sends a handle and " +
						"no bytes",
					"import torch.multiprocessing as mp\n\n" +
						"buffer = torch.empty(batch, length, dtype=torch.int64).share_memory_()\n" +
						"queue.put(index)  # which part of the buffer is filled, not the tensor",
				},
				{
					inPython,
					"Send large arrays in shared memory, or out of band with pickle protocol 5",
					"from multiprocessing import shared_memory\n\n" +
						"block = shared_memory.SharedMemory(create=True, size=array.nbytes)\n" +
						"np.ndarray(array.shape, array.dtype, buffer=block.buf)[:] = array\n" +
						"queue.put((block.name, array.shape, array.dtype.str))",
				},
				{
					inPython,
					"Send less: indices or file names instead of samples, and plain arrays instead of lists of " +
						"Python objects",
					"",
				},
			},
		},
		{
			ID: Compilation, Key: "compilation", Title: "code is compiled, loaded or imported: warm-up",
			Group: Framework,
			Means: "Kernels are compiled (nvrtc, Triton, torch.compile), modules are loaded onto the GPU, contexts " +
				"and graphs are made, or Python modules are imported. It belongs to the start of a program, and " +
				"costs each time that a new shape or kernel appears.",
			Proves: "The thread was in a call that loads or links code or instantiates a graph, in a launch that " +
				"took more than 0.1 ms (the first one of a kernel loads it), or samples show a compiler or the " +
				"import system.",
			Refutes: "The same calls in a thread that the GPU does not wait for.",
			Changes: []Change{
				{
					inPyTorch,
					"Warm up with each shape that production sends before the program reports that it is ready",
					"for n in (1, 8, 32):\n    for length in (128, 512, 2048):\n" +
						"        model(torch.zeros(n, length, dtype=torch.long, device=\"cuda\"))\n" +
						"torch.cuda.synchronize()",
				},
				{
					inPyTorch,
					"Keep torch.compile from compiling for each new shape: let the dimension that varies be dynamic, " +
						"or pad to a few sizes. TORCH_LOGS says what makes it compile again",
					"torch._dynamo.mark_dynamic(tokens, 1)\nmodel = torch.compile(model)\n" +
						"# TORCH_LOGS=recompiles python infer.py",
				},
				{
					inPyTorch,
					"Keep what was compiled across restarts, on a volume that outlives the container",
					"TORCHINDUCTOR_CACHE_DIR=/cache/inductor TRITON_CACHE_DIR=/cache/triton " +
						"CUDA_CACHE_PATH=/cache/nv python infer.py",
				},
				{
					inCUDA,
					"Load modules and make graphs once, when the program starts, and keep them",
					"cuModuleLoadData(&module, image);  // once\ncuModuleGetFunction(&kernel, module, name);",
				},
				{
					inCUDA,
					"Load kernels when the program starts instead of at their first launch (it takes memory and " +
						"start-up time)",
					"CUDA_MODULE_LOADING=EAGER python infer.py",
				},
			},
		},
	}
}
