// SPDX-License-Identifier: Apache-2.0
// Graphs that are captured slowly, for several of the workloads: as an inference engine does for each size when it
// starts.
#pragma once
#include <chrono>
#include <thread>

#include "kernels.h"

// A graph is captured, instantiated, launched once or not at all, and thrown away.
struct Captures : Work {
  static constexpr int nodes = 8;
  const cudaStreamCaptureMode mode; // what is forbidden to whom meanwhile
  const bool launched;
  Counter counter;
  cudaStream_t stream;

  Captures(cudaStreamCaptureMode mode, bool launched) : mode(mode), launched(launched) {
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  }
  void iterate(bool counted) override {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(stream, mode));
    for (int i = 0; i < nodes; i++) {
      if (counted) counted_us5<<<4, 64, 0, stream>>>(counter.device);
      else work_us5<<<4, 64, 0, stream>>>(counter.device);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    if (launched) {
      CHECK(cudaGraphLaunch(exec, stream));
      CHECK(cudaStreamSynchronize(stream));
      did(nodes, 0, 1);
    }
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
  }
  uint64_t executed() override { return counter.read(); }
};

// One thread captures and launches none of it, others do as make says; it begins when they are made, for then they wait
// for the whole device, which no capture allows.
inline int captures_beside(
    int argc, char **argv, cudaStreamCaptureMode mode, int others, const std::function<Work *()> &make) {
  std::atomic<int> threads{0}, ready{0};
  return Runner().run(argc, argv, (unsigned)others + 1, [&]() -> Work * {
    bool captures = threads++ == 0;
    Work *w = captures ? new Captures(mode, false) : make();
    for (ready++; captures && ready <= others;) silence(1);
    return w;
  });
}
