// SPDX-License-Identifier: Apache-2.0
// A CUDA graph is launched by a thread that was made for it and ends with it, as where a server makes one for each
// request: every second thread waits for its graph, the others leave that to the one that made them; every fourth
// instantiates and uploads it, too. Two more threads launch kernels and wait for their own streams all the time.
#include <chrono>
#include <thread>

#include "graphs.h"
#include "launches.h"

struct Born : Graphs {
  uint64_t made = 0;
  void anew(Set &s) {
    CHECK(cudaGraphExecDestroy(s.exec));
    CHECK(cudaGraphInstantiateWithFlags(&s.exec, s.graph[0], 0));
    CHECK(cudaGraphUpload(s.exec, stream));
  }
  void iterate(bool count) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    bool waits = ++made % 2;
    std::thread([this, count, waits] {
      if (made % 4 == 0) anew(count ? counted : work);
      launch(count);
      if (waits) CHECK(cudaStreamSynchronize(stream));
    }).join();
    if (!waits) CHECK(cudaStreamSynchronize(stream));
    did(nodes, 0, 1);
  }
};

int main(int argc, char **argv) {
  std::atomic<int> threads{0};
  return Runner().run(argc, argv, 3, [&]() -> Work * {
    if (threads++ == 0) return new Born;
    return new Launches;
  });
}
