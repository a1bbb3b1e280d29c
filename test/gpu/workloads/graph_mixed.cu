// SPDX-License-Identifier: Apache-2.0
// One thread replays CUDA graphs, two others launch kernels and wait for their own streams.
#include "graphs.h"
#include "launches.h"

int main(int argc, char **argv) {
  std::atomic<int> threads{0};
  return Runner().run(argc, argv, 3, [&]() -> Work * {
    if (threads++ == 0) return new Graphs;
    return new Launches;
  });
}
