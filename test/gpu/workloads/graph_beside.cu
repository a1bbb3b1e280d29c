// SPDX-License-Identifier: Apache-2.0
// One thread captures, in the mode that binds no other: a server that prepares a graph for one more size. Another
// replays graphs and waits for them, a third launches kernels: windows end in calls of the second, in the midst of a
// capture.
#include "captures.h"
#include "graphs.h"
#include "launches.h"

int main(int argc, char **argv) {
  std::atomic<int> made{0};
  return captures_beside(argc, argv, cudaStreamCaptureModeThreadLocal, 2, [&]() -> Work * {
    if (made++ == 0) return new Graphs;
    return new Launches;
  });
}
