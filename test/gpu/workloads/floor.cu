// SPDX-License-Identifier: Apache-2.0
// What CUPTI itself costs a launch, whoever asks it: the launches of plain.cu, alone and with kernel records and callbacks turned on by
// somebody who does nothing with them. The declarations are the agent's.
//
//   floor LIBCUPTI [ROUNDS]     says {"WAY": [ns a launch of each round], ...}
#include <dlfcn.h>

#include "../../../agent/src/cupti.h"
#include "kernels.h"

namespace {

cupti api;
void *subscriber;

constexpr size_t size = 256 << 10, buffers = 256; // as the agent's, but more: none is waited for
alignas(8) uint8_t memory[buffers][size];
std::atomic<bool> busy[buffers];
std::atomic<uint64_t> came{0}; // buffers

void request(uint8_t **buffer, size_t *bytes, size_t *records) {
  *buffer = nullptr, *bytes = 0, *records = 0;
  for (size_t i = 0; i < buffers; i++) {
    bool free = false;
    if (!busy[i].compare_exchange_strong(free, true)) continue;
    *buffer = memory[i], *bytes = size;
    return;
  }
}
void complete(void *, uint32_t, uint8_t *buffer, size_t, size_t valid) {
  memset(buffer, 0, valid); // CUPTI's thread: for those of ZEROED
  busy[(size_t)(buffer - memory[0]) / size] = false, came++;
}
void nothing(void *, uint32_t, uint32_t, const callback_data *) {}

void must(int result, const char *what) {
  if (result) fprintf(stderr, "%s: error %d\n", what, result), _exit(3);
}

template <class F> void find(void *library, const char *name, F &f) {
  f = (F)dlsym(library, name);
  if (!f) fprintf(stderr, "libcupti lacks %s\n", name), _exit(3);
}

// CUpti_ActivityAttribute: buffers come zeroed; what the device writes lies in pinned memory of the host's.
enum { ATTRIBUTE_ZEROED = 5, ATTRIBUTE_PINNED = 8 };
int (*set_attribute)(int attribute, size_t *bytes, void *value);

bool attribute(int which, bool value) {
  uint8_t v = value;
  size_t bytes = sizeof v;
  return set_attribute && !set_attribute(which, &bytes, &v);
}

void load(const char *path) {
  void *library = dlopen(path, RTLD_NOW);
  if (!library) fprintf(stderr, "%s\n", dlerror()), _exit(3);
  find(library, "cuptiSubscribe", api.subscribe), find(library, "cuptiEnableCallback", api.callback);
  find(library, "cuptiActivityRegisterCallbacks", api.buffers), find(library, "cuptiActivityEnable", api.enable);
  find(library, "cuptiActivityFlushAll", api.flush), find(library, "cuptiFinalize", api.finalize);
  api.set_thread_ids = (int (*)(uint32_t))dlsym(library, "cuptiSetThreadIdType"); // these two may be missing
  set_attribute = (int (*)(int, size_t *, void *))dlsym(library, "cuptiActivitySetAttribute");
}

enum { CALLBACKS = 1, RECORDS = 2, SUBSCRIBED = 4, SYSTEM_IDS = 8, PINNED = 16, ZEROED = 32 };

// Whether this CUPTI can be asked for that.
bool on(int what) {
  if (!what) return true;
  must(api.subscribe(&subscriber, nothing, nullptr), "cuptiSubscribe");
  must(api.buffers(request, complete), "cuptiActivityRegisterCallbacks");
  bool ids = api.set_thread_ids && !api.set_thread_ids(what & SYSTEM_IDS ? THREAD_ID_SYSTEM : 0);
  bool pinned = attribute(ATTRIBUTE_PINNED, what & PINNED), zeroed = attribute(ATTRIBUTE_ZEROED, what & ZEROED);
  for (uint32_t id : {307u, 442u, 477u, 478u, 652u, 653u}) // the launches, as in agent/src/calls.c; one that this CUPTI lacks is refused
    if (what & CALLBACKS) api.callback(1, subscriber, DOMAIN_DRIVER, id);
  if (what & RECORDS) must(api.enable(KIND_CONCURRENT_KERNEL), "cuptiActivityEnable");
  return (ids || !(what & SYSTEM_IDS)) && (pinned || !(what & PINNED)) && (zeroed || !(what & ZEROED));
}

// Out of the enabled state, with nothing under way; there are no graphs here, and no other thread.
void off(int what) {
  if (!what) return;
  api.flush(FLUSH_FORCED);
  must(api.finalize(), "cuptiFinalize");
  for (auto &b : busy) b = false;
}

// ns of each launch of half a second.
double measure(unsigned long long *counter, cudaStream_t stream) {
  constexpr int launches = 200;
  uint64_t begin = now(), n = 0;
  while (now() - begin < 500000000) {
    for (int i = 0; i < launches; i++) work_ns800<<<1, 32, 0, stream>>>(counter);
    CHECK(cudaGetLastError());
    CHECK(cudaStreamSynchronize(stream));
    n += launches;
  }
  return (double)(now() - begin) / (double)n;
}

const struct {
  const char *name;
  int what;
} ways[] = {{"alone", 0}, {"subscribed", SUBSCRIBED}, {"callbacks", CALLBACKS}, {"records", RECORDS}, {"records and callbacks", RECORDS | CALLBACKS},
            {"both, ids by gettid", RECORDS | CALLBACKS | SYSTEM_IDS}, {"both, pinned", RECORDS | CALLBACKS | PINNED}, {"both, zeroed", RECORDS | CALLBACKS | ZEROED}, {"after it", 0}};

} // namespace

int main(int argc, char **argv) {
  if (argc < 2) return fputs("usage: floor LIBCUPTI [ROUNDS]\n", stderr), 2;
  Counter counter;
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  measure(counter.device, stream);
  load(argv[1]);
  std::vector<std::vector<double>> took(std::size(ways));
  for (int round = 0; round < (argc > 2 ? atoi(argv[2]) : 5); round++)
    for (size_t i = 0; i < std::size(ways); i++) {
      uint64_t before = came;
      bool can = on(ways[i].what);
      if (can) took[i].push_back(measure(counter.device, stream));
      off(ways[i].what);
      if (can && ways[i].what & RECORDS && came == before) return fputs("no records came\n", stderr), 3;
    }
  for (size_t i = 0; i < std::size(ways); i++) {
    printf("%s\"%s\": [", i ? ", " : "{", ways[i].name);
    for (size_t r = 0; r < took[i].size(); r++) printf("%s%.1f", r ? ", " : "", took[i][r]);
    printf("]");
  }
  puts("}");
}
