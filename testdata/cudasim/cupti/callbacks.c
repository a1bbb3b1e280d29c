// Subscription, API callbacks, and the end of it all: cuptiFinalize.
#include <dlfcn.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#include "cupti.h"

struct cupti_state cupti = {.lock = PTHREAD_MUTEX_INITIALIZER};
__thread uint64_t callback_id;
static pthread_once_t once = PTHREAD_ONCE_INIT;

// One subscriber. A node that was taken out of the list is freed: whoever follows it faults, as in the real library.
// Its memory is never used again, and what a thread that was about to call back reads of it is as it was.
struct node {
  struct node *next;
  callback_fn callback;
  void *user;
};

static struct subscribers {
  struct node *first;
  volatile uint32_t size;
} subscribers;

static void list_add(callback_fn f, void *user) {
  struct node *n = malloc(sizeof *n);
  if (!n) abort();
  *n = (struct node){.callback = f, .user = user};
  subscribers.first = n;
  __atomic_store_n(&subscribers.size, 1, __ATOMIC_RELEASE);
}

static void list_clear(void) {
  struct node *n = subscribers.first;
  __atomic_store_n(&subscribers.size, 0, __ATOMIC_RELEASE);
  subscribers.first = NULL;
  if (n) n->next = (struct node *)0xa5a5a5a5a5a5a5a5;
}

static uint64_t env(const char *name) {
  const char *v = getenv(name);
  return v ? strtoull(v, NULL, 10) : 0;
}

// after_fork: in a forked child nobody is subscribed.
static void after_fork(void) {
  pthread_mutex_init(&cupti.lock, NULL);
  cupti.subscribed = 0;
  cupti.timestamp = NULL;
  memset((void *)cupti.kind, 0, sizeof cupti.kind);
  memset((void *)cupti.hooks->want, 0, sizeof cupti.hooks->want);
  subscribers = (struct subscribers){0};
  lethal_forget();
  activity_after_fork();
}

// What the truth tells of: which thread made these calls, and inside of which call of the driver.
enum { TOLD_SUBSCRIBE, TOLD_FINALIZE, TOLD };
static const char *const told[TOLD] = {"cuptiSubscribe", "cuptiFinalize"};

static void find_driver(void) {
  void *h = dlopen("libcuda.so.1", RTLD_NOW);
  struct sim_hooks *hooks = h ? dlsym(h, "cudasim_hooks") : NULL;
  if (!hooks || hooks->version != HOOKS_VERSION) return;
  cupti.busy = env("CUDASIM_CUPTI_BUSY") != 0;
  cupti.mute = env("CUDASIM_CUPTI_MUTE") != 0;
  cupti.enable_ns = env("CUDASIM_CUPTI_ENABLE_NS");
  cupti.finalize_ns = env("CUDASIM_CUPTI_FINALIZE_NS");
  cupti.stall_ns = env("CUDASIM_CUPTI_STALL_NS");
  cupti.work_ns = env("CUDASIM_CUPTI_WORK_NS");
  cupti.subscribe_ns = env("CUDASIM_CUPTI_SUBSCRIBE_NS");
  cupti.subscribe_file = getenv("CUDASIM_CUPTI_SUBSCRIBE_FILE");
  cupti.leak_bytes = env("CUDASIM_CUPTI_LEAK_BYTES");
  layout_choose(getenv("CUDASIM_CUPTI_VERSION"));
  hooks->graph_on_ns = env("CUDASIM_CUPTI_GRAPH_ON_NS");
  hooks->graph_off_ns = env("CUDASIM_CUPTI_GRAPH_OFF_NS");
  hooks->api_ns = 0;
  cupti.fns = hooks->register_names("libcupti", told, TOLD);
  cupti.hooks = hooks;
  pthread_atfork(NULL, NULL, after_fork);
}

int cupti_ready(void) {
  pthread_once(&once, find_driver);
  return cupti.hooks ? C_OK : C_NOT_INITIALIZED;
}

struct callback_data { // CUpti_CallbackData
  int site;
  const char *function;
  const void *params;
  void *result;
  const char *symbol;
  void *context;
  uint32_t context_uid;
  uint64_t *correlation_data;
  uint32_t correlation_id;
};
_Static_assert(offsetof(struct callback_data, correlation_id) == 64, "CUpti_CallbackData ABI");

static void on_api(int site, struct sim_call *c, const char *name) {
  if (cupti.mute && c->result) return;
  struct callback_data d = {.site = site,
      .function = name, .params = c->params, .result = &c->result, .symbol = cupti.hooks->string(c->name),
      .correlation_data = &c->user,
      .correlation_id = (uint32_t)c->id};
  d.context_uid = cupti.hooks->current_context(&d.context);
  static uint64_t callbacks;
  uint64_t outer = callback_id;
  callback_id = __atomic_add_fetch(&callbacks, 1, __ATOMIC_RELAXED);
  for (struct node *n = subscribers.size ? subscribers.first : NULL; n;) {
    n->callback(n->user, DOMAIN_DRIVER, cupti.hooks->driver_cbids[c->fn], &d);
    // As the real one (13.0), which waits for no thread that is here: where the list is not empty it goes on from the
    // node that it came from, whatever that is by now.
    // it loses its CPU here
    if (cupti.stall_ns && subscribers.first != n) cupti.hooks->wait_until(cupti.hooks->now() + cupti.stall_ns, 0);
    if (!__atomic_load_n(&subscribers.size, __ATOMIC_ACQUIRE)) break;
    n = n->next;
  }
  callback_id = outer;
}

