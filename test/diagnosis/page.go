package diagnosis

// page is docs/diagnosis-accuracy.md around the tables.
func page(tables string) string {
	return `# How right the diagnosis is

Printed by ` + "`make bench-diagnosis`" + ` (root, a C compiler, Python 3; no GPU): programs with causes planted in them run on the simulated CUDA under the real daemon,
with its probes and agent. Each program writes down when it did what, the simulator when its GPU ran, and both are held against the top finding of the
recording's report: that which pays most, by its foretold gain. The truth of a cause is for how long the GPU was idle while the program did what the cause says; of copies, for how long
they ran and no kernel did; of kernels, for how long those ran that were planted. What of it the program waited for a CPU is no-cpu's. The analysis sees no names of scenarios; see testdata/scenarios/README.md for what
the programs do, and how the truth is had. Of time in page faults up to a tenth is called native work of the function that faults: an interrupt that comes while the kernel leaves its handler finds the program's own code.

` + tables
}
