// SPDX-License-Identifier: Apache-2.0
// A plain program: static cudart, no libcupti, 200 launches of about 3 us each an iteration, back to back.
#include "kernels.h"

struct Plain : Work {
  static constexpr int launches = 200;
  Counter counter;
  cudaStream_t stream;
  Plain() { CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
  void iterate(bool counted) override {
    for (int i = 0; i < launches; i++) {
      if (counted) counted_ns800<<<1, 32, 0, stream>>>(counter.device);
      else work_ns800<<<1, 32, 0, stream>>>(counter.device);
    }
    CHECK(cudaGetLastError());
    CHECK(cudaStreamSynchronize(stream));
    did(launches, 0, 0);
  }
  uint64_t executed() override { return counter.read(); }
};

int main(int argc, char **argv) {
  return Runner().run(argc, argv, 1, [] { return new Plain; });
}
