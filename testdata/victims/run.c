// The script's commands: those that call CUDA, and the table of all.
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "flow.h"

const struct api *cuda;
const char *failed = "";
static void *execs[16];
static int exec_count, stream_count = 1;
static void *blocks[65536];
static int block_count;
static pthread_mutex_t blocks_lock = PTHREAD_MUTEX_INITIALIZER;

void die(const char *format, ...) {
  va_list a;
  va_start(a, format);
  fputs("victim: ", stderr);
  vfprintf(stderr, format, a);
  fputs(" (victim --help says what is possible)\n", stderr);
  va_end(a);
  exit(2);
}

uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

__attribute__((noinline)) void spin_ns(uint64_t ns) {
  for (uint64_t end = now_ns() + ns; now_ns() < end;) __asm__ volatile("");
}

size_t buffer_size(size_t bytes) { return bytes > (64u << 20) ? bytes : 64u << 20; }

void check(int code) {
  if (!code) return;
  fprintf(stderr, "victim: %s returned %d\n", failed, code);
  exit(1);
}

uint64_t number(const char *s, const char *what) {
  char *end;
  uint64_t n = strtoull(s ? s : "", &end, 10);
  if (!s || *end || end == s || *s == '-') die("'%s' is not a number of %s", s ? s : "", what);
  return n;
}

// duration reads 100ns, 20us, 5ms, 3s.
uint64_t duration(const char *s) {
  static const struct {
    const char *unit;
    uint64_t ns;
  } units[] = {{"ns", 1}, {"us", 1000}, {"ms", 1000000}, {"s", 1000000000}};
  char *end;
  uint64_t n = strtoull(s ? s : "", &end, 10);
  for (size_t i = 0; s && end != s && i < 4; i++)
    if (!strcmp(end, units[i].unit)) return n * units[i].ns;
  die("'%s' is not a time such as 20us or 5ms", s ? s : "");
}

// option finds key=value among the words; flag finds a bare word; times finds xN.
static const char *option(const struct node *n, const char *key) {
  size_t len = strlen(key);
  for (int i = 1; i < n->words; i++)
    if (!strncmp(n->word[i], key, len) && n->word[i][len] == '=') return n->word[i] + len + 1;
  return NULL;
}

int flag(const struct node *n, const char *word) {
  for (int i = 1; i < n->words; i++)
    if (!strcmp(n->word[i], word)) return 1;
  return 0;
}

static uint64_t times(const struct node *n) {
  for (int i = 2; i < n->words; i++)
    if (n->word[i][0] == 'x') return number(n->word[i] + 1, "repetitions");
  return 1;
}

const char *arg(const struct node *n, int i) { return i < n->words ? n->word[i] : NULL; }

static void triple(const char *s, unsigned *out) {
  if (s && sscanf(s, "%u,%u,%u", &out[0], &out[1], &out[2]) < 1) die("'%s' is not X, X,Y or X,Y,Z", s);
}

static int stream_of(const struct node *n) {
  const char *s = option(n, "stream");
  uint64_t i = s ? number(s, "a stream") : 0;
  if (i >= (uint64_t)stream_count) die("stream=%s was not made: stream-new makes 1, 2, ...", s);
  return (int)i;
}

static int event_of(const struct node *n) {
  uint64_t i = number(arg(n, 1), "an event");
  if (i >= MAX_EVENTS) die("event %s is above %d", n->word[1], MAX_EVENTS - 1);
  return (int)i;
}

static struct shape shape_of(const struct node *n) {
  struct shape s = {"k_us5", {1, 1, 1}, {32, 1, 1}, 0, stream_of(n), 'k'};
  if (option(n, "kernel")) s.kernel = option(n, "kernel");
  triple(option(n, "grid"), s.grid);
  triple(option(n, "block"), s.block);
  if (option(n, "shared")) s.shared = (unsigned)number(option(n, "shared"), "bytes");
  if (flag(n, "ex") || !strcmp(n->word[0], "launchex")) s.how = 'x';
  if (flag(n, "coop")) s.how = 'c';
  return s;
}

static void do_launch(const struct node *n) {
  struct shape s = shape_of(n);
  check(cuda->launch(&s, arg(n, 1) ? number(n->word[1], "launches") : 1));
}

static void do_copy(const struct node *n) {
  struct transfer t = {!strcmp(n->word[0], "h2d") ? DIR_H2D
          : !strcmp(n->word[0], "d2h")            ? DIR_D2H
                                                  : DIR_D2D,
      flag(n, "async"), flag(n, "pinned"), stream_of(n), number(arg(n, 1), "bytes")};
  check(cuda->copy(&t, times(n)));
}

static void do_memset(const struct node *n) {
  check(cuda->fill(number(arg(n, 1), "bytes"), flag(n, "async"), stream_of(n), times(n)));
}

