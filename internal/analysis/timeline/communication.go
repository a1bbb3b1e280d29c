package timeline

import (
	"regexp"
	"strings"
)

// communication are the names of kernels that move data between GPUs, or wait for other GPUs, and compute nothing but
// the reduction on the way: NCCL and RCCL (ncclKernel_ before 2.18, ncclDevKernel_ since, ncclSymkDevKernel_ of 2.27
// for symmetric memory), the custom all-reduce of vLLM, SGLang and AITER (cross_device_reduce_*) and its quick one,
// SGLang's compiled at run time (all_reduce_one_shot_*), the fusions and all-to-all (moeA2A*) of TensorRT-LLM and
// FlashInfer, PyTorch's symmetric memory (one_shot_all_reduce, multimem_*), NVSHMEM and DeepEP, MSCCL++ and Userbuffers
// of Transformer Engine. They are matched against the name of the function alone, without its parameters: templates of
// reductions inside of a block are called BlockAllReduce too.
var communication = regexp.MustCompile(
	`^nccl(Symk)?(Dev)?Kernel|^rccl_|^msccl(pp)?|(^|::|_)cross_device_reduce|quick_?reduce::|` +
		`(^|::)(moe)?(all_?reduce|reduce_?all_?reduce|moefinalize_allreduce|moereduction_allreduce)_fusion|` +
		`(?i:(one|two)_?shot_?all_?reduce)|(^|::)all_reduce_(one_|two_|1|2)shot_|(^|::)moeA2A(Dispatch|Combine)|` +
		`(^|::)reduce_scatter_cross_device|(^|::)symmetric_memory::(barrier|put_signal|wait_signal)_kernel$|` +
		`(^|::)lamport_?\w*all_?reduce|(^|_|::)multimem_|` +
		`(^|::)(all_?(reduce|gather|to_?all)|reduce_?scatter)(_kernel|\w*Packet|\d)?$|` +
		`(^|::)symm_?mem|^nvshmemi?_|(^|::)nvshmem|deep_ep::|mscclpp::|(^|::)userbuffers_`,
)

// computes are words of kernels that compute too, and are not only communication: a matrix product whose epilogue
// reduces.
var computes = regexp.MustCompile(`(?i)gemm|matmul|conv|attention`)

// maxCommunicationName bounds what is read of a kernel's name.
const maxCommunicationName = 512

// IsCommunication reports whether a kernel, by its demangled name, is communication between GPUs.
func IsCommunication(kernel string) bool {
	name := functionName(kernel)
	return communication.MatchString(name) && !computes.MatchString(name)
}

// functionName is the name of a function without its type, template arguments and parameters. Mangled names are taken
// as they are, without their mark and lengths.
func functionName(s string) string {
	s = s[:min(len(s), maxCommunicationName)]
	s = strings.TrimPrefix(s, "void ")
	s = strings.ReplaceAll(s, "(anonymous namespace)", "")
	if i := strings.IndexAny(s, "<("); i > 0 {
		s = s[:i]
	}
	return strings.TrimSpace(s)
}

// collectives are the operations of collective communication, as names of kernels have them, those first whose names
// hold others.
var collectives = []struct{ word, name string }{
	{"allreduce", "AllReduce"},
	{"crossdevicereduce", "AllReduce"},
	{"quickreduce", "AllReduce"},
	{"reducescatter", "ReduceScatter"},
	{"allgather", "AllGather"},
	{"alltoall", "AllToAll"},
	{"sendrecv", "SendRecv"},
	{"broadcast", "Broadcast"},
	{"dispatch", "dispatch"},
	{"combine", "combine"},
	{"barrier", "barrier"},
	{"reduce", "Reduce"},
}

// Collective names the operation of a kernel that is communication: AllReduce, AllGather, ...; "communication" where
// its name does not tell. Algorithm and protocol are not read from names: NCCL has one or two kernels for an operation
// and type, called RING_LL and TREE_LL, which run every algorithm and protocol (best_kernel of its
// src/device/generate.py). Launches tell (cuda.NCCLFunctionOf).
func Collective(kernel string) string {
	name := strings.ToLower(strings.NewReplacer("_", "", ":", "").Replace(functionName(kernel)))
	for _, c := range collectives {
		if strings.Contains(name, c.word) {
			return c.name
		}
	}
	return "communication"
}

// Communicates returns for each kernel of the recording whether it is communication; nil where none is.
func (t *Timeline) Communicates() []bool {
	if t.Rec.Meta.GPU == nil {
		return nil
	}
	var out []bool
	for i, k := range t.Rec.Meta.GPU.Kernels {
		if !IsCommunication(k.Name) {
			continue
		}
		if out == nil {
			out = make([]bool, len(t.Rec.Meta.GPU.Kernels))
		}
		out[i] = true
	}
	return out
}
