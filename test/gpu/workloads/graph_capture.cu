// SPDX-License-Identifier: Apache-2.0
// One thread captures in the mode that forbids other threads what may be unsafe: a call of another thread's that CUDA
// takes for that would spoil the capture.
#include "captures.h"

int main(int argc, char **argv) {
  return Runner().run(argc, argv, 1, [] { return new Captures(cudaStreamCaptureModeGlobal, true); });
}
