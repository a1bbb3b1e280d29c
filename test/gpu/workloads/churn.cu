// SPDX-License-Identifier: Apache-2.0
// One thread makes a module, a stream, an event and memory, uses them once, and throws them away, over and over: as a
// compiler does that tries kernels at run time. Two more launch kernels and wait for their own streams all the time.
#include "launches.h"

// Driver is what the runtime has no function for, without linking libcuda.
struct Driver {
  int (*load)(void **module, const void *image);
  int (*unload)(void *module);
  int (*find)(void **function, void *module, const char *name);
  int (*launch)(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
      unsigned shared, cudaStream_t stream, void **args, void **extra);

  template <class F> static void get(const char *name, F &f) {
    cudaDriverEntryPointQueryResult found;
    CHECK(cudaGetDriverEntryPointByVersion(name, (void **)&f, 12000, cudaEnableDefault, &found));
    if (!f) fprintf(stderr, "the driver has no %s\n", name), _exit(3);
  }
  Driver() {
    get("cuModuleLoadData", load), get("cuModuleUnload", unload), get("cuModuleGetFunction", find),
        get("cuLaunchKernel", launch);
  }
};

#define DRIVER(call)                                                                       \
  do {                                                                                     \
    int e_ = (call);                                                                       \
    if (e_) fprintf(stderr, "%s:%d: %s: CUDA error %d\n", __FILE__, __LINE__, #call, e_), _exit(3); \
  } while (0)

struct Churn : Work {
  static constexpr size_t bytes = 1 << 20;
  Driver driver;

  void iterate(bool) override {
    void *module, *function;
    cudaStream_t stream;
    cudaEvent_t event;
    char *memory, *pinned;
    DRIVER(
        driver.load(&module, ".version 7.0\n.target sm_52\n.address_size 64\n.visible .entry tried_us5() { ret; }\n"));
    DRIVER(driver.find(&function, module, "tried_us5"));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CHECK(cudaMalloc((void **)&memory, bytes));
    CHECK(cudaHostAlloc((void **)&pinned, bytes, 0));
    CHECK(cudaMemcpyAsync(memory, pinned, bytes, cudaMemcpyHostToDevice, stream));
    DRIVER(driver.launch(function, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, nullptr));
    CHECK(cudaEventRecord(event, stream));
    CHECK(cudaEventSynchronize(event));
    CHECK(cudaFreeHost(pinned));
    CHECK(cudaFree(memory));
    CHECK(cudaEventDestroy(event));
    CHECK(cudaStreamDestroy(stream));
    DRIVER(driver.unload(module));
  }
};

int main(int argc, char **argv) {
  std::atomic<int> threads{0};
  return Runner().run(argc, argv, 3, [&]() -> Work * {
    if (threads++ == 0) return new Churn;
    return new Launches;
  });
}
