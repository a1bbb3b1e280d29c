// The driver's lock that calls, but for their callbacks, hold for reading and cuptiSubscribe and cuptiFinalize take for
// writing (CUDASIM_CUPTI_LOCK=1). Readers go first, as measured with the real driver: a writer gets it when no thread
// is inside a call for a moment, however long that takes.
#include <sched.h>
#include "sim.h"

static const uint32_t writing = 1u << 31;
static uint32_t state; // threads inside a call; writing: the lock is held

void lock_enter(void) {
  for (;;) {
    uint32_t seen = __atomic_load_n(&state, __ATOMIC_RELAXED);
    if (!(seen & writing) &&
        __atomic_compare_exchange_n(&state, &seen, seen + 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
      return;
    if (seen & writing) sched_yield();
  }
}

void lock_leave(void) { __atomic_fetch_sub(&state, 1, __ATOMIC_RELEASE); }

// mine: a thread that is inside a call does not wait for itself; in a callback it holds nothing.
static uint32_t mine(void) { return tls.depth > 0 && !tls.in_hook; }

void lock_all(void) {
  if (!sim.cfg.lock) return;
  for (uint32_t none = mine();
      !__atomic_compare_exchange_n(&state, &none, none | writing, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED); none = mine())
    sched_yield();
}

void unlock_all(void) {
  if (sim.cfg.lock) __atomic_fetch_and(&state, ~writing, __ATOMIC_RELEASE);
}

void lock_after_fork(void) { state = mine(); }
