// SPDX-License-Identifier: Apache-2.0
// What the C++ workloads of the GPU check share: threads that iterate until told otherwise, what each iteration took in
// a file that others may map meanwhile, exact counts, and commands on stdin. A workload knows nothing of who watches
// it.
//
//   PROGRAM [--stats FILE] [--threads N]     FILE takes thread 0's iterations, FILE.1 thread 1's, ...
//
// Says {"ready": pid, ...} when it is warm, then iterates. Commands, one a line, each answered by one line of JSON:
//   count N MS   stop; MS of silence; N iterations of each thread with the counted kernels; MS of silence; go on
//   pause, go    stop between two iterations; go on
//   quit         or SIGTERM: end and say what was done
// It ends with 3 where a CUDA call failed, and says which on stderr.
#pragma once
#include <cuda_runtime.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../fault.h"

#define CHECK(call)                                                                                              \
  do {                                                                                                           \
    cudaError_t e_ = (call);                                                                                     \
    if (e_ != cudaSuccess) {                                                                                     \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(e_));                     \
      _exit(3);                                                                                                  \
    }                                                                                                            \
  } while (0)

// What it dies of is shown.
static const bool faults_are_shown = (fault_show(), true);

// now is CLOCK_MONOTONIC in ns.
inline uint64_t now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

inline void silence(uint64_t ms) { usleep((useconds_t)(ms * 1000)); }

// Stats is a shared mapping: a page of counters, then begin and end of each iteration in CLOCK_MONOTONIC ns. Readers
// see as many iterations as `iterations` says. Where the file is full, iterations are counted and not listed.
struct Stats {
  static constexpr uint64_t page = 4096, capacity = 4u << 20;
  struct Header {
    char magic[8];
    std::atomic<uint64_t> iterations, kernels, copies, graphs; // so far, of this thread
    uint64_t capacity;
  } *head = nullptr;
  uint64_t *times = nullptr;

  explicit Stats(const std::string &path) {
    int fd = path.empty() ? -1 : open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0644);
    size_t size = page + capacity * 16;
    if (!path.empty() && (fd < 0 || ftruncate(fd, (off_t)size))) perror(path.c_str()), _exit(2);
    void *p = mmap(nullptr, size, PROT_READ | PROT_WRITE,
        (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED) | MAP_POPULATE, fd, 0);
    if (p == MAP_FAILED) perror("mmap"), _exit(2);
    if (fd >= 0) close(fd);
    head = (Header *)p;
    head->capacity = capacity;
    memcpy(head->magic, "ISWORK1", 8);
    times = (uint64_t *)((char *)p + page);
  }
  void add(uint64_t begin, uint64_t end) {
    uint64_t i = head->iterations.load(std::memory_order_relaxed);
    if (i < capacity) times[2 * i] = begin, times[2 * i + 1] = end;
    head->iterations.store(i + 1, std::memory_order_release);
  }
};

// Work is what one thread does. iterate ends with a synchronization: nothing of it is on the device afterwards.
struct Work {
  Stats *stats = nullptr;
  virtual ~Work() = default;
  virtual void iterate(bool counted) = 0;
  virtual uint64_t executed() { return 0; } // kernels that ran, as the device counted them
  void did(uint64_t kernels, uint64_t copies, uint64_t graphs) {
    auto add = [](std::atomic<uint64_t> &a, uint64_t n) {
      a.store(a.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    };
    add(stats->head->kernels, kernels), add(stats->head->copies, copies), add(stats->head->graphs, graphs);
  }
};

// Counter is a word on the device that kernels count themselves in.
struct Counter {
  unsigned long long *device = nullptr;
  Counter() {
    CHECK(cudaMalloc((void **)&device, sizeof *device));
    CHECK(cudaMemset(device, 0, sizeof *device));
    CHECK(cudaDeviceSynchronize()); // streams that do not block would not wait for it
  }
  uint64_t read() const {
    unsigned long long n = 0;
    CHECK(cudaMemcpy(&n, device, sizeof n, cudaMemcpyDeviceToHost));
    return n;
  }
};

inline std::atomic<bool> stop_asked{false};

class Runner {
  struct Thread {
    std::unique_ptr<Stats> stats;
    std::unique_ptr<Work> work;
    std::thread thread;
    std::atomic<uint64_t> want{0}, done{0}; // counted iterations asked for, made
    std::atomic<bool> parked{false}, warm{false};
    uint64_t executed = 0;
    int device = 0;
    uint64_t counted_from = 0; // kernels before the last count
  };
  std::vector<std::unique_ptr<Thread>> threads;
  std::atomic<bool> paused{false}, ending{false};

  void one(Thread &t, bool counted) {
    uint64_t begin = now();
    t.work->iterate(counted);
    t.stats->add(begin, now());
  }

  void loop(Thread &t, const std::function<Work *()> &make) {
    CHECK(cudaSetDevice(t.device));
    t.work.reset(make());
    t.work->stats = t.stats.get();
    for (int i = 0; i < 20; i++) t.work->iterate(i % 2 == 1);
    for (t.warm = true; !ending;) {
      if (t.done < t.want) {
        one(t, true);
        t.done++;
      } else if (paused) {
        t.parked = true;
        silence(1);
      } else {
        t.parked = false;
        one(t, false);
      }
    }
    t.executed = t.work->executed();
  }

