// State, settings, clock and the slow half of entering and leaving a call.
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>
#include "sim.h"

struct sim_state sim = {.gen = 1};
__thread struct sim_thread tls __attribute__((tls_model("initial-exec")));

uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void pause_cpu(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void spin_ns(uint64_t ns) {
  if (!ns) return;
  for (uint64_t end = now_ns() + ns; now_ns() < end;) pause_cpu();
}

// wait_until returns at or after ns. Without spin it sleeps all but the last stretch, which a timer would overshoot.
void wait_until(uint64_t ns, int spin) {
  const uint64_t slack = 80000;
  for (;;) {
    uint64_t now = now_ns();
    if (now >= ns) return;
    if (spin || ns - now < slack + 20000) {
      pause_cpu();
      continue;
    }
    uint64_t to = ns - slack;
    struct timespec t = {(time_t)(to / 1000000000u), (long)(to % 1000000000u)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
  }
}

const char *env_str(const char *name) {
  const char *v = getenv(name);
  return v && *v ? v : NULL;
}

// env_u64 stops the program on a malformed number: a test with a typing error in a knob must not pass.
uint64_t env_u64(const char *name, uint64_t def) {
  const char *v = env_str(name);
  if (!v) return def;
  char *end;
  errno = 0;
  unsigned long long n = strtoull(v, &end, 10);
  if (errno || *end) {
    fprintf(stderr, "cudasim: %s=%s is not a whole number\n", name, v);
    _exit(2);
  }
  return n;
}

static double env_double(const char *name, double def) {
  const char *v = env_str(name);
  if (!v) return def;
  char *end;
  double d = strtod(v, &end);
  if (*end || d <= 0) {
    fprintf(stderr, "cudasim: %s=%s is not a number above 0\n", name, v);
    _exit(2);
  }
  return d;
}

static uint32_t clamp(uint64_t n, uint32_t low, uint32_t high) { return n < low ? low : n > high ? high : (uint32_t)n; }

static void load_config(struct sim_config *c) {
  c->devices = clamp(env_u64("CUDASIM_DEVICES", 1), 0, MAX_DEVICES);
  c->mig = (uint32_t)clamp(env_u64("CUDASIM_MIG", 0), 0, 15);
  c->slots = clamp(env_u64("CUDASIM_KERNEL_SLOTS", 1), 1, MAX_SLOTS);
  c->queue = clamp(env_u64("CUDASIM_QUEUE", MAX_QUEUE), 1, MAX_QUEUE);
  c->kernel_ns = env_u64("CUDASIM_KERNEL_NS", 5000);
  c->launch_latency_ns = env_u64("CUDASIM_LAUNCH_LATENCY_NS", 4000);
  c->copy_latency_ns = env_u64("CUDASIM_COPY_LATENCY_NS", 1500);
  c->graph_node_ns = env_u64("CUDASIM_GRAPH_NODE_NS", 1000);
  c->hostfn_ns = env_u64("CUDASIM_HOSTFN_NS", 5000);
  c->call_ns = env_u64("CUDASIM_CALL_NS", 0);
  c->alloc_ns = env_u64("CUDASIM_ALLOC_NS", 2000);
  c->free_ns = env_u64("CUDASIM_FREE_NS", 2000);
  c->memory = env_u64("CUDASIM_MEMORY_BYTES", 80ull << 30);
  c->pinned_gbps = env_double("CUDASIM_PINNED_GBPS", 25);
  c->pageable_gbps = env_double("CUDASIM_PAGEABLE_GBPS", 6);
  c->d2d_gbps = env_double("CUDASIM_D2D_GBPS", 1500);
  c->memset_gbps = env_double("CUDASIM_MEMSET_GBPS", 1500);
  c->spin = (uint32_t)env_u64("CUDASIM_SPIN", 0);
  c->lock = (uint32_t)env_u64("CUDASIM_CUPTI_LOCK", 0);
  c->fork_breaks = (uint32_t)env_u64("CUDASIM_FORK_BREAKS", 0);
  const char *name = env_str("CUDASIM_DEVICE_NAME");
  snprintf(c->device_name, sizeof c->device_name, "%s", name ? name : "cudasim virtual GPU");
}

// forget_profiler: a forked child has none of the profiler's threads, so nothing may queue up for them.
static void forget_profiler(void) {
  cudasim_hooks.active &= ~(uint32_t)ACTIVE_CALLBACKS;
  cudasim_hooks.on_api = NULL;
  cudasim_hooks.on_op = NULL;
  cudasim_hooks.on_sync = NULL;
  cudasim_hooks.on_stream = NULL;
  cudasim_hooks.graph_kinds_on = 0;
}

// after_fork makes the child a process of its own: fresh locks, own truth file, same virtual devices.
static void after_fork(void) {
  sim.gen++;
  sim.pid = (uint64_t)getpid();
  if (sim.cfg.fork_breaks && sim.initialized) sim.broken = 1;
  for (uint32_t i = 0; i < sim.cfg.devices; i++) pthread_mutex_init(&sim.dev[i].lock, NULL);
  forget_profiler();
  lock_after_fork();
  memory_after_fork();
  hostfn_after_fork();
  graph_after_fork();
  truth_after_fork();
}

__attribute__((constructor)) static void start(void) {
  load_config(&sim.cfg);
  sim.pid = (uint64_t)getpid();
  sim.next_stream = 13; // the driver's own default stream is 7, user streams count from 13 on
  sim.next_event = 1;
  sim.next_ctx = 2;
  for (uint32_t i = 0; i < sim.cfg.devices; i++) device_init(&sim.dev[i], i);
  fault_load();
  if (sim.cfg.call_ns || sim.cfg.call_fault || sim.cfg.lock) cudasim_hooks.active |= ACTIVE_CONFIG;
  truth_open();
  pthread_atfork(NULL, NULL, after_fork);
}

void thread_start(struct sim_thread *t) {
  struct sim_context *ctx = t->ctx;
  int fresh = t->gen == 0;
  t->gen = sim.gen;
  t->tid = (uint32_t)gettid();
  t->depth = 0;
  if (fresh) t->ctx = NULL;
  else t->ctx = ctx; // a forked child goes on in its parent's context
  truth_thread(t);
}

static void tell(int site, struct sim_call *c) {
  struct sim_thread *t = &tls;
  void (*hook)(int, struct sim_call *, const char *) = __atomic_load_n(&cudasim_hooks.on_api, __ATOMIC_ACQUIRE);
  if (!hook || c->fn >= HOOK_FNS || c->fn >= FN_COUNT || !cudasim_hooks.want[c->fn] || t->in_hook) return;
  // it is held while a call runs, not while a callback does (measured: test/gpu/inside.c)
  int locked = sim.cfg.lock && c->depth == 0;
  if (locked) lock_leave();
  t->in_hook = 1; // a callback's own CUDA calls are not reported
  hook(site, c, fn_names[c->fn]);
  t->in_hook = 0;
  if (locked) lock_enter();
}

int call_enter_slow(struct sim_call *c) {
  if (sim.cfg.lock && c->depth == 0) lock_enter();
  c->name = tls.kernel_name;
  tls.kernel_name = 0;
  tell(SITE_ENTER, c);
  spin_ns(sim.cfg.call_ns);
  if (c->fn < FN_COUNT && cudasim_hooks.want[c->fn]) spin_ns(cudasim_hooks.api_ns);
  if (c->fn < FN_COUNT && cudasim_hooks.active & ACTIVE_POISONED) return E_LAUNCH_FAILED;
  return sim.cfg.call_fault ? fault_enter(c) : 0;
}

static void work(struct sim_call *c) {
  void (*hook)(void) = __atomic_load_n(&cudasim_hooks.on_work, __ATOMIC_ACQUIRE);
  if (!hook || c->depth || c->fn >= FN_COUNT || tls.in_hook) return;
  if (sim.cfg.lock) lock_leave();
  hook();
  if (sim.cfg.lock) lock_enter();
}

void call_exit_slow(struct sim_call *c) {
  tell(SITE_EXIT, c);
  if (cudasim_hooks.active & ACTIVE_WORK) work(c);
  if (sim.cfg.lock && c->depth == 0) lock_leave();
}

int need_context(struct sim_device **dev) {
  if (unlikely(!sim.initialized || sim.broken)) return E_NOT_INITIALIZED;
  struct sim_context *ctx = tls.ctx;
  if (unlikely(!ctx || ctx->magic != MAGIC_CTX)) return E_INVALID_CONTEXT;
  *dev = ctx->dev;
  return OK;
}

static int hook_enter(struct sim_call *c, uint32_t fn) { return call_enter(c, fn); }
static int hook_leave(struct sim_call *c, int result) { return call_exit(c, result); }
static void hook_meet(struct sim_meeting *m) { tls.meeting = m; }
static int hook_devices(void) { return (int)sim.cfg.devices; }

static uint32_t hook_context(void **handle) {
  struct sim_context *ctx = tls.ctx;
  *handle = ctx;
  return ctx ? ctx->id : 0;
}

static int hook_device_info(uint32_t index, struct sim_device_info *out) {
  if (index >= sim.cfg.devices) return 0;
  *out = (struct sim_device_info){.index = index, .multiprocessors = 132, .major = 9, .memory = sim.cfg.memory,
                                  .bytes_per_s = (uint64_t)(sim.cfg.d2d_gbps * 2e9), .name = sim.cfg.device_name};
  device_uuid(index, out->uuid);
  return 1;
}

static int hook_context_info(uint32_t n, struct sim_context_info *out) {
  for (uint32_t i = 0; i < sim.cfg.devices + 64; i++) {
    struct sim_context *ctx = i < sim.cfg.devices ? &sim.dev[i].primary : sim.made[i - sim.cfg.devices];
    if (!ctx || ctx->magic != MAGIC_CTX || (ctx->primary && !ctx->refs) || n--) continue;
    *out = (struct sim_context_info){ctx->id, ctx->dev->index};
    return 1;
  }
  return 0;
}

__attribute__((visibility("default"))) struct sim_hooks cudasim_hooks = {
    .version = HOOKS_VERSION, .size = sizeof(struct sim_hooks), .enter = hook_enter, .leave = hook_leave,
    .register_names = truth_register, .now = now_ns, .wait_until = wait_until, .driver_fns = FN_COUNT,
    .driver_names = fn_names, .driver_cbids = fn_cbids, .current_context = hook_context, .device_count = hook_devices,
    .string = truth_string_of, .device_info = hook_device_info, .context_info = hook_context_info,
    .graph_launches_of_others = launches_of_others, .graph_epoch = 1, .capture_unsafe = capture_unsafe,
    .lock = lock_all, .unlock = unlock_all, .meet = hook_meet,
};
