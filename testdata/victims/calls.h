// What the files of the two APIs share: the library's functions, what is made of its handles, and the calls whose names
// differ in their prefix only. Before it is included, lib and symbols are the functions, NAME(x) puts the prefix before
// a name, and HOST_ALLOC is the allocation of pinned memory.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CALL(fn, ...) CALL_(fn, __VA_ARGS__)
#define CALL_(fn, ...) do { int r_ = lib.fn(__VA_ARGS__); if (r_) { failed = #fn; return r_; } } while (0)

static handle streams[MAX_STREAMS], events[MAX_EVENTS];
static int kernel_count;
static void *host_buffer[2]; // pageable, pinned
static size_t device_size, host_size[2];

static int launch(const struct shape *s, uint64_t n);

static void resolve(void *(*sym)(const char *)) {
  for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
    char name[128];
    snprintf(name, sizeof name, "%s%s", symbols[i].name, per_thread && symbols[i].pt ? symbols[i].pt : "");
    void *p = sym(name);
    if (!p) die("the library has no %s", name);
    *(void **)((char *)&lib + symbols[i].at) = p;
  }
}

// The device forgets streams, events and buffers.
static void forget(void) {
  memset(streams, 0, sizeof streams);
  memset(events, 0, sizeof events);
  device_size = host_size[1] = 0;
}

static int need_host(size_t bytes, int pinned) {
  if (bytes <= host_size[pinned]) return 0;
  host_size[pinned] = buffer_size(bytes);
  if (pinned) CALL(HOST_ALLOC, &host_buffer[1], host_size[1], 0);
  else
    host_buffer[0] =
        mmap(NULL, host_size[0], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return host_buffer[pinned] == MAP_FAILED ? 2 : 0;
}

static int stream_sync(int i) {
  CALL(NAME(StreamSynchronize), streams[i]);
  return 0;
}

static int stream_query(int i) { return lib.NAME(StreamQuery)(streams[i]); }

static int event_wait(int ev, int s) {
  CALL(NAME(StreamWaitEvent), streams[s], events[ev], 0);
  return 0;
}

static int event_sync(int ev) {
  CALL(NAME(EventSynchronize), events[ev]);
  return 0;
}

static int capture_begin(int s) {
  CALL(NAME(StreamBeginCapture), streams[s], 0);
  return 0;
}

static int capture_end(int s, void **exec) {
  handle graph;
  CALL(NAME(StreamEndCapture), streams[s], &graph);
  CALL(NAME(GraphInstantiate), exec, graph, 0);
  return 0;
}

static int graph_launch(void *exec, int s, uint64_t n) {
  for (uint64_t i = 0; i < n; i++) CALL(NAME(GraphLaunch), exec, streams[s]);
  return 0;
}

static int host_func(void (*fn)(void *), void *data, int s) {
  CALL(NAME(LaunchHostFunc), streams[s], fn, data);
  return 0;
}

static int graph_update(void *exec, int stream, const struct shape *s, uint64_t n) {
  handle graph;
  struct {
    int result;
    handle bad, bad_from;
  } info;
  CALL(NAME(StreamBeginCapture), streams[stream], 0);
  int e = launch(s, n);
  if (e) return e;
  CALL(NAME(StreamEndCapture), streams[stream], &graph);
  CALL(NAME(GraphExecUpdate), exec, graph, &info);
  CALL(NAME(GraphDestroy), graph);
  return 0;
}
