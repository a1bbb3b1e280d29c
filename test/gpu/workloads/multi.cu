// SPDX-License-Identifier: Apache-2.0
// A thread for each GPU, each with a stream of its own there: 20 kernels of 5 us an iteration.
#include "kernels.h"

struct Multi : Work {
  static constexpr int launches = 20;
  Counter counter;
  cudaStream_t stream;
  Multi() { CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
  void iterate(bool counted) override {
    for (int i = 0; i < launches; i++) {
      if (counted) counted_us5<<<2, 64, 0, stream>>>(counter.device);
      else work_us5<<<2, 64, 0, stream>>>(counter.device);
    }
    CHECK(cudaGetLastError());
    CHECK(cudaStreamSynchronize(stream));
    did(launches, 0, 0);
  }
  uint64_t executed() override { return counter.read(); }
};

int main(int argc, char **argv) {
  int devices = 0;
  CHECK(cudaGetDeviceCount(&devices));
  return Runner().run(argc, argv, (unsigned)devices, [] { return new Multi; }, true);
}
