// SPDX-License-Identifier: Apache-2.0
// Four threads on one GPU, each with a stream of its own: copies from pinned and pageable memory, kernels, copies back.
#include "kernels.h"

struct Streams : Work {
  static constexpr size_t bytes = 256 << 10;
  static constexpr int kernels = 6;
  Counter counter;
  cudaStream_t stream;
  char *device, *pinned;
  std::vector<char> pageable = std::vector<char>(bytes);

  Streams() {
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaMalloc((void **)&device, bytes));
    CHECK(cudaHostAlloc((void **)&pinned, bytes, 0));
  }
  void iterate(bool counted) override {
    CHECK(cudaMemcpyAsync(device, pinned, bytes, cudaMemcpyHostToDevice, stream));
    CHECK(cudaMemcpyAsync(device, pageable.data(), bytes, cudaMemcpyHostToDevice, stream));
    for (int i = 0; i < kernels; i++) {
      if (counted) counted_us5<<<4, 64, 0, stream>>>(counter.device);
      else work_us5<<<4, 64, 0, stream>>>(counter.device);
    }
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpyAsync(pinned, device, bytes, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaMemcpyAsync(pageable.data(), device, bytes, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    did(kernels, 4, 0);
  }
  uint64_t executed() override { return counter.read(); }
};

int main(int argc, char **argv) {
  return Runner().run(argc, argv, 4, [] { return new Streams; });
}
