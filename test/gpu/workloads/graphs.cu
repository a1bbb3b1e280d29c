// SPDX-License-Identifier: Apache-2.0
// An inference loop as engines make it: one thread replays CUDA graphs all the time.
#include "graphs.h"

int main(int argc, char **argv) {
  return Runner().run(argc, argv, 1, [] { return new Graphs; });
}