static void activate(uint32_t bit, int on) {
  if (on) __atomic_fetch_or(&cupti.hooks->active, bit, __ATOMIC_SEQ_CST);
  else __atomic_fetch_and(&cupti.hooks->active, ~bit, __ATOMIC_SEQ_CST);
}

// While kinds are on, a call does work of CUPTI's own, in memory that a finalize and a flush free: they wait for no
// thread that is in there (measured on an H100: test/gpu/starved.py). An unsubscribe is taken to free it, too. One in 32 calls loses its CPU in the midst of it,
// asleep or running.
static uint32_t work_epoch;

static void do_work(void) {
  static uint32_t calls;
  uint32_t epoch = __atomic_load_n(&work_epoch, __ATOMIC_SEQ_CST), n = __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
  if (n % 32 == 0) cupti.hooks->wait_until(cupti.hooks->now() + cupti.work_ns, n % 64 == 0);
  if (__atomic_load_n(&work_epoch, __ATOMIC_SEQ_CST) != epoch) *(volatile int *)0xa5a5a5a5a5a0 = 1;
}

void work_on(int on) {
  __atomic_store_n(&cupti.hooks->on_work, on && cupti.work_ns ? do_work : NULL, __ATOMIC_RELEASE);
  activate(ACTIVE_WORK, on && cupti.work_ns);
}

void work_freed(void) { __atomic_add_fetch(&work_epoch, 1, __ATOMIC_SEQ_CST); }

void work_gone(void) {
  work_on(0);
  work_freed();
}

// begin and end are around what waits for all threads to be outside of the driver.
static void begin(struct sim_call *c, uint32_t which) {
  cupti.hooks->enter(c, cupti.fns + which);
  cupti.hooks->lock();
}

static int end(struct sim_call *c, int result) {
  cupti.hooks->unlock();
  cupti.hooks->leave(c, C_OK); // that somebody is refused is no call of CUDA's that failed
  return result;
}

EXPORT CUptiResult cuptiSubscribe(void **handle, callback_fn f, void *user) {
  if (!handle) return C_INVALID_PARAMETER;
  int e = cupti_ready();
  if (e) return e;
  struct sim_call c;
  if (cupti.subscribe_ns) cupti.hooks->wait_until(cupti.hooks->now() + cupti.subscribe_ns, 0);
  while (cupti.subscribe_file && !access(cupti.subscribe_file, F_OK))
    cupti.hooks->wait_until(cupti.hooks->now() + 1000000, 0);
  begin(&c, TOLD_SUBSCRIBE);
  pthread_mutex_lock(&cupti.lock);
  e = cupti.subscribed || cupti.busy ? C_MULTIPLE_SUBSCRIBERS : C_OK;
  if (!e) {
    cupti.subscribed = 1;
    list_add(f, user);
    cupti.execs_at_subscribe = cupti.hooks->graph_execs;
    cupti.subscription++;
    activity_worker(); // as the real one: a subscription makes its threads, only a finalize ends them
    *handle = &cupti;
  }
  pthread_mutex_unlock(&cupti.lock);
  return end(&c, e);
}

#ifndef CUPTI_OLD
struct subscriber_params { // CUpti_SubscriberParams, CUPTI 13.3 and later
  size_t size;
  const char *name;
  char *old_name;
  size_t old_size;
  uint8_t allow_several, pad[7];
};

// cuptiSubscribe_v2 is the same, and says who is there already. Several subscribers are not simulated.
EXPORT CUptiResult cuptiSubscribe_v2(void **handle, callback_fn f, void *user, struct subscriber_params *p) {
  const char *name = getenv("CUDASIM_CUPTI_BUSY_NAME");
  int e = p && p->allow_several ? C_MULTIPLE_SUBSCRIBERS : cuptiSubscribe(handle, f, user);
  if (e == C_MULTIPLE_SUBSCRIBERS && p && p->old_name && p->old_size)
    snprintf(p->old_name, p->old_size, "%s", name ? name : "CUPTI for another profiler");
  return e;
}
#endif

static void want_none(void) {
  memset((void *)cupti.hooks->want, 0, sizeof cupti.hooks->want);
  __atomic_store_n(&cupti.hooks->on_api, NULL, __ATOMIC_RELEASE);
  cupti.hooks->api_ns = 0;
  activate(ACTIVE_CALLBACKS, 0);
}

