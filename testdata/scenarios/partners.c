// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Waiting for other threads and processes of the program.
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "serving.h"

// box is a condition with two counters: pieces asked for, and pieces made.
struct box {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  long asked, made, us;
};
#define BOX {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, 0}

static void begin(void *(*run)(void *), void *arg) {
  pthread_t t;
  if (pthread_create(&t, NULL, run, arg)) die("pthread_create");
  pthread_detach(t);
}

static NOINLINE void *fill_batches(void *arg) {
  struct box *b = arg;
  pthread_mutex_lock(&b->lock);
  for (;;) {
    while (b->made >= b->asked) pthread_cond_wait(&b->changed, &b->lock);
    pthread_mutex_unlock(&b->lock);
    work_crunch(b->us);
    pthread_mutex_lock(&b->lock);
    b->made++;
    pthread_cond_broadcast(&b->changed);
  }
  return NULL;
}

static NOINLINE void await_batch(struct box *b, long number) {
  pthread_mutex_lock(&b->lock);
  while (b->made < number) pthread_cond_wait(&b->changed, &b->lock);
  pthread_mutex_unlock(&b->lock);
}

static void ask_for(struct box *b, long number) {
  pthread_mutex_lock(&b->lock);
  b->asked = number;
  pthread_cond_broadcast(&b->changed);
  pthread_mutex_unlock(&b->lock);
}

void partner_worker(const struct action *a) {
  static struct box box = BOX;
  static long number;
  if (!box.us) box.us = a->a, begin(fill_batches, &box);
  plan_begin("worker");
  ask_for(&box, ++number);
  await_batch(&box, number);
  plan_end();
}

// Four pieces are asked for ahead: the queue of a loader that is too slow all the same.
void partner_loader(const struct action *a) {
  static struct box box = BOX;
  static long number;
  if (!box.us) box.us = a->a, begin(fill_batches, &box);
  plan_begin("worker");
  ask_for(&box, ++number + 4);
  await_batch(&box, number);
  plan_end();
}

static pthread_mutex_t launching = PTHREAD_MUTEX_INITIALIZER;

void partner_enter(const struct action *a) {
  (void)a;
  plan_begin("lock");
  pthread_mutex_lock(&launching);
  plan_end();
}

void partner_leave(const struct action *a) {
  (void)a;
  pthread_mutex_unlock(&launching);
}

struct pair {
  int mine, theirs;
};
static struct pair child = {-1, -1}, frontend = {-1, -1};

static NOINLINE void exchange(int in, int out, long us, void (*work)(long)) {
  char c;
  while (read(in, &c, 1) == 1) {
    work(us);
    if (write(out, &c, 1) != 1) break;
  }
  _exit(0);
}

static void tokenize_request(long us) {
  struct action a = {.a = us};
  work_tokenize(&a);
}

// The child must not outlive the program, however that ends.
static void become(int in, int out, long us, void (*work)(long)) {
  if (fork()) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  unsetenv("PLAN"); // what it does is not what the GPU waits for first
  exchange(in, out, us, work);
}

void partner_child_ready(const struct action *a) {
  int down[2], up[2];
  if (pipe(down) || pipe(up)) die("pipe");
  become(down[0], up[1], a->a, work_crunch);
  child = (struct pair){up[0], down[1]};
  close(down[0]);
  close(up[1]);
}

void partner_frontend_ready(const struct action *a) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) die("socketpair");
  become(ends[1], ends[1], a->a, tokenize_request);
  frontend = (struct pair){ends[0], ends[0]};
  close(ends[1]);
}

static NOINLINE void await_process(struct pair *p) {
  char c = 1;
  plan_begin("worker");
  if (write(p->theirs, &c, 1) != 1 || read(p->mine, &c, 1) != 1) die("process");
  plan_end();
}

void partner_child(const struct action *a) {
  (void)a;
  await_process(&child);
}

void partner_frontend(const struct action *a) {
  (void)a;
  await_process(&frontend);
}

// Both have the file open, which has no name any more.
static int locked = -1;

static NOINLINE void keep_statistics(int fd, long us) {
  struct timespec holds = {us / 1000000, us % 1000000 * 1000}, rests = {0, 300000};
  while (!flock(fd, LOCK_EX)) {
    nanosleep(&holds, NULL);
    flock(fd, LOCK_UN);
    nanosleep(&rests, NULL);
  }
  _exit(0);
}

