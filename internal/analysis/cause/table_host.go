package cause

import (
	"fmt"
	"strconv"
)

// hostRows are the causes that lie in the machine.
func hostRows(cpus int) []Cause {
	return []Cause{
		{
			ID: Disk, Key: "disk", Title: "files are read or written", Group: HostWaits,
			Means: "The thread that launches the GPU's work, or one that it waits for, waits for a file: weights, " +
				"samples, logs that are synced.",
			Proves: "The thread was blocked in reading, writing, syncing or opening a regular file, or in a page " +
				"fault of a mapped one; or samples show the kernel's file system code.",
			Refutes: "Pipes and sockets: those are other programs (worker, network).",
			Changes: []Change{
				{
					inPyTorch,
					"Read ahead in workers, so that the GPU never waits for a file",
					fmt.Sprintf(
						"loader = DataLoader(dataset, batch_size=32, num_workers=%d, prefetch_factor=4,\n"+
							"                    persistent_workers=True)",
						min(8, cpus),
					),
				},
				{
					inCUDA,
					"Read ahead in a thread of its own, so that the GPU never waits for a file",
					"auto ahead = std::async(std::launch::async, read_batch, i + 1);\nlaunch(batch, stream);\n" +
						"batch = ahead.get();",
				},
				{
					onHost,
					"Put the data on a local NVMe disk, or read it once before the start so that it is in the page " +
						"cache",
					"cat /models/*.safetensors > /dev/null",
				},
				{
					inPython,
					"Write logs and results from another thread, and do not sync at each step",
					"from logging.handlers import QueueHandler, QueueListener\n\nlines = queue.SimpleQueue()\n" +
						"logging.getLogger().addHandler(QueueHandler(lines))\n" +
						"QueueListener(lines, logging.FileHandler(\"infer.log\")).start()",
				},
			},
		},
		{
			ID: PageFaults, Key: "page-faults", Title: "the kernel brings in pages of memory", Group: HostWaits,
			Means: "The program touches memory that the kernel has not provided yet, or has swapped out. Each new " +
				"page of 4 KiB costs 0.1 to 1 µs, so that a fresh buffer of 100 MB costs 10 ms and more.",
			Proves:  "Samples show the kernel's page fault code, or the thread was blocked in a page fault.",
			Refutes: "Faults of mapped files that wait for the disk (disk).",
			Changes: []Change{
				{
					inCode,
					"Reuse large buffers instead of making new ones for each batch",
					"buffer = np.empty(shape, np.float32)  # once\nnp.multiply(images, 1 / 255.0, out=buffer)",
				},
				{
					onHost,
					"Let malloc keep blocks of up to 32 MiB: glibc can give blocks from 128 KiB up back to the " +
						"kernel at each free",
					"MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=1073741824 python infer.py",
				},
				{
					onHost,
					"Use huge pages for large buffers (one fault for 2 MiB), and switch swap off on inference hosts",
					"echo madvise > /sys/kernel/mm/transparent_hugepage/enabled\n" +
						"NUMPY_MADVISE_HUGEPAGE=1 THP_MEM_ALLOC_ENABLE=1 python infer.py",
				},
			},
		},
	}
}

// cpuRows are the causes that lie in the host's processors.
func cpuRows(cpus int) []Cause {
	half := max(1, cpus/2)
	return []Cause{
		{
			ID: NoCPU, Key: "no-cpu", Title: "threads could run and have no CPU", Group: HostWaits,
			Means: "The thread that the GPU waits for was ready to run, and other threads had the CPUs: of the " +
				"same program (too many threads), or of others on the host.",
			Proves: "The scheduler says that the thread was runnable and not on a CPU; where it was displaced, by " +
				"whom.",
			Refutes: "A quota of the cgroup that was used up (throttled). Where nobody took the CPU and the cgroup's " +
				"counter stood still, a real-time thread has used up its part of the period.",
			Changes: []Change{
				{
					inPyTorch,
					"Run fewer threads: by default each library starts one for each CPU of the host, in each process",
					fmt.Sprintf(
						"OMP_NUM_THREADS=%d MKL_NUM_THREADS=%d TOKENIZERS_PARALLELISM=false python infer.py\n"+
							"# or: torch.set_num_threads(%d); torch.set_num_interop_threads(1)",
						half,
						half,
						half,
					),
				},
				{
					onHost,
					"Give the program CPUs of its own: pin it to some, and other programs to the rest",
					fmt.Sprintf("taskset -c %s python infer.py", numbers(cpus-half, cpus-1)),
				},
				{
					onHost,
					"Ask Kubernetes for whole CPUs (requests equal to limits, and the static CPU manager policy), or " +
						"give the program a higher priority",
					"nice -n -5 python infer.py",
				},
				{
					onHost,
					"Where nobody took the CPU: a thread of SCHED_FIFO or SCHED_RR runs for sched_rt_runtime_us of " +
						"each sched_rt_period_us (95% by default)",
					"sysctl kernel.sched_rt_runtime_us",
				},
			},
		},
		{
			ID: Throttled, Key: "throttled", Title: "the container's CPU quota is used up", Group: HostWaits,
			Means: "The cgroup may use only so much CPU time in each period of 100 ms. When all of its threads " +
				"together have used it, all of them stand still until the next period, also the one that launches.",
			Proves: "The thread was taken off its CPU while nobody else took it, and the cgroup's cpu.stat counts " +
				"throttled time.",
			Refutes: "Another thread that took the CPU (no-cpu).",
			Changes: []Change{
				{
					onHost,
					"Raise or remove the CPU limit of the container, and keep the request",
					fmt.Sprintf(
						"resources:\n  requests: {cpu: \"%d\"}\n  limits: {nvidia.com/gpu: 1}  # no cpu here",
						cpus,
					),
				},
				{
					inPyTorch,
					"Use fewer threads than the limit allows: 32 threads use up a quota of 4 CPUs in an eighth of " +
						"the period",
					fmt.Sprintf("OMP_NUM_THREADS=%d python infer.py\n# or: torch.set_num_threads(%d)", half, half),
				},
				{onHost, "Watch it: nr_throttled should stay where it is", "cat /sys/fs/cgroup/cpu.stat"},
			},
		},
		{
			ID: RemoteMemory, Key: "remote-memory", Title: "threads or memory are on another NUMA node than the GPU",
			Group: HostWaits,
			Means: "The program's threads run, or its memory lies, on another processor socket than the one the " +
				"GPU is attached to. Copies and launches cross the link between the sockets.",
			Proves: "The pages of the program, or the CPUs that its threads ran on, belong to another NUMA node " +
				"than the GPU. This shows that it can cost time, not how much.",
			Refutes: "A host with one NUMA node.",
			Changes: []Change{
				{
					onHost,
					"Bind the program to the node of its GPU; the topology says which that is",
					"nvidia-smi topo -m\nnumactl --cpunodebind=1 --membind=1 python infer.py",
				},
				{
					onHost,
					"In Kubernetes, let the topology manager do it: policy single-numa-node, with the static CPU " +
						"manager",
					"",
				},
			},
		},
	}
}

// numbers writes those of several CPUs.
func numbers(first, last int) string {
	if first == last {
		return strconv.Itoa(first)
	}
	return fmt.Sprintf("%d-%d", first, last)
}
