// SPDX-License-Identifier: Apache-2.0
// One thread that launches a CUDA graph before it waits for the one before: at each of its waits a graph is on the
// device.
#include "graphs.h"

struct Ahead : Graphs {
  cudaEvent_t ended[2];

  Ahead() {
    for (auto &e : ended) {
      CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
      CHECK(cudaEventRecord(e, stream));
    }
  }
  void iterate(bool count) override {
    turn++;
    CHECK(cudaGraphLaunch((count ? counted : work).exec, stream));
    CHECK(cudaEventRecord(ended[turn % 2], stream));
    CHECK(cudaEventSynchronize(ended[(turn + 1) % 2]));
    did(nodes, 0, 1);
  }
  uint64_t executed() override {
    CHECK(cudaStreamSynchronize(stream));
    return Graphs::executed();
  }
};

int main(int argc, char **argv) {
  return Runner().run(argc, argv, 1, [] { return new Ahead; });
}
