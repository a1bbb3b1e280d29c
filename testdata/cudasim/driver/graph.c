// Graphs: building, copying, capturing streams into them, and running them on the device.
#include <signal.h>
#include <unistd.h>
#include "graph.h"

static uint32_t next_graph = 1;
static uint64_t next_node = 1, next_capture = 1;

struct sim_graph *graph_new(void) {
  struct sim_graph *g = calloc(1, sizeof *g);
  if (!g) return NULL;
  g->magic = MAGIC_GRAPH;
  g->id = __atomic_fetch_add(&next_graph, 1, __ATOMIC_RELAXED);
  return g;
}

void graph_free(struct sim_graph *g) {
  for (size_t i = 0; i < g->count; i++) {
    struct sim_node *n = g->nodes[i];
    if (n->child) graph_free(n->child);
    n->magic = 0;
    free(n->deps);
    free(n);
  }
  g->magic = 0;
  free(g->nodes);
  free(g);
}

static int set_deps(struct sim_node *n, struct sim_node *const *deps, size_t count) {
  if (!count) return OK;
  n->deps = malloc(count * sizeof *deps);
  if (!n->deps) return E_OUT_OF_MEMORY;
  memcpy(n->deps, deps, count * sizeof *deps);
  n->dep_count = count;
  return OK;
}

struct sim_node *graph_add(struct sim_graph *g, uint32_t type, struct sim_node *const *deps, size_t count) {
  if (g->count == g->cap) {
    size_t cap = g->cap ? g->cap * 2 : 64;
    struct sim_node **l = realloc(g->nodes, cap * sizeof *l);
    if (!l) return NULL;
    g->nodes = l;
    g->cap = cap;
  }
  struct sim_node *n = calloc(1, sizeof *n);
  if (!n || set_deps(n, deps, count)) {
    free(n);
    return NULL;
  }
  n->magic = MAGIC_NODE;
  n->type = type;
  n->graph = g;
  n->id = __atomic_fetch_add(&next_node, 1, __ATOMIC_RELAXED);
  n->index = g->count;
  g->nodes[g->count++] = n;
  return n;
}

struct sim_graph *graph_clone(const struct sim_graph *from) {
  struct sim_graph *g = graph_new();
  for (size_t i = 0; g && i < from->count; i++) {
    const struct sim_node *a = from->nodes[i];
    struct sim_node *b = graph_add(g, a->type, a->deps, a->dep_count);
    if (!b) return NULL;
    b->op = a->op, b->duration = a->duration, b->fn = a->fn, b->data = a->data, b->event = a->event, b->func = a->func,
    b->id = a->id;
    if (a->child) b->child = graph_clone(a->child);
  }
  for (size_t i = 0; g && i < g->count; i++)
    for (size_t d = 0; d < g->nodes[i]->dep_count; d++) g->nodes[i]->deps[d] = g->nodes[g->nodes[i]->deps[d]->index];
  return g;
}

// sort_nodes orders the nodes so that each comes after those it follows; 0 where they go round in a circle.
static int sort_nodes(const struct sim_graph *g, size_t *order) {
  char *placed = calloc(g->count + 1, 1);
  size_t done = 0;
  for (int progress = 1; placed && done < g->count && progress;) {
    progress = 0;
    for (size_t i = 0; i < g->count; i++) {
      int ready = !placed[i];
      for (size_t d = 0; ready && d < g->nodes[i]->dep_count; d++) ready = placed[g->nodes[i]->deps[d]->index];
      if (!ready) continue;
      placed[i] = 1;
      order[done++] = i;
      progress = 1;
    }
  }
  free(placed);
  return done == g->count;
}

struct sim_exec *exec_new(const struct sim_graph *g) {
  struct sim_exec *x = calloc(1, sizeof *x);
  if (!x) return NULL;
  x->magic = MAGIC_EXEC;
  x->graph = graph_clone(g);
  x->id = g->id;
  x->ends = calloc(g->count + 1, sizeof *x->ends);
  x->order = calloc(g->count + 1, sizeof *x->order);
  if (x->graph && x->ends && x->order && sort_nodes(x->graph, x->order)) {
    __atomic_fetch_add(&cudasim_hooks.graph_execs, 1, __ATOMIC_RELAXED);
    return x;
  }
  x->magic = 0;
  exec_free(x);
  return NULL;
}

void exec_free(struct sim_exec *x) {
  if (x->magic) __atomic_fetch_sub(&cudasim_hooks.graph_execs, 1, __ATOMIC_RELAXED);
  if (x->graph) graph_free(x->graph);
  x->magic = 0;
  free(x->ends);
  free(x->order);
  free(x);
}

static int is_op(const struct sim_node *n) { return n->type <= NODE_HOST; }

