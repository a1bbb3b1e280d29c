// Host functions in streams: one thread, born with the first of them, runs each when the stream has come to it.
#include "sim.h"

#include <sys/prctl.h>
#include <unistd.h>

struct item {
  void (*fn)(void *);
  void *data;
  uint64_t when, ticket;
  struct item *next;
};

static struct {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  struct item *head;
  uint64_t last, done; // tickets
  int running;
} host = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static struct item *take(void) {
  pthread_mutex_lock(&host.lock);
  while (!host.head) pthread_cond_wait(&host.changed, &host.lock);
  struct item *i = host.head;
  pthread_mutex_unlock(&host.lock);
  return i;
}

static void work(void) {
  for (;;) {
    struct item *i = take();
    wait_until(i->when, 0);
    i->fn(i->data);
    pthread_mutex_lock(&host.lock);
    host.head = i->next;
    host.done = i->ticket;
    pthread_cond_broadcast(&host.changed);
    pthread_mutex_unlock(&host.lock);
    free(i);
  }
}

static void events(void) {
  prctl(PR_SET_NAME, "cuda-EvtHandlr");
  for (;;) pause();
}

// Where each thread of the driver's own begins. Most have names that begin with cuda; the one that calls host functions
// has the name of the thread that made it (seen on an H100, driver 580.159, in a program of JAX's).
__attribute__((noinline)) static void *begin(void *routine) {
  void (*call)(void) = (void (*)(void))routine;
  call();
  return routine; // and no tail call
}

static int start(void (*routine)(void)) {
  pthread_t t;
  if (pthread_create(&t, NULL, begin, (void *)routine)) return 0;
  pthread_detach(t);
  return 1;
}

static void append(struct item *i) {
  struct item **at = &host.head;
  while (*at) at = &(*at)->next;
  *at = i;
}

// hostfn_queue runs fn at or after a time, in the order of queueing, and returns a ticket to wait for.
uint64_t hostfn_queue(void (*fn)(void *), void *data, uint64_t when) {
  struct item *i = calloc(1, sizeof *i);
  if (!i) return 0;
  i->fn = fn, i->data = data, i->when = when;
  pthread_mutex_lock(&host.lock);
  if (!host.running) {
    start(events);
    host.running = start(work);
  }
  uint64_t ticket = i->ticket = ++host.last;
  append(i);
  pthread_cond_broadcast(&host.changed);
  pthread_mutex_unlock(&host.lock);
  return ticket;
}

uint64_t hostfn_last(void) { return __atomic_load_n(&host.last, __ATOMIC_ACQUIRE); }

int hostfn_done(uint64_t ticket) { return __atomic_load_n(&host.done, __ATOMIC_ACQUIRE) >= ticket; }

void hostfn_wait(uint64_t ticket) {
  if (!ticket || hostfn_done(ticket)) return;
  pthread_mutex_lock(&host.lock);
  while (host.done < ticket) pthread_cond_wait(&host.changed, &host.lock);
  pthread_mutex_unlock(&host.lock);
}

void hostfn_after_fork(void) {
  pthread_mutex_init(&host.lock, NULL);
  pthread_cond_init(&host.changed, NULL);
  host.head = NULL;
  host.running = 0;
  host.done = host.last;
}
