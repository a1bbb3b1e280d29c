// The part of PyTorch's c10 that tells profilers of memory: the same exported names and parameters as in
// c10/core/Allocator.h and c10/core/Device.h, so that probes on them cannot tell the difference.
#pragma once
#include <cstddef>
#include <cstdint>

namespace c10 {

enum class DeviceType : int8_t { CPU = 0, CUDA = 1 };

struct Device {
	DeviceType type;
	int8_t index;
};

void reportMemoryUsageToProfiler(
    void *ptr, int64_t alloc_size, size_t total_allocated, size_t total_reserved, Device device);
void reportOutOfMemoryToProfiler(int64_t alloc_size, size_t total_allocated, size_t total_reserved, Device device);

} // namespace c10
