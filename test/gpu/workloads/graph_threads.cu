// SPDX-License-Identifier: Apache-2.0
// Four threads that each replay CUDA graphs of their own all the time.
#include "graphs.h"

int main(int argc, char **argv) {
  return Runner().run(argc, argv, 4, [] { return new Graphs; });
}