EXPORT CUptiResult cuptiUnsubscribe(void *handle) {
  if (handle != &cupti || !cupti.subscribed) return C_INVALID_PARAMETER;
  want_none();
  list_clear();
  work_freed();
  cupti.subscribed = 0;
  return C_OK;
}

static void some_wanted(void) {
  cupti.hooks->api_ns = (uint32_t)env("CUDASIM_CUPTI_API_NS");
  __atomic_store_n(&cupti.hooks->on_api, on_api, __ATOMIC_RELEASE);
  activate(ACTIVE_CALLBACKS, 1);
}

EXPORT CUptiResult cuptiEnableCallback(uint32_t enable, void *handle, int domain, uint32_t cbid) {
  if (handle != &cupti || !cupti.subscribed || domain < 1 || domain > DOMAIN_LAST) return C_INVALID_PARAMETER;
  if (domain != DOMAIN_DRIVER) return C_OK;
  int found = 0;
  for (uint32_t i = 1; i < cupti.hooks->driver_fns && i < HOOK_FNS; i++)
    if (cupti.hooks->driver_cbids[i] == cbid && cbid) cupti.hooks->want[i] = enable != 0, found = 1;
  if (enable && found) some_wanted();
  return found || cbid < 900 ? C_OK : C_INVALID_PARAMETER;
}

EXPORT CUptiResult cuptiEnableDomain(uint32_t enable, void *handle, int domain) {
  if (handle != &cupti || !cupti.subscribed || domain < 1 || domain > DOMAIN_LAST) return C_INVALID_PARAMETER;
  if (domain != DOMAIN_DRIVER) return C_OK;
  memset((void *)(cupti.hooks->want + 1), enable != 0, cupti.hooks->driver_fns - 1);
  if (enable) some_wanted();
  else want_none();
  return C_OK;
}

EXPORT CUptiResult cuptiEnableAllDomains(uint32_t enable, void *handle) {
  return cuptiEnableDomain(enable, handle, DOMAIN_DRIVER);
}

EXPORT CUptiResult cuptiGetCallbackState(uint32_t *enabled, void *handle, int domain, uint32_t cbid) {
  if (handle != &cupti || !enabled) return C_INVALID_PARAMETER;
  *enabled = 0;
  for (uint32_t i = 1; domain == DOMAIN_DRIVER && i < cupti.hooks->driver_fns; i++)
    if (cupti.hooks->driver_cbids[i] == cbid) *enabled = cupti.hooks->want[i];
  return C_OK;
}

EXPORT CUptiResult cuptiFinalize(void) {
  int e = cupti_ready();
  if (e) return e;
  struct sim_call c;
  begin(&c, TOLD_FINALIZE);
  int lethal = lethal_finalize();
  uint64_t launches = cupti.hooks->graph_launches;
  if (cupti.finalize_ns) cupti.hooks->wait_until(cupti.hooks->now() + cupti.finalize_ns, 0);
  lethal |= cupti.hooks->graph_launches > launches; // another thread launched a graph meanwhile
  memset((void *)cupti.kind, 0, sizeof cupti.kind);
  lethal_forget();
  work_gone();
  want_none();
  activity_stop();
  list_clear();
  cupti.subscribed = 0;
  cupti.timestamp = NULL;
  if (lethal) activate(ACTIVE_POISONED, 1);
  return end(&c, C_OK);
}

EXPORT CUptiResult cuptiGetVersion(uint32_t *version) {
  cupti_ready();
  *version = layout_version();
  return C_OK;
}

EXPORT CUptiResult cuptiGetCallbackName(int domain, uint32_t cbid, const char **name) {
  if (!name || cupti_ready() || domain != DOMAIN_DRIVER) return C_INVALID_PARAMETER;
  for (uint32_t i = 1; i < cupti.hooks->driver_fns; i++)
    if (cupti.hooks->driver_cbids[i] == cbid && cbid) {
      *name = cupti.hooks->driver_names[i];
      return C_OK;
    }
  return C_INVALID_PARAMETER;
}

EXPORT CUptiResult cuptiGetResultString(int result, const char **text) {
  static const struct {
    int code;
    const char *text;
  } known[] = {{C_OK, "CUPTI_SUCCESS"}, {C_INVALID_PARAMETER, "CUPTI_ERROR_INVALID_PARAMETER"},
      {C_MAX_LIMIT_REACHED, "CUPTI_ERROR_MAX_LIMIT_REACHED"}, {C_NOT_INITIALIZED, "CUPTI_ERROR_NOT_INITIALIZED"},
      {C_INVALID_KIND, "CUPTI_ERROR_INVALID_KIND"}, {C_NOT_SUPPORTED, "CUPTI_ERROR_NOT_SUPPORTED"},
      {C_MULTIPLE_SUBSCRIBERS, "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"}};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (known[i].code == result) {
      *text = known[i].text;
      return C_OK;
    }
  return C_INVALID_PARAMETER;
}
