// SPDX-License-Identifier: Apache-2.0
// As graph_capture, but no graph is launched, and another thread launches kernels for which nobody waits: a window has
// to end in a call of the agent's own thread, in the midst of a capture that forbids such calls.
#include "captures.h"
#include "launches.h"

struct Feeds : Launches {
  void iterate(bool) override {
    work_us5<<<4, 64, 0, stream>>>(counter.device);
    CHECK(cudaGetLastError());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  uint64_t executed() override { return 0; } // a copy is not allowed while the other captures
};

int main(int argc, char **argv) {
  return captures_beside(argc, argv, cudaStreamCaptureModeGlobal, 1, [] { return new Feeds; });
}
