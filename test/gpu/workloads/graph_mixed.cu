// SPDX-License-Identifier: Apache-2.0
// One thread replays CUDA graphs, two others launch kernels and wait for their own streams.
#include "graphs.h"

struct Launches : Work {
  static constexpr int kernels = 6;
  Counter counter;
  cudaStream_t stream;

  Launches() { CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
  void iterate(bool counted) override {
    for (int i = 0; i < kernels; i++) {
      if (counted) counted_us5<<<4, 64, 0, stream>>>(counter.device);
      else work_us5<<<4, 64, 0, stream>>>(counter.device);
    }
    CHECK(cudaGetLastError());
    CHECK(cudaStreamSynchronize(stream));
    did(kernels, 0, 0);
  }
  uint64_t executed() override { return counter.read(); }
};

int main(int argc, char **argv) {
  std::atomic<int> threads{0};
  return Runner().run(argc, argv, 3, [&]() -> Work * {
    if (threads++ == 0) return new Graphs;
    return new Launches;
  });
}
