// SPDX-License-Identifier: Apache-2.0
// A graph is captured, slowly, in the mode that forbids other threads what may be unsafe, launched once, and thrown away: as an inference
// engine does for each size when it starts. A call of another thread's that CUDA takes for unsafe would spoil the capture.
#include <chrono>
#include <thread>

#include "kernels.h"

struct Captures : Work {
  static constexpr int nodes = 8;
  Counter counter;
  cudaStream_t stream;

  Captures() { CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
  void iterate(bool counted) override {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < nodes; i++) {
      if (counted) counted_us5<<<4, 64, 0, stream>>>(counter.device);
      else work_us5<<<4, 64, 0, stream>>>(counter.device);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    did(nodes, 0, 1);
  }
  uint64_t executed() override { return counter.read(); }
};

int main(int argc, char **argv) { return Runner().run(argc, argv, 1, [] { return new Captures; }); }