// run_node gives one node its time and returns its end. The caller holds the device's lock.
static uint64_t run_node(struct sim_node *n, struct sim_stream *s, uint64_t from, struct sim_op *op) {
  *op = n->op;
  op->graph_node = n->id;
  op->device = s->dev->index;
  op->stream_id = s->id;
  op->context_id = tls.ctx ? tls.ctx->id : 0;
  op_place(s->dev, op, from, n->duration);
  return op->end;
}

struct pass { // one launch of a graph: what all its nodes need
  struct sim_stream *s;
  struct sim_call *c;
  uint64_t submit;
  uint32_t graph_id;
  uint64_t extra; // ns that a profiler's instruments cost each node
};

static uint64_t run_list(struct sim_graph *g, const size_t *order, uint64_t *ends, uint64_t from, const struct pass *p);

static uint64_t run_child(struct sim_graph *g, uint64_t from, const struct pass *p) {
  uint64_t *ends = calloc(g->count + 1, sizeof *ends);
  size_t *order = calloc(g->count + 1, sizeof *order);
  uint64_t end = from;
  if (ends && order && sort_nodes(g, order)) end = run_list(g, order, ends, from, p);
  free(ends);
  free(order);
  return end;
}

static uint64_t run_any(struct sim_node *n, uint64_t from, const struct pass *p) {
  if (n->type == NODE_GRAPH && n->child) return run_child(n->child, from, p);
  if (n->type == NODE_EVENT_RECORD && n->event) n->event->when = from, n->event->recorded = 1;
  if (n->type == NODE_WAIT_EVENT && n->event && n->event->recorded && n->event->when > from) return n->event->when;
  if (!is_op(n)) return from;
  struct sim_op op;
  uint64_t end = run_node(n, p->s, from, &op);
  op.submit = p->submit;
  op.graph_id = p->graph_id;
  if (n->fn) p->s->hostfn_ticket = hostfn_queue(n->fn, n->data, op.start);
  op_publish(&op, p->c);
  return end;
}

static uint64_t run_list(
    struct sim_graph *g, const size_t *order, uint64_t *ends, uint64_t from, const struct pass *p) {
  uint64_t last = from;
  for (size_t i = 0; i < g->count; i++) {
    struct sim_node *n = g->nodes[order[i]];
    uint64_t at = from + (is_op(n) ? p->extra : 0);
    for (size_t d = 0; d < n->dep_count; d++) {
      uint64_t t = ends[n->deps[d]->index] + (is_op(n) ? sim.cfg.graph_node_ns + p->extra : 0);
      if (t > at) at = t;
    }
    ends[n->index] = run_any(n, at, p);
    if (ends[n->index] > last) last = ends[n->index];
  }
  return last;
}

// instrumented is what a node costs more: a graph that runs while per-node records are on keeps their instruments, and
// stays slower when they are off, until it is made anew or CUPTI is finalized.
static uint64_t instrumented(struct sim_exec *x) {
  const struct sim_hooks *h = &cudasim_hooks;
  if (h->graph_kinds_on) {
    x->epoch = h->graph_epoch;
    return h->graph_on_ns;
  }
  return x->epoch == h->graph_epoch ? h->graph_off_ns : 0;
}

static struct {
  pthread_mutex_t lock;
  uint32_t tid, other; // that launched last, and the last one before it
  uint64_t others;     // launches up to the last one by that other thread
} launcher = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void launched(void) {
  pthread_mutex_lock(&launcher.lock);
  if (launcher.tid != tls.tid)
    launcher.other = launcher.tid, launcher.tid = tls.tid, launcher.others = cudasim_hooks.graph_launches;
  cudasim_hooks.graph_launches++;
  pthread_mutex_unlock(&launcher.lock);
}

static int lives(uint32_t tid) { return !tgkill(getpid(), (int)tid, 0); }

uint64_t launches_of_others(void) {
  pthread_mutex_lock(&launcher.lock);
  int mine = launcher.tid == tls.tid;
  uint64_t n = !lives(mine ? launcher.other : launcher.tid) ? 0 : mine ? launcher.others : cudasim_hooks.graph_launches;
  pthread_mutex_unlock(&launcher.lock);
  return n;
}

void graph_after_fork(void) { pthread_mutex_init(&launcher.lock, NULL); }

// exec_run expands the graph on the device, behind the stream, and returns its end.
uint64_t exec_run(struct sim_exec *x, struct sim_stream *s, struct sim_call *c) {
  uint64_t from = stream_done(s), now = now_ns();
  struct pass p = {s, c, now, x->id, instrumented(x)};
  if (from < now + sim.cfg.launch_latency_ns) from = now + sim.cfg.launch_latency_ns;
  pthread_mutex_lock(&s->dev->lock);
  uint64_t end = run_list(x->graph, x->order, x->ends, from, &p);
  pthread_mutex_unlock(&s->dev->lock);
  stream_delay(s, end);
  launched();
  return end;
}

