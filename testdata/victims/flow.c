// The script's commands that are about the program itself: time, threads, processes, loops, words to whoever runs it.
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "flow.h"

void sleep_ns(uint64_t ns) {
  struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
  while (nanosleep(&t, &t)) {}
}
void do_sleep(const struct node *n) { sleep_ns(duration(arg(n, 1))); }
__attribute__((noinline)) static void cpu_work(uint64_t ns) { spin_ns(ns); }
void do_spin(const struct node *n) { cpu_work(duration(arg(n, 1))); }

static void *thread_main(void *body) {
  if (cuda) check(cuda->thread_setup());
  run_block(body);
  return NULL;
}
void do_thread(const struct node *n) {
  uint64_t count = arg(n, 1) ? number(n->word[1], "threads") : 1;
  pthread_t t[256];
  if (count > 256 || !n->body) die("thread wants: thread N [nowait] { ... } with N up to 256");
  for (uint64_t i = 0; i < count; i++)
    if (pthread_create(&t[i], NULL, thread_main, n->body)) die("cannot create thread %llu", (unsigned long long)i);
  for (uint64_t i = 0; i < count; i++) flag(n, "nowait") ? pthread_detach(t[i]) : pthread_join(t[i], NULL);
}

void do_fork(const struct node *n) {
  fflush(stdout);
  pid_t child = fork();
  if (child < 0) die("fork failed");
  if (!child) {
    run_block(n->body);
    fflush(stdout);
    _exit(0);
  }
  printf("child %d\n", (int)child);
  fflush(stdout);
  if (flag(n, "nowait")) return;
  int st;
  if (waitpid(child, &st, 0) == child && st) exit(WIFEXITED(st) ? WEXITSTATUS(st) : 128 + WTERMSIG(st));
}

static size_t print_block(const struct node *n, char *to, size_t room) {
  size_t at = 0;
  for (; n; n = n->next) {
    for (int i = 0; i < n->words; i++) at += (size_t)snprintf(to + at, room > at ? room - at : 0, "%s ", n->word[i]);
    if (n->body) {
      at += (size_t)snprintf(to + at, room > at ? room - at : 0, "{ ");
      at += print_block(n->body, to + at, room > at ? room - at : 0);
      at += (size_t)snprintf(to + at, room > at ? room - at : 0, "}");
    }
    at += (size_t)snprintf(to + at, room > at ? room - at : 0, "; ");
  }
  return at;
}

// do_exec replaces the process by this program anew, with the block as its script: exec { ... }.
void do_exec(const struct node *n) {
  static char script[65536];
  if (print_block(n->body, script, sizeof script) >= sizeof script) die("exec: the block is too long");
  fflush(stdout);
  execl(self_path, self_path, "--lib", lib_mode, script, (char *)NULL);
  die("exec of %s failed", self_path);
}

void do_repeat(const struct node *n) {
  for (uint64_t i = number(arg(n, 1), "rounds"); i; i--) run_block(n->body);
}

// do_until repeats its block until a line comes on stdin, or for a time: until { .. }, until 3s { .. }.
void do_until(const struct node *n) {
  uint64_t end = arg(n, 1) ? now_ns() + duration(n->word[1]) : 0;
  struct pollfd in = {0, POLLIN, 0};
  char line[256];
  if (!end) printf("waiting %d\n", (int)getpid());
  fflush(stdout);
  do run_block(n->body);
  while (end ? now_ns() < end : !poll(&in, 1, 0));
  if (!end && !fgets(line, sizeof line, stdin)) exit(0);
}

void do_ready(const struct node *n) {
  (void)n;
  printf("ready %d\n", (int)getpid());
  fflush(stdout);
}
void do_wait(const struct node *n) {
  char line[256];
  (void)n;
  printf("waiting %d\n", (int)getpid());
  fflush(stdout);
  if (!fgets(line, sizeof line, stdin)) exit(0);
}
void do_print(const struct node *n) {
  for (int i = 1; i < n->words; i++) printf("%s%c", n->word[i], i + 1 < n->words ? ' ' : '\n');
  fflush(stdout);
}
// do_nvtx makes NVTX calls through the library that VICTIM_NVTX names: nvtx push NAME, nvtx pop, nvtx mark NAME.
void do_nvtx(const struct node *n) {
  static void *library;
  const char *what = arg(n, 1), *name = arg(n, 2), *file = getenv("VICTIM_NVTX");
  if (!library && !(library = dlopen(file ? file : "libnvToolsExt.so.1", RTLD_NOW))) die("%s", dlerror());
  if (what && !strcmp(what, "pop")) ((int (*)(void))dlsym(library, "nvtxRangePop"))();
  else if (what && name && !strcmp(what, "push")) ((int (*)(const char *))dlsym(library, "nvtxRangePushA"))(name);
  else if (what && name && !strcmp(what, "mark")) ((void (*)(const char *))dlsym(library, "nvtxMarkA"))(name);
  else die("nvtx wants: nvtx push NAME, nvtx pop, nvtx mark NAME");
}

void do_exit(const struct node *n) { exit(arg(n, 1) ? (int)number(n->word[1], "an exit code") : 0); }
void do_crash(const struct node *n) {
  (void)n;
  abort();
}
