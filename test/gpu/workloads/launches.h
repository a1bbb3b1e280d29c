// SPDX-License-Identifier: Apache-2.0
// A thread that launches kernels, and waits for its own stream.
#pragma once
#include "kernels.h"

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