// capture_free ends the capture for its origin and every stream that joined it.
static void capture_free(struct capture *k) {
  while (k) {
    struct capture *next = k->sibling;
    k->self->capture = NULL;
    free(k->deps);
    free(k);
    k = next;
  }
}

int capture_begin(struct sim_stream *s, struct sim_graph *into) {
  struct capture *k = calloc(1, sizeof *k);
  if (!k) return E_OUT_OF_MEMORY;
  k->graph = into ? into : graph_new();
  k->id = __atomic_fetch_add(&next_capture, 1, __ATOMIC_RELAXED);
  k->origin = k->self = s;
  s->capture = k;
  return OK;
}

static struct {
  uint32_t global; // captures of mode CAPTURE_GLOBAL
  uint64_t epoch;  // raised by calls that are unsafe beside them
} captures;

// capture_forbid makes the capture that has just begun one that forbids other threads what may be unsafe.
void capture_forbid(struct sim_stream *s) {
  s->capture->global = 1;
  s->capture->epoch = __atomic_load_n(&captures.epoch, __ATOMIC_ACQUIRE);
  tls.captures++;
  __atomic_fetch_add(&captures.global, 1, __ATOMIC_RELEASE);
}

// capture_unsafe is for calls that may be unsafe beside another thread's capture: they fail then, and spoil it, unless
// the thread has said that it is relaxed about it (cuThreadExchangeStreamCaptureMode). Taken to be so: what enabling a
// kind does inside, and a synchronization without a context.
int capture_unsafe(void) {
  if (tls.capture_mode == CAPTURE_RELAXED || __atomic_load_n(&captures.global, __ATOMIC_ACQUIRE) <= tls.captures)
    return OK;
  __atomic_fetch_add(&captures.epoch, 1, __ATOMIC_RELEASE);
  return E_STREAM_CAPTURE_UNSUPPORTED;
}

int capture_end(struct sim_stream *s, struct sim_graph **out) {
  struct capture *k = s->capture;
  if (!k || k->origin != s) return E_ILLEGAL_STATE;
  int spoilt = k->global && k->epoch != __atomic_load_n(&captures.epoch, __ATOMIC_ACQUIRE);
  if (k->global) tls.captures--, __atomic_fetch_sub(&captures.global, 1, __ATOMIC_RELEASE);
  *out = spoilt ? NULL : k->graph;
  capture_free(k);
  return spoilt ? E_STREAM_CAPTURE_INVALIDATED : OK;
}

static int follow(struct capture *k, struct sim_node *const *deps, size_t count) {
  struct sim_node **l = realloc(k->deps, (k->count + count + 1) * sizeof *l);
  if (!l) return E_OUT_OF_MEMORY;
  k->deps = l;
  memcpy(l + k->count, deps, count * sizeof *l);
  k->count += count;
  return OK;
}

int capture_add(struct sim_stream *s, const struct sim_op *op, uint64_t duration, CUhostFn fn, void *data) {
  static const uint32_t types[] = {
      [OP_KERNEL] = NODE_KERNEL, [OP_COPY] = NODE_MEMCPY, [OP_MEMSET] = NODE_MEMSET, [OP_HOST] = NODE_HOST};
  struct capture *k = s->capture;
  struct sim_node *n = graph_add(k->graph, types[op->kind], k->deps, k->count);
  if (!n) return E_OUT_OF_MEMORY;
  n->op = *op, n->duration = duration, n->fn = fn, n->data = data;
  k->count = 0;
  return follow(k, &n, 1);
}

int capture_event_record(struct sim_stream *s, struct sim_event *ev) {
  // lives as long as the event may be waited for; small, and left to the process
  struct capture *k = calloc(1, sizeof *k);
  if (!k) return E_OUT_OF_MEMORY;
  *k = (struct capture){.graph = s->capture->graph, .id = s->capture->id, .origin = s->capture->origin};
  ev->capture = k;
  return follow(k, s->capture->deps, s->capture->count);
}

// capture_event_wait lets a stream follow an event of a capture, and so join it.
int capture_event_wait(struct sim_stream *s, struct sim_event *ev) {
  struct capture *main = ev->capture ? ev->capture->origin->capture : NULL;
  if (!main || main->id != ev->capture->id) return s->capture ? E_STREAM_CAPTURE_UNSUPPORTED : OK;
  if (!s->capture) {
    int e = capture_begin(s, ev->capture->graph);
    if (e) return e;
    s->capture->origin = main->origin;
    s->capture->id = main->id;
    s->capture->sibling = main->sibling;
    main->sibling = s->capture;
  }
  return follow(s->capture, ev->capture->deps, ev->capture->count);
}