void partner_flock_ready(const struct action *a) {
  char path[] = "/tmp/state.XXXXXX", again[64];
  int theirs = mkstemp(path);
  if (theirs < 0) die(path);
  snprintf(again, sizeof again, "/proc/self/fd/%d", theirs);
  locked = open(again, O_RDWR | O_CLOEXEC); // flock belongs to an opening of the file
  unlink(path);
  if (locked < 0) die(again);
  if (fork()) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  unsetenv("PLAN");
  close(locked);
  keep_statistics(theirs, a->a);
}

static NOINLINE void read_state(void) {
  if (flock(locked, LOCK_EX) || flock(locked, LOCK_UN)) die("flock");
}

void partner_flock(const struct action *a) {
  (void)a;
  plan_begin("lock");
  read_state();
  plan_end();
}

enum { PIECE = 128 << 10 };
static int sink = -1;

static NOINLINE void take_results(int in, long us) {
  static char piece[PIECE];
  for (size_t have = 0;;) {
    ssize_t n = read(in, piece + have, PIECE - have);
    if (n <= 0) _exit(0);
    have += (size_t)n;
    if (have < PIECE) continue;
    have = 0;
    work_crunch(us);
  }
}

void partner_feed_ready(const struct action *a) {
  int ends[2];
  if (pipe(ends)) die("pipe");
  sink = ends[1];
  if (fork()) {
    close(ends[0]);
    return;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  unsetenv("PLAN");
  close(ends[1]);
  take_results(ends[0], a->a);
}

static NOINLINE void send_results(void) {
  static char piece[PIECE];
  for (size_t left = PIECE; left;) { // a program that is stopped meanwhile writes a part
    ssize_t n = write(sink, piece, left);
    if (n <= 0) die("feed");
    left -= (size_t)n;
  }
}

void partner_feed(const struct action *a) {
  (void)a;
  plan_begin("worker");
  send_results();
  plan_end();
}

// The other thread says when it holds the lock, so that each step waits for it.
static struct {
  pthread_mutex_t mutex;
  pthread_rwlock_t rw;
  sem_t go, held;
  long us;
  int write;
} shared = {.mutex = PTHREAD_MUTEX_INITIALIZER, .rw = PTHREAD_RWLOCK_INITIALIZER};

static NOINLINE void *update_cache(void *arg) {
  for (;;) {
    while (sem_wait(&shared.go)) {}
    if (shared.write) pthread_rwlock_wrlock(&shared.rw);
    else pthread_mutex_lock(&shared.mutex);
    sem_post(&shared.held);
    work_crunch(shared.us);
    if (shared.write) pthread_rwlock_unlock(&shared.rw);
    else pthread_mutex_unlock(&shared.mutex);
  }
  return arg;
}

static void start_updates(long us, int write) {
  if (!shared.us) {
    sem_init(&shared.go, 0, 0);
    sem_init(&shared.held, 0, 0);
    shared.us = us;
    shared.write = write;
    begin(update_cache, NULL);
  }
  sem_post(&shared.go);
  while (sem_wait(&shared.held)) {}
}

static NOINLINE void look_up_cache(int write) {
  plan_begin("lock");
  if (write) pthread_rwlock_rdlock(&shared.rw);
  else pthread_mutex_lock(&shared.mutex);
  plan_end();
  if (write) pthread_rwlock_unlock(&shared.rw);
  else pthread_mutex_unlock(&shared.mutex);
}

void partner_lock(const struct action *a) {
  start_updates(a->a, 0);
  look_up_cache(0);
}

void partner_rwlock(const struct action *a) {
  start_updates(a->a, 1);
  look_up_cache(1);
}

static struct {
  pthread_mutex_t lock;
  long us, rest;
} book = {.lock = PTHREAD_MUTEX_INITIALIZER};

static NOINLINE void *keep_books(void *arg) {
  struct timespec rest = {book.rest / 1000000, book.rest % 1000000 * 1000};
  for (;;) {
    pthread_mutex_lock(&book.lock);
    work_crunch(book.us);
    pthread_mutex_unlock(&book.lock);
    nanosleep(&rest, NULL);
  }
  return arg;
}

void partner_contend(const struct action *a) {
  if (!book.us) {
    book.us = a->a;
    book.rest = a->b;
    begin(keep_books, NULL);
  }
  plan_begin("lock");
  pthread_mutex_lock(&book.lock);
  plan_end();
  pthread_mutex_unlock(&book.lock);
}
