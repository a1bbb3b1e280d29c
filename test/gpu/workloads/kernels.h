// SPDX-License-Identifier: Apache-2.0
// The workloads' kernels. Each counts itself on the device, once, and those of a "count" command have names of their
// own, so that a profiler's records can be compared with what ran, exactly. A name says how long a kernel takes at
// least: spinning ones wait for the GPU's own clock.
#pragma once
#include "workload.h"

__device__ inline unsigned long long gpu_clock() {
  unsigned long long t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

__device__ inline void spin(unsigned long long *n, unsigned ns) {
  unsigned long long end = gpu_clock() + ns;
  if (!threadIdx.x && !blockIdx.x) atomicAdd(n, 1ull);
  while (gpu_clock() < end) {}
}

extern "C" __global__ void work_us5(unsigned long long *n) { spin(n, 5000); }
extern "C" __global__ void counted_us5(unsigned long long *n) { spin(n, 5000); }
extern "C" __global__ void work_ns800(unsigned long long *n) {
  if (!threadIdx.x) atomicAdd(n, 1ull);
}
extern "C" __global__ void counted_ns800(unsigned long long *n) {
  if (!threadIdx.x) atomicAdd(n, 1ull);
}
