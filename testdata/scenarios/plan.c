// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// The truth: PLAN.PID, written through a shared mapping, so that kill -9 loses nothing. Reader: test/diagnosis/plan.go.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "serving.h"

// delay is for how many ns of it the thread could have run and had no CPU (schedstat).
struct phase {
  uint32_t tid, done;
  uint64_t from, to, delay; // ns
  char cause[32];
};
enum { PHASES = 1 << 20 }; // the file is as long, and what is not written takes no room

static struct {
  int pid;
  struct phase *list;
  uint32_t *count;
} plan;

// last is when the latest phase ended, left what its thread had waited for a CPU by then.
static __thread struct {
  int fd, tid;
  uint64_t from, delay, last, left;
  const char *cause;
} now;

// Without PLAN nothing is written down, and nothing is read for it: reading a delay takes 3% of a step of 1 ms.
static int silent(void) {
  static int known; // 1: no, 2: yes
  if (!known) known = getenv("PLAN") ? 1 : 2;
  return known == 2;
}

uint64_t plan_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

// open_plan maps the file of this process; a child of fork has its own.
static int open_plan(void) {
  if (plan.pid == getpid()) return 1;
  const char *prefix = getenv("PLAN");
  if (!prefix) return 0;
  char path[512];
  snprintf(path, sizeof path, "%s.%d", prefix, getpid());
  size_t size = 64 + sizeof(struct phase) * PHASES;
  int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, (off_t)size)) die(path);
  char *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) die("mmap");
  close(fd);
  plan.count = (uint32_t *)map;
  plan.list = (struct phase *)(map + 64);
  plan.pid = getpid();
  return 1;
}

// run_delay is the time that this thread waited for a CPU so far, in ns: the second number of schedstat
// (Documentation/scheduler/sched-stats.rst).
static uint64_t run_delay(void) {
  char text[96];
  if (!now.tid) {
    now.tid = (int)syscall(SYS_gettid);
    now.fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
  }
  ssize_t n = now.fd < 0 ? 0 : pread(now.fd, text, sizeof text - 1, 0);
  if (n <= 0) return 0;
  text[n] = 0;
  unsigned long long ran, waited = 0;
  return sscanf(text, "%llu %llu", &ran, &waited) == 2 ? waited : 0;
}

static void add(const char *cause, uint64_t from, uint64_t to, uint64_t delay) {
  if (!open_plan()) return;
  uint32_t i = __atomic_fetch_add(plan.count, 1, __ATOMIC_RELAXED);
  if (i >= PHASES) return;
  struct phase *p = &plan.list[i];
  *p = (struct phase){.tid = (uint32_t)syscall(SYS_gettid), .from = from, .to = to, .delay = delay};
  strncpy(p->cause, cause, sizeof p->cause - 1);
  __atomic_store_n(&p->done, 1, __ATOMIC_RELEASE);
}

// A late phase is one whose delay is read at the next phase's beginning, when the GPU has work again: reading it takes
// microseconds, and where steps are short that would be what they spend their time on.
static __thread struct {
  uint64_t from, to, delay;
  const char *cause;
} late;

static uint64_t flush(void) {
  uint64_t delay = run_delay();
  if (late.cause) add(late.cause, late.from, late.to, delay - late.delay);
  else if (now.last && delay > now.left) add("", now.last, plan_now(), delay - now.left);
  late.cause = NULL;
  return delay;
}

void plan_late_begin(const char *cause) {
  if (silent()) return;
  now.delay = flush();
  now.cause = cause;
  now.from = plan_now();
}

void plan_late_end(void) {
  if (silent()) return;
  late.to = plan_now();
  late.from = now.from;
  late.delay = now.delay;
  late.cause = now.cause;
  now.cause = NULL;
}

void plan_late_longer(void) {
  if (late.cause) late.to = plan_now();
}

void plan_begin(const char *cause) {
  if (silent()) return;
  now.delay = flush();
  now.cause = cause;
  now.from = plan_now();
}

void plan_end(void) {
  if (!now.cause) return;
  now.last = plan_now();
  now.left = run_delay();
  add(now.cause, now.from, now.last, now.left - now.delay);
  now.cause = NULL;
}

// A part shorter than this holds no delay that counts, and reading it would take a good part of it.
enum { HOLDS_DELAY = 500000 }; // ns

void plan_split(const char *cause, uint64_t from) {
  if (!now.cause) return;
  uint64_t delay = 0, before = from - now.from;
  if (plan_now() - now.from > HOLDS_DELAY) {
    uint64_t left = run_delay();
    delay = left - now.delay;
    now.delay = left;
  }
  uint64_t early = delay < before ? delay : before;
  add(now.cause, now.from, from, early);
  now.from = plan_now();
  add(cause, from, now.from, delay - early);
}

void plan_add(const char *cause, uint64_t from, uint64_t to) { add(cause, from, to, 0); }
