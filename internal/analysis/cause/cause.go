// Package cause is the one table of why a GPU runs nothing, or less than it could: what
// each cause is called, what proves it, what refutes it, and what to change. The analysis,
// the reports and `inferscope explain` have no other source of these words.
package cause

// ID is a cause. Its number is not kept anywhere outside of a running program; Key is.
type ID uint8

// The causes. Those before CopyNotOverlapped explain time in which a GPU runs nothing, the
// others time in which it runs and could do better.
const (
	Unknown              ID = iota // no evidence says why
	PythonWork                     // Python code of the program
	NativeWork                     // the same in native code
	Preprocessing                  // tokenization, decoding and resizing of images, parsing of text and tables: recognised as such
	LaunchOverhead                 // the CPU cannot launch as fast as the GPU runs
	HostSync                       // a thread waits for the GPU at each step, so that its queue runs empty
	SyncCopy                       // copies that hold their caller, or that go through pageable memory
	Allocation                     // cudaMalloc, cudaFree, pinning
	Worker                         // the launching thread waits for another thread or process of the target, which computes
	Lock                           // a lock that another thread holds
	GIL                            // CPython's global interpreter lock
	GC                             // CPython's garbage collection
	Serialization                  // pickle and its kin
	Compilation                    // nvrtc, Triton, inductor, loading of modules, imports: warm-up
	Disk                           // reading or writing files
	Network                        // an answer from another machine or service
	PageFaults                     // pages that come from the disk or from the kernel
	NoCPU                          // threads could run and have no CPU
	Throttled                      // the cgroup's CPU quota is used up
	RemoteMemory                   // threads or pages are on another NUMA node than the GPU
	Sleep                          // the program sleeps
	NoWork                         // nobody asks the server for anything
	Dependency                     // work is queued and waits for another stream or host function
	PipelineBubble                 // a GPU waits until another GPU has done its part
	StartEnd                       // what a program does before its first iteration, and after its last
	CopyNotOverlapped              // copies while no kernel runs, though they need not hold anybody
	SmallBatch                     // kernels too small to fill the GPU
	TinyKernels                    // kernels so short that starting them takes as long
	BandwidthBound                 // kernels that wait for memory: decoding with a small batch
	CopyBound                      // more time in copies than in kernels
	Straggler                      // GPUs wait in a collective operation for one that is always late
	Imbalance                      // GPUs wait in collective operations for now the one and now the other, which computes more
	ExposedCommunication           // GPUs exchange data, or wait for each other, and compute nothing meanwhile
	LowClocks                      // heat or the power supply holds the GPU's clocks down
	Hang                           // GPUs wait in a collective operation for a rank that has not come for seconds
	GPUError                       // the driver reported an error of a GPU, which did nothing more since
	Count                          // how many there are
)

// Busy reports whether the cause is about time in which the GPU runs.
func (id ID) Busy() bool { return id >= CopyNotOverlapped && id < Count }

// Cause is one row of the table.
type Cause struct {
	ID      ID
	Key     string // for JSON, `explain` and links: "host-sync"
	Title   string // for people, a few words: "the host waits for the GPU at every step"
	Group   Group
	Means   string   // what it is, one or two sentences
	Proves  string   // what in a recording proves it
	Refutes string   // what refutes it, or makes it another cause
	Changes []Change // what to change, the best first
}

// Change is something that a user can do about a cause.
type Change struct {
	Where   string // "PyTorch", "CUDA", "Python", "host", "serving", or Code
	Text    string // the imperative: "Tokenize the next batch while the GPU works on this one"
	Example string // code, several lines; "" where there is none
}

// Code is where a Change is that holds in any language; its example is in Python.
const Code = "program"

// Group is where a cause stands in the view of the breakdown that people know.
type Group uint8

// The groups.
const (
	Other     Group = iota // idle for a reason that is none of these
	CPUWork                // CPU preprocessing: the program's own computing
	Framework              // framework and runtime overhead: launching, synchronizing, allocating
	HostWaits              // waiting for a lock, a worker, a CPU, a disk, the network
	Offered                // nothing to do
	OnGPU                  // no idle time
	Requests               // no time of a GPU, but of the requests that a server answers
)
