package cause

// What holds requests of a server up. These have no ID: they explain the time of requests, not that of a GPU.
const (
	Queueing            = "queueing"
	LowBatch            = "low-batch"
	KVCache             = "kv-cache"
	Preemption          = "preemption"
	APIServer           = "api-server"
	APIServerStarved    = "api-server-starved"
	PrefillBlocksDecode = "prefill-blocks-decode"
	SlowClient          = "slow-client"
	Detokenizer         = "detokenizer"
)

// ofRequests returns the table of what holds requests up.
func ofRequests() []Cause { //nolint:funlen // a table
	return []Cause{
		{
			Key: Queueing, Title: "requests wait for a place in the batch", Group: Requests,
			Means: "The engine works on as many requests at a time as it may, and others wait in its queue until " +
				"one of them ends.",
			Proves: "The engine's messages: when it put a request into its queue and when into a batch, how many " +
				"requests waited, and that it made steps meanwhile. Without them: the HTTP requests themselves, of " +
				"which never more than a certain number had tokens at a time while others had none.",
			Refutes: "A KV cache that is full (kv-cache), an engine that does nothing while requests wait, and " +
				"requests " +
				"that are held in front of an empty queue (low-batch). Without the engine's messages these " +
				"cannot be told " +
				"from those in the queue.",
			Changes: []Change{
				{
					inServing,
					"Let more requests into a batch, as far as GPU memory and your time per token allow",
					"vllm serve MODEL --max-num-seqs 256\nllama-server -m MODEL -np 16",
				},
				{inServing, "Add a replica, and spread requests by the number that each has in progress", ""},
				{inServing, "Limit the length of answers, or give long ones to a server of their own", ""},
			},
		},
		{
			Key: LowBatch, Title: "a limit in front of the engine keeps its batch small", Group: Requests,
			Means: "Something in the API server lets only so many requests through to the engine at a time: a " +
				"semaphore, " +
				"a lock, a pool of threads. The others are read and held, though the engine has room for them.",
			Proves: "The engine's messages: it never has more than a certain number of requests, others are " +
				"held before " +
				"they are sent to it all that while, and each is sent when another one ends. The engine's own " +
				"queue is " +
				"empty, and the API server's thread hardly runs.",
			Refutes: "Requests in the engine's queue: it is full, and they wait for it (queueing). A thread " +
				"that runs " +
				"meanwhile (api-server). Requests that wait for something else of their own, whatever the " +
				"engine has. A small " +
				"batch while nobody waits is only a small load, and no cause.",
			Changes: []Change{
				{
					inPython,
					"Let as many requests through as the engine may have in a batch, or all: its own queue is " +
						"made for them",
					"limit = asyncio.Semaphore(256)  # at least the engine's --max-num-seqs",
				},
				{
					inServing,
					"Look for a limit on requests in progress: of the web framework, of its pool of threads, of " +
						"a middleware",
					"",
				},
			},
		},
		{
			Key: KVCache, Title: "requests wait for memory of the KV cache", Group: Requests,
			Means: "The engine's KV cache is full: new requests wait until others end.",
			Proves: "The engine's messages: its KV cache was nearly full in the steps in which requests waited, or " +
				"it preempted requests.",
			Refutes: "Requests that wait while the KV cache has room (queueing).",
			Changes: []Change{
				{
					inServing,
					"Give the KV cache more memory: a larger share of the GPU's, weights of fewer bits, or the model " +
						"on several GPUs",
					"vllm serve MODEL --gpu-memory-utilization 0.95 --tensor-parallel-size 2",
				},
				{
					inServing,
					"Keep it in 8 bits, which holds twice as many tokens",
					"vllm serve MODEL --kv-cache-dtype fp8",
				},
				{
					inServing,
					"Allow shorter contexts, and let fewer requests in at a time, so that none is preempted",
					"vllm serve MODEL --max-model-len 8192 --max-num-seqs 64",
				},
			},
		},
		{
			Key: Preemption, Title: "running requests are taken out of the batch and computed again", Group: Requests,
			Means: "The KV cache is full in the midst of answers: the engine drops what it has computed of a " +
				"request, " +
				"lets it wait, and computes its prompt and its tokens so far once more.",
			Proves: "The engine's messages: how often it preempted which request; and the longest gap in the " +
				"streams of " +
				"these requests, beyond a usual gap.",
			Refutes: "Requests that wait before their first token only (kv-cache, queueing).",
			Changes: []Change{
				{
					inServing,
					"Let fewer requests into a batch, so that the answers of all of them fit",
					"vllm serve MODEL --max-num-seqs 64",
				},
				{
					inServing,
					"Give the KV cache more memory, or keep it in 8 bits",
					"vllm serve MODEL --gpu-memory-utilization 0.95 --kv-cache-dtype fp8",
				},
				{inServing, "Limit the length of answers", ""},
			},
		},
		{
			Key: Detokenizer, Title: "the detokenizer process holds answers up", Group: Requests,
			Means: "The engine has made a token, but the process that makes text of it (SGLang's detokenizer) " +
				"is behind. It is one thread for all requests.",
			Proves: "The messages between the processes: the time from the engine's last token of a request to " +
				"the detokenizer's last text of it.",
			Refutes: "Time in the process that speaks HTTP (api-server), and a client that reads slowly (slow-client).",
			Changes: []Change{
				{
					inServing,
					"Send text every few tokens instead of at each one",
					"python -m sglang.launch_server --model-path MODEL --stream-interval 8",
				},
				{inServing, "Use a fast tokenizer (one with a tokenizer.json), and give the process a CPU of its own", ""},
			},
		},
		{
			Key: APIServer, Title: "the API server holds requests up, before the engine or after it", Group: Requests,
			Means: "Requests spend their time in the process that speaks HTTP: parsing, chat templates, the " +
				"tokenizer, the detokenizer, or an event loop that something else blocks.",
			Proves: "The time between the read of a request and its message to the engine, and between the engine's " +
				"first and last token and their writes to the client; which thread of the API server ran meanwhile, " +
				"and in which function.",
			Refutes: "A client that reads slowly: then the API server's thread does not run (slow-client).",
			Changes: []Change{
				{
					inServing,
					"Run several API server processes in front of one engine",
					"vllm serve MODEL --api-server-count 4",
				},
				{
					inPython,
					"Take what computes out of the event loop",
					"tokens = await asyncio.to_thread(tokenizer.encode, prompt)",
				},
				{inServing, "Send fewer and larger parts of a stream", "vllm serve MODEL --stream-interval 4"},
			},
		},
		{
			Key: APIServerStarved, Title: "the API server has no CPU to run on", Group: Requests,
			Means: "Requests are in the process that speaks HTTP, and its threads could run, but other programs have " +
				"the CPUs, or its cgroup has used up its quota.",
			Proves: "The scheduler: within the API server's part of the requests' time, its busiest thread " +
				"waited for a " +
				"CPU, or another one did while none of them ran.",
			Refutes: "Threads that run meanwhile (api-server).",
			Changes: []Change{
				{
					inServing,
					"Give the server CPUs of its own, or a larger share or quota of them",
					"kubectl set resources deployment NAME --requests=cpu=8 --limits=cpu=8",
				},
				{inServing, "Move what else runs on this machine", ""},
			},
		},
		{
			Key: PrefillBlocksDecode, Title: "prefills of new requests hold others up", Group: Requests,
			Means: "A step that computes the prompt of a new request takes much longer than one that only decodes, " +
				"and all running requests get their next token after it. One that comes meanwhile waits for its end.",
			Proves: "The engine's messages: steps in which a request had its first token took longer than the " +
				"others, with requests in the batch that were decoding, or that came meanwhile. " +
				"Without them: long gaps in streams at whose end another request had its first token, " +
				"far more often than at the end of usual gaps.",
			Refutes: "Gaps that are as long where no request begins.",
			Changes: []Change{
				{
					inServing,
					"Compute prompts in pieces, beside the decoding of others",
					"vllm serve MODEL --enable-chunked-prefill --max-num-batched-tokens 2048",
				},
				{
					inServing,
					"Keep the prefixes that prompts have in common",
					"vllm serve MODEL --enable-prefix-caching",
				},
				{inServing, "Give prefill and decode GPUs of their own", ""},
			},
		},
		{
			Key: SlowClient, Title: "clients read their answers slowly", Group: Requests,
			Means: "The engine has made an answer, and the server is still writing it: the client, or the network " +
				"to it, does not take it as fast as it comes.",
			Proves: "The time between the engine's last token and the last write, in which the API server's thread " +
				"did not run, of some requests much longer than of others.",
			Refutes: "A server whose thread runs meanwhile (api-server).",
			Changes: []Change{
				{
					inServing,
					"Look at these clients and at the way to them. The GPU is free meanwhile; only memory of the API " +
						"server is held",
					"",
				},
				{inServing, "Put a proxy with buffers in front of the server", ""},
			},
		},
	}
}
