package timeline_test

import (
	"testing"

	"github.com/inferscope/inferscope/internal/analysis/timeline"
)

// TestCommunication has the names as traces and binaries of these libraries show them.
func TestCommunication(t *testing.T) {
	for name, want := range map[string]string{
		"ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)":                                        "AllReduce",
		"ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)":          "SendRecv",
		"ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)":                           "AllGather",
		"ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)":              "ReduceScatter",
		"ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)":                                   "communication",
		"ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16(ncclSymkDevWorkArgs)":                           "AllReduce",
		"ncclKernel_AllToAll_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)":              "AllToAll",
		"void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*, vllm::RankSignals)": "AllReduce",
		"void sglang::cross_device_reduce_2stage<half, 8>(...)":                                       "AllReduce",
		"void flashinfer::trtllm_allreduce_fusion::" +
			"allreduce_fusion_kernel_oneshot_lamport<(AllReduceFusionPattern)1>()": "AllReduce",
		"void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_twoshot_sync<2>(...)": "AllReduce",
		"void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8>(...)":                  "AllReduce",
		"void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(...)":      "AllReduce",
		"one_shot_all_reduce_kernel":                                                                      "AllReduce",
		"void deep_ep::intranode::dispatch<8, 768>(...)":                                                  "dispatch",
		"void deep_ep::internode_ll::combine<true, 7168>(...)":                                            "combine",
		"nvshmemi_barrier_kernel":                                                                         "barrier",
		"void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot>()":                  "AllReduce",
		"mscclpp::allreduce7":                                                                             "AllReduce",
		"void (anonymous namespace)::all_reduce_one_shot_push_kernel<__half, 4u, true>(...)":              "AllReduce",
		"void (anonymous namespace)::all_reduce_two_shot_kernel<__nv_bfloat16, 8u, true>(...)":            "AllReduce",
		"void (anonymous namespace)::all_reduce_2shot_pull_kernel<Impl, __half, 4u, true>(...)":           "AllReduce",
		"void tensorrt_llm::kernels::lowPrecisionTwoShotAllReduceKernel<__half, __nv_fp8_e4m3, 8>(...)":   "AllReduce",
		"void tensorrt_llm::kernels::mnnvl_throughput::moeA2ADispatchKernel<8, false, false, false>(...)": "dispatch",
		"void tensorrt_llm::kernels::mnnvl_throughput::moeA2ACombineKernel<__nv_bfloat16, 8>(...)":        "combine",
		"void aiter::reduce_scatter_cross_device_store<__hip_bfloat16, 8>(aiter::RankData*)":              "ReduceScatter",
		"c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int, unsigned long)":            "barrier",
		"c10d::symmetric_memory::wait_signal_kernel(unsigned int**, int, int, int, int, unsigned long)":   "communication",
	} {
		if !timeline.IsCommunication(name) {
			t.Errorf("%s is not taken for communication", name)
		} else if got := timeline.Collective(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	for _, name := range []string{
		"", "void gemm<AllReduce>()", "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>()",
		"void cub::DeviceReduceKernel<Policy>()", "void layernorm::LayerNormWarpImpl<BlockAllReduce<SumOp>>()",
		"ampere_sgemm_128x64_nn", "void cutlass::Kernel<AllGatherGemm>()", "fused_gemm_all_reduce_kernel",
		"triton_red_fused_all_reduce_add_0", "void at::native::vectorized_elementwise_kernel<4>()",
		"splitKreduce_kernel", "void moe::topk_gating<broadcast>()", "void moeA2APrepareDispatchKernel()",
		"barrier_kernel", "void aiter::local_device_load_rmsnorm_512n<__hip_bfloat16>()",
	} {
		if timeline.IsCommunication(name) {
			t.Errorf("%q is taken for communication", name)
		}
	}
}