static void do_malloc(const struct node *n) {
  uint64_t bytes = number(arg(n, 1), "bytes");
  for (uint64_t i = times(n); i; i--) {
    void *p;
    check(cuda->alloc(bytes, &p, flag(n, "async")));
    pthread_mutex_lock(&blocks_lock);
    if (block_count == 65536) die("more than 65536 blocks are allocated at once");
    blocks[block_count++] = p;
    pthread_mutex_unlock(&blocks_lock);
  }
}

static void do_free(const struct node *n) {
  for (uint64_t i = arg(n, 1) && *n->word[1] != 'a' ? number(n->word[1], "blocks") : 1; i; i--) {
    pthread_mutex_lock(&blocks_lock);
    void *p = block_count ? blocks[--block_count] : NULL;
    pthread_mutex_unlock(&blocks_lock);
    if (!p) die("free: nothing is allocated");
    check(cuda->release(p, flag(n, "async")));
  }
}

static void do_stream_new(const struct node *n) {
  if (stream_count == MAX_STREAMS) die("more than %d streams", MAX_STREAMS - 1);
  check(cuda->stream_new(flag(n, "nonblocking"), stream_count++));
}

static void do_sync(const struct node *n) {
  (void)n;
  check(cuda->sync());
}
static void do_ssync(const struct node *n) { check(cuda->stream_sync(stream_of(n))); }
static void do_query(const struct node *n) {
  int e = cuda->stream_query(stream_of(n));
  if (e != 600) check(e);
}
static void do_event_record(const struct node *n) { check(cuda->event_record(event_of(n), stream_of(n))); }
static void do_event_wait(const struct node *n) { check(cuda->event_wait(event_of(n), stream_of(n))); }
static void do_event_sync(const struct node *n) { check(cuda->event_sync(event_of(n))); }

// do_rate launches at an even pace: rate PER_SECOND for TIME. A call that comes late is not skipped.
static void do_rate(const struct node *n) {
  uint64_t per_s = number(arg(n, 1), "launches a second");
  if (!per_s || !arg(n, 3) || strcmp(n->word[2], "for")) die("rate wants: rate PER_SECOND for TIME");
  uint64_t total = (uint64_t)((double)per_s * (double)duration(n->word[3]) / 1e9), start = now_ns();
  struct shape s = shape_of(n);
  if (!option(n, "kernel")) s.kernel = "k_ns100";
  double step = 1e9 / (double)per_s;
  for (uint64_t i = 0; i < total; i++) {
    uint64_t due = start + (uint64_t)((double)i * step), now = now_ns();
    if (due > now + 200000) sleep_ns(due - now - 100000);
    while (now_ns() < due) __asm__ volatile("");
    check(cuda->launch(&s, 1));
  }
  printf("rate %llu calls in %.6f s\n", (unsigned long long)total, (double)(now_ns() - start) / 1e9);
}

// do_burst repeats N launches at once, then silence: burst N every TIME for TIME.
static void do_burst(const struct node *n) {
  uint64_t count = number(arg(n, 1), "launches");
  if (!arg(n, 5) || strcmp(n->word[2], "every") || strcmp(n->word[4], "for"))
    die("burst wants: burst N every TIME for TIME");
  uint64_t every = duration(n->word[3]), start = now_ns(), rounds = duration(n->word[5]) / every;
  struct shape s = shape_of(n);
  for (uint64_t i = 0; i < rounds; i++) {
    check(cuda->launch(&s, count));
    uint64_t due = start + (i + 1) * every, now = now_ns();
    if (due > now) sleep_ns(due - now);
  }
}

static void do_graph(const struct node *n) {
  if (exec_count == 16) die("more than 16 graphs");
  int s = stream_of(n);
  if (!s) die("a graph is captured in a stream: stream-new, then graph N stream=1");
  struct shape k = shape_of(n);
  check(cuda->capture_begin(s));
  if (n->body) run_block(n->body);
  else check(cuda->launch(&k, number(arg(n, 1), "nodes")));
  check(cuda->capture_end(s, &execs[exec_count++]));
}

static void *graph_of(const struct node *n) {
  const char *g = option(n, "graph");
  uint64_t i = g ? number(g, "a graph") : (uint64_t)exec_count;
  if (!i || i > (uint64_t)exec_count) die("%s: no such graph", n->word[0]);
  return execs[i - 1];
}

static void do_graph_launch(const struct node *n) {
  check(cuda->graph_launch(
      graph_of(n), stream_of(n), arg(n, 1) && !strchr(n->word[1], '=') ? number(n->word[1], "launches") : 1));
}

static void do_graph_update(const struct node *n) {
  struct shape s = shape_of(n);
  check(cuda->graph_update(graph_of(n), stream_of(n), &s, number(arg(n, 1), "nodes")));
}

static void do_reset(const struct node *n) {
  (void)n;
  check(cuda->reset());
  exec_count = 0;
  stream_count = 1;
}

static void do_context(const struct node *n) {
  uint64_t i = number(arg(n, 1), "a context");
  if (!cuda->context || i >= MAX_STREAMS)
    die("context %s: the driver API has contexts 0 to %d", n->word[1], MAX_STREAMS - 1);
  check(cuda->context((int)i));
}

