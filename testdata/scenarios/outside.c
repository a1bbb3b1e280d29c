// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Waiting for the machine and for those outside of the program.
#include <arpa/inet.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "serving.h"

enum { FILE_BYTES = 64 << 20, BLOCK = 4096 };
static int file = -1, direct;
static char *buffer;
static int listener = -1, client = -1;

void outside_sleep(const struct action *a) {
  struct timespec t = {a->a / 1000000, a->a % 1000000 * 1000};
  plan_begin("sleep");
  nanosleep(&t, NULL);
  plan_end();
}

// The file has no name any more once it is open. Where the file system has no O_DIRECT, what was read is dropped from
// the cache.
void outside_file_ready(const struct action *a) {
  (void)a;
  if (file >= 0) return;
  char path[512];
  const char *folder = getenv("DATA"); // on a disk
  snprintf(path, sizeof path, "%s/weights.%d", folder ? folder : ".", getpid());
  int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0 || posix_memalign((void **)&buffer, BLOCK, FILE_BYTES)) die(path);
  memset(buffer, 7, FILE_BYTES);
  if (write(fd, buffer, FILE_BYTES) != FILE_BYTES || fsync(fd)) die(path);
  file = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
  direct = file >= 0;
  if (!direct) file = fd;
  unlink(path);
}

static off_t next_offset(long bytes) {
  static off_t at;
  at = at + 2 * bytes > FILE_BYTES ? 0 : at + bytes;
  return at;
}

static NOINLINE void load_weights(long bytes) {
  off_t at = next_offset(bytes);
  if (!direct) posix_fadvise(file, at, bytes, POSIX_FADV_DONTNEED);
  if (pread(file, buffer, (size_t)bytes, at) != bytes) die("read");
}

static NOINLINE void save_results(long bytes) {
  if (pwrite(file, buffer, (size_t)bytes, next_offset(bytes)) != bytes || fdatasync(file)) die("write");
}

void outside_read(const struct action *a) {
  plan_begin("disk");
  load_weights(a->a);
  plan_end();
}

void outside_sync(const struct action *a) {
  plan_begin("disk");
  save_results(a->a);
  plan_end();
}

static int dial(long port) {
  struct sockaddr_in to = {
      .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to)) die("connect");
  return fd;
}

static NOINLINE void fetch_features(int fd, long us) {
  char text[32];
  int n = snprintf(text, sizeof text, "%ld\n", us);
  if (send(fd, text, (size_t)n, 0) != n || recv(fd, text, sizeof text, 0) <= 0) die("ask");
}

void outside_ask(const struct action *a) {
  static __thread int fd = -1;
  if (fd < 0) fd = dial(a->a);
  plan_begin("network");
  fetch_features(fd, a->b);
  plan_end();
}

// Says "port N": whoever started the program sends requests there.
void outside_listen(const struct action *a) {
  (void)a;
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof at;
  listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0 || bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 16) ||
      getsockname(listener, (struct sockaddr *)&at, &size))
    die("listen");
  printf("port %d\n", ntohs(at.sin_port));
  fflush(stdout);
}

// A request is a byte, and so is its answer, which is sent when the next one is waited for.
static void next_request(void) {
  char c = 0;
  if (send(client, &c, 1, MSG_NOSIGNAL) != 1 || recv(client, &c, 1, 0) != 1) exit(0);
}

void outside_serve(const struct action *a) {
  (void)a;
  if (client < 0) client = accept(listener, NULL, NULL);
  plan_begin("no-work");
  next_request();
  plan_end();
}

void outside_accept(const struct action *a) {
  (void)a;
  char c;
  if (client >= 0) close(client);
  plan_begin("no-work");
  client = accept(listener, NULL, NULL);
  if (client < 0 || recv(client, &c, 1, 0) != 1) exit(0);
  plan_end();
}

static NOINLINE void grow_cache(char *p, size_t bytes) {
  for (size_t i = 0; i < bytes; i += BLOCK) p[i] = 1;
}

void outside_fault(const struct action *a) {
  char *p = mmap(NULL, (size_t)a->a, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) die("mmap");
  plan_begin("page-faults");
  grow_cache(p, (size_t)a->a);
  munmap(p, (size_t)a->a); // giving the pages back is the same matter, and what helps is the same
  plan_end();
}

// The same with memory that is kept.
void outside_reuse(const struct action *a) {
  static __thread char *kept;
  if (!kept && !(kept = malloc((size_t)a->a))) die("malloc");
  grow_cache(kept, (size_t)a->a);
}

void outside_cpu(const struct action *a) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET((size_t)a->a, &set);
  if (sched_setaffinity(0, sizeof set, &set)) die("sched_setaffinity");
}
