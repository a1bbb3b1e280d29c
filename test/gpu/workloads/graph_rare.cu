// SPDX-License-Identifier: Apache-2.0
// One thread replays a CUDA graph three times a second, as a server does with each request; two others launch kernels
// and wait for their own streams all the time.
#include <chrono>
#include <thread>

#include "graphs.h"
#include "launches.h"

struct Rarely : Graphs {
  void iterate(bool count) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    Graphs::iterate(count);
  }
};

int main(int argc, char **argv) {
  std::atomic<int> threads{0};
  return Runner().run(argc, argv, 3, [&]() -> Work * {
    if (threads++ == 0) return new Rarely;
    return new Launches;
  });
}
