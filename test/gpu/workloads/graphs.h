// SPDX-License-Identifier: Apache-2.0
// Graphs as inference engines make them, for several of the workloads.
#pragma once
#include "kernels.h"

// Graphs are instantiated at the start and replayed in each iteration, with one node's parameters changed each time and
// the whole graph updated from another every eighth time.
struct Graphs : Work {
  static constexpr int nodes = 96;
  Counter counter;
  cudaStream_t stream;
  struct Set { // one kernel in a chain, in two graphs of the same shape
    void *kernel;
    cudaGraph_t graph[2];
    std::vector<cudaGraphNode_t> node;
    cudaGraphExec_t exec;
  } work, counted;
  uint64_t turn = 0;

  cudaKernelNodeParams params(void *kernel, unsigned blocks, void **args) {
    cudaKernelNodeParams p = {};
    p.func = kernel;
    p.gridDim = dim3(blocks), p.blockDim = dim3(64);
    p.kernelParams = args;
    return p;
  }

  cudaGraph_t chain(void *kernel, unsigned blocks, std::vector<cudaGraphNode_t> *all) {
    cudaGraph_t g;
    CHECK(cudaGraphCreate(&g, 0));
    void *args[] = {&counter.device};
    cudaKernelNodeParams p = params(kernel, blocks, args);
    cudaGraphNode_t last = nullptr;
    for (int i = 0; i < nodes; i++) {
      cudaGraphNode_t n;
      CHECK(cudaGraphAddKernelNode(&n, g, last ? &last : nullptr, last ? 1 : 0, &p));
      if (all) all->push_back(n);
      last = n;
    }
    return g;
  }

  void build(Set &s, void *kernel) {
    s.kernel = kernel;
    s.graph[0] = chain(kernel, 1, &s.node);
    s.graph[1] = chain(kernel, 2, nullptr);
    CHECK(cudaGraphInstantiateWithFlags(&s.exec, s.graph[0], 0));
  }

  Graphs() {
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    build(work, (void *)work_us5);
    build(counted, (void *)counted_us5);
  }

  void launch(bool count) {
    Set &s = count ? counted : work;
    void *args[] = {&counter.device};
    cudaKernelNodeParams p = params(s.kernel, 1 + (unsigned)(turn % 3), args);
    if (++turn % 8 == 0) {
      cudaGraphExecUpdateResultInfo info;
      CHECK(cudaGraphExecUpdate(s.exec, s.graph[turn / 8 % 2], &info));
    } else {
      CHECK(cudaGraphExecKernelNodeSetParams(s.exec, s.node[turn % nodes], &p));
    }
    CHECK(cudaGraphLaunch(s.exec, stream));
  }

  void iterate(bool count) override {
    launch(count);
    CHECK(cudaStreamSynchronize(stream));
    did(nodes, 0, 1);
  }
  uint64_t executed() override { return counter.read(); }
};