  void await(const std::function<bool(Thread &)> &ok) {
    for (auto &t : threads)
      while (!ok(*t)) silence(1);
  }

  uint64_t total(std::atomic<uint64_t> Stats::Header::*field) {
    uint64_t n = 0;
    for (auto &t : threads) n += (t->stats->head->*field).load();
    return n;
  }

  void stop() {
    paused = true;
    await([](Thread &t) { return t.parked.load(); });
  }
  void go() {
    for (auto &t : threads) t->parked = false;
    paused = false;
  }

  void count(uint64_t n, uint64_t ms) {
    stop();
    silence(ms);
    uint64_t kernels = total(&Stats::Header::kernels), copies = total(&Stats::Header::copies), begin = now();
    for (auto &t : threads) t->counted_from = t->stats->head->kernels, t->want += n;
    await([](Thread &t) { return t.done == t.want; });
    uint64_t end = now();
    silence(ms);
    printf("{\"begin_ns\": %" PRIu64 ", \"end_ns\": %" PRIu64 ", \"iterations\": %" PRIu64 ", \"kernels\": %" PRIu64
           ", \"copies\": %" PRIu64 ", \"by_thread\": [",
        begin, end, n * threads.size(), total(&Stats::Header::kernels) - kernels,
        total(&Stats::Header::copies) - copies);
    for (auto &t : threads)
      printf("%s%" PRIu64, t == threads.front() ? "" : ", ", t->stats->head->kernels - t->counted_from);
    puts("]}");
    go();
  }

  void answer(const char *line) {
    unsigned long long n = 0, ms = 300;
    if (sscanf(line, "count %llu %llu", &n, &ms) >= 1) count(n, ms);
    else if (!strncmp(line, "pause", 5)) stop(), puts("{}");
    else if (!strncmp(line, "go", 2)) go(), puts("{}");
    else if (!strncmp(line, "quit", 4)) stop_asked = true;
    else puts("{\"error\": \"no such command\"}");
    fflush(stdout);
  }

  void say_end() {
    std::vector<uint64_t> took;
    uint64_t gap = 0, executed = 0;
    for (auto &t : threads) {
      uint64_t n = std::min<uint64_t>(t->stats->head->iterations, Stats::capacity), *at = t->stats->times;
      for (uint64_t i = 0; i < n; i++) took.push_back(at[2 * i + 1] - at[2 * i]), gap = std::max(gap, took.back());
      executed += t->executed;
    }
    std::sort(took.begin(), took.end());
    auto us = [&](double q) {
      return took.empty() ? 0.0 : (double)took[(size_t)(q * (double)(took.size() - 1))] / 1e3;
    };
    printf("{\"ended\": true, \"iterations\": %" PRIu64 ", \"kernels\": %" PRIu64 ", \"executed\": %" PRIu64
           ", \"copies\": %" PRIu64 ", \"graph_launches\": %" PRIu64
           ", \"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, \"max_us\": %.1f}\n",
        total(&Stats::Header::iterations), total(&Stats::Header::kernels), executed, total(&Stats::Header::copies),
        total(&Stats::Header::graphs), us(.5), us(.99), us(.999), (double)gap / 1e3);
    fflush(stdout);
  }

  static void on_term(int) { stop_asked = true; }

public:
  // spread: thread i works on device i, else all on device 0.
  int run(int argc, char **argv, unsigned count, const std::function<Work *()> &make, bool spread = false) {
    std::string path;
    for (int i = 1; i + 1 < argc; i += 2) {
      if (!strcmp(argv[i], "--stats")) path = argv[i + 1];
      else if (!strcmp(argv[i], "--threads")) count = (unsigned)atoi(argv[i + 1]);
      else return fprintf(stderr, "%s is no option\n", argv[i]), 2;
    }
    struct sigaction act = {};
    act.sa_handler = on_term; // no SA_RESTART: it interrupts poll
    sigaction(SIGTERM, &act, nullptr);
    for (unsigned i = 0; i < count; i++) {
      auto t = std::make_unique<Thread>();
      t->device = spread ? (int)i : 0;
      t->stats = std::make_unique<Stats>(path.empty() || !i ? path : path + "." + std::to_string(i));
      threads.push_back(std::move(t));
    }
    for (auto &t : threads) t->thread = std::thread([this, &t, &make] { loop(*t, make); });
    await([](Thread &t) { return t.warm.load(); });
    printf("{\"ready\": %d, \"threads\": %u}\n", (int)getpid(), count);
    fflush(stdout);
    for (std::string line; !stop_asked;) {
      pollfd in = {0, POLLIN, 0};
      if (poll(&in, 1, 1000) <= 0) continue;
      char c[256];
      ssize_t n = read(0, c, sizeof c - 1);
      if (n <= 0) break;
      line.append(c, (size_t)n);
      for (size_t end; (end = line.find('\n')) != std::string::npos; line.erase(0, end + 1))
        answer(line.substr(0, end).c_str());
    }
    ending = true;
    for (auto &t : threads) t->thread.join();
    say_end();
    return 0;
  }
};