static void do_p2p(const struct node *n) {
  if (!cuda->peer) die("p2p needs --lib driver");
  check(cuda->peer(number(arg(n, 1), "bytes"), times(n)));
}

static void host_nothing(void *data) { (void)data; }
static void do_hostfunc(const struct node *n) { check(cuda->host_func(host_nothing, NULL, stream_of(n))); }

__attribute__((noinline)) static void tokenize_prompt(uint64_t ns) { spin_ns(ns); }
__attribute__((noinline)) static void sample_token(uint64_t ns) { spin_ns(ns); }

// do_decode is a token loop: tokenizer, small copy in, kernels or a graph of them, small copy out, sync, sampling.
static void do_decode(const struct node *n) {
  uint64_t tokens = number(arg(n, 1), "tokens"),
           kernels = option(n, "kernels") ? number(option(n, "kernels"), "kernels") : 12;
  uint64_t cpu = option(n, "cpu") ? duration(option(n, "cpu")) : 200000,
           sampling = option(n, "sample") ? duration(option(n, "sample")) : 50000;
  struct transfer in = {DIR_H2D, 1, flag(n, "pinned"), stream_of(n),
                      option(n, "h2d") ? number(option(n, "h2d"), "bytes") : 4096},
                  out = in;
  out.dir = DIR_D2H;
  if (option(n, "d2h")) out.bytes = number(option(n, "d2h"), "bytes");
  struct shape s = shape_of(n);
  if (!option(n, "kernel")) s.kernel = "decode_us10";
  for (uint64_t t = 0; t < tokens; t++) {
    tokenize_prompt(cpu);
    check(cuda->copy(&in, 1));
    if (flag(n, "graph") && exec_count) check(cuda->graph_launch(execs[exec_count - 1], s.stream, 1));
    else check(cuda->launch(&s, kernels));
    check(cuda->copy(&out, 1));
    check(cuda->stream_sync(s.stream));
    sample_token(sampling);
  }
}

static void do_open(const struct node *n) { run_open(arg(n, 1)); }
static void do_cupti(const struct node *n) { profile_command(arg(n, 1), arg(n, 2)); }

static const struct command {
  const char *name;
  void (*run)(const struct node *);
  int needs_cuda, takes_block;
} commands[] = {
    {"launch", do_launch, 1, 0}, {"launchex", do_launch, 1, 0}, {"h2d", do_copy, 1, 0}, {"d2h", do_copy, 1, 0},
    {"d2d", do_copy, 1, 0}, {"memset", do_memset, 1, 0}, {"malloc", do_malloc, 1, 0}, {"free", do_free, 1, 0},
    {"sync", do_sync, 1, 0}, {"ssync", do_ssync, 1, 0}, {"query", do_query, 1, 0}, {"stream-new", do_stream_new, 1, 0},
    {"event-record", do_event_record, 1, 0}, {"event-wait", do_event_wait, 1, 0}, {"event-sync", do_event_sync, 1, 0},
    {"graph", do_graph, 1, 1}, {"graph-launch", do_graph_launch, 1, 0}, {"graph-update", do_graph_update, 1, 0},
    {"reset", do_reset, 1, 0}, {"context", do_context, 1, 0}, {"p2p", do_p2p, 1, 0}, {"hostfunc", do_hostfunc, 1, 0},
    {"rate", do_rate, 1, 0}, {"burst", do_burst, 1, 0}, {"decode", do_decode, 1, 0}, {"thread", do_thread, 0, 1},
    {"fork", do_fork, 0, 1}, {"exec", do_exec, 0, 1}, {"repeat", do_repeat, 0, 1}, {"until", do_until, 0, 1},
    {"sleep", do_sleep, 0, 0}, {"spin", do_spin, 0, 0}, {"ready", do_ready, 0, 0}, {"wait", do_wait, 0, 0},
    {"print", do_print, 0, 0}, {"exit", do_exit, 0, 0}, {"crash", do_crash, 0, 0}, {"dlopen-now", do_open, 0, 0},
    {"open", do_open, 0, 0}, {"cupti", do_cupti, 0, 0}, {"nvtx", do_nvtx, 0, 0},
};

static const struct command *find(const struct node *n) {
  for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
    if (!strcmp(commands[i].name, n->word[0])) return &commands[i];
  die("'%s' is no command", n->word[0]);
}

// run_check refuses a bad script before anything of it has run.
void run_check(const struct node *n) {
  for (; n; n = n->next) {
    const struct command *c = find(n);
    if (n->has_block && !c->takes_block) die("'%s' takes no block", n->word[0]);
    if (!n->has_block && c->takes_block && strcmp(c->name, "graph")) die("'%s' wants a block in braces", n->word[0]);
    run_check(n->body);
  }
}

void run_block(const struct node *n) {
  for (; n; n = n->next) {
    const struct command *c = find(n);
    if (c->needs_cuda && !cuda) die("'%s' before dlopen-now", n->word[0]);
    c->run(n);
  }
}
