// Options, finding the CUDA library, and starting the script.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "victim.h"
#include "../../test/gpu/fault.h"

const char *self_path, *lib_mode;
int per_thread;
static const struct api *chosen;

static const char help[] =
    "victim [--lib driver|runtime] [--path FILE] [--late] [--ptds] [--] COMMAND...   each argument is one or more commands\n"
    "victim ... -                                                                    commands from stdin\n"
    "  --lib    which API the commands use; victim-static has the runtime linked in, victim-linked needs libcuda at load\n"
    "  --path   load the library from this file instead of by name; --late: load none until dlopen-now\n"
    "  --ptds   call the per-thread default stream variants (_ptsz, _ptds)\n"
    "Unless --late, 'ready PID' is printed when CUDA is up, before the first command.\n"
    "Commands, separated by ; or newline; blocks in { }; times as 100ns 20us 5ms 3s:\n"
    "  launch [N] [kernel=NAME_us10] [grid=X,Y,Z] [block=X,Y,Z] [shared=BYTES] [stream=K] [ex|coop]    launchex N ...\n"
    "  h2d|d2h|d2d BYTES [xN] [async] [pinned] [stream=K]     memset BYTES [xN] [async] [stream=K]\n"
    "  malloc BYTES [xN] [async]   free [N] [async]   sync   ssync [stream=K]   query [stream=K]   hostfunc [stream=K]\n"
    "  stream-new [nonblocking]    makes stream 1, 2, ...; 0 is the default stream\n"
    "  event-record E [stream=K]   event-wait E [stream=K]   event-sync E\n"
    "  graph N stream=K [kernel=..] | graph stream=K { ... }  captures and instantiates;  graph-launch [N] [graph=G] [stream=K]\n"
    "  graph-update N stream=K [graph=G] [kernel=..]   captures N kernels and updates the graph with them\n"
    "  reset (the device; forgets streams, events, graphs)   context N (makes it, or goes back; driver only)   p2p BYTES [xN] (to device 1 and back; driver only)\n"
    "  rate PER_SECOND for TIME [launch options]    burst N every TIME for TIME [launch options]\n"
    "  decode TOKENS [kernels=12] [kernel=..] [h2d=BYTES] [d2h=BYTES] [cpu=200us] [sample=50us] [pinned] [graph] [stream=K]\n"
    "  thread N [nowait] { .. }   fork [nowait] { .. }   exec { .. }   repeat N { .. }   until [TIME] { .. } (or a line on stdin)\n"
    "  sleep TIME   spin TIME   ready   wait (for a line on stdin)   print WORDS   exit [CODE]   crash\n"
    "  dlopen-now [FILE]   open FILE (go on with another copy of the library)\n"
    "  cupti subscribe|buffers|clock|unsubscribe|flush|finalize|dump    cupti enable KIND   cupti disable KIND   cupti callback CBID\n"
    "  cupti map (and no more)   cupti last (callback)   cupti take-over (registers another profiler's buffers)\n"
    "  cupti finalize-at-exit [flushed|bare]   at the next exit of an enabled callback: disable, flush, unsubscribe, finalize\n"
    "  nvtx push NAME   nvtx pop   nvtx mark NAME   through the library that VICTIM_NVTX names\n"
    "Exit: 0, 1 when a CUDA call failed (named on stderr), 2 for a bad script.\n";

#ifdef STATIC_RUNTIME
#define F(name) extern void name(void);
#define NAMES \
  F(__cudaRegisterFatBinary) F(__cudaRegisterFatBinaryEnd) F(__cudaRegisterFunction) F(cudaSetDevice) F(cudaFree) F(cudaMalloc) F(cudaHostAlloc) \
  F(cudaDeviceSynchronize) F(cudaLaunchKernel) F(cudaLaunchKernelExC) F(cudaLaunchCooperativeKernel) F(cudaMallocAsync) F(cudaFreeAsync) F(cudaMemcpy) \
  F(cudaMemcpyAsync) F(cudaMemset) F(cudaMemsetAsync) F(cudaStreamCreateWithFlags) F(cudaStreamSynchronize) F(cudaStreamQuery) F(cudaStreamWaitEvent) \
  F(cudaEventCreate) F(cudaEventRecord) F(cudaEventSynchronize) F(cudaStreamBeginCapture) F(cudaStreamEndCapture) F(cudaGraphInstantiate) \
  F(cudaGraphLaunch) F(cudaLaunchHostFunc) F(cudaGraphExecUpdate) F(cudaGraphDestroy) F(cudaDeviceReset)
NAMES
#undef F
#define F(name) {#name, name},
static const struct {
  const char *name;
  void (*fn)(void);
} linked[] = {NAMES};
static void *symbol(const char *name) {
  for (size_t i = 0; i < sizeof linked / sizeof *linked; i++)
    if (!strcmp(linked[i].name, name)) return *(void **)&linked[i].fn;
  return NULL;
}
#else
static void *library;
static void *symbol(const char *name) { return dlsym(library, name); }
#endif

void run_open(const char *path) {
#ifndef STATIC_RUNTIME
  library = dlopen(path ? path : chosen->name, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "victim: %s\n", dlerror());
    exit(1);
  }
#else
  (void)path;
#endif
  cuda = chosen;
  int e = cuda->setup(symbol);
  if (e) {
    fprintf(stderr, "victim: %s returned %d\n", failed, e);
    exit(1);
  }
}

static char *read_all(FILE *f) {
  size_t n = 0, cap = 1 << 20;
  char *text = malloc(cap);
  if (!text) die("out of memory");
  n = fread(text, 1, cap - 1, f);
  if (n == cap - 1) die("a script is at most 1 MiB");
  text[n] = 0;
  return text;
}

static char *join(char **argv) {
  size_t n = 1;
  for (char **a = argv; *a; a++) n += strlen(*a) + 1;
  char *text = calloc(1, n);
  if (!text) die("out of memory");
  for (char **a = argv; *a; a++) strcat(strcat(text, *a), "\n");
  return text;
}

static void choose(const char *lib) {
  lib_mode = lib;
  if (!strcmp(lib, "driver")) chosen = &driver_api;
  else if (!strcmp(lib, "runtime")) chosen = &runtime_api;
  else die("--lib %s is neither driver nor runtime", lib);
}

static void find_self(void) {
  static char path[4096];
  ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
  self_path = n > 0 ? path : "/proc/self/exe";
}

static void start(int late, const char *path, const struct node *script) {
  run_check(script);
  if (!late) {
    run_open(path);
    printf("ready %d\n", (int)getpid());
  }
  run_block(script);
}

int main(int argc, char **argv) {
  if (getenv("VICTIM_FAULTS")) fault_show(); // what it dies of
  const char *path = NULL;
  int late = 0, i;
  find_self();
#ifdef STATIC_RUNTIME
  choose("runtime");
#else
  choose("driver");
#endif
  for (i = 1; i < argc && argv[i][0] == '-' && argv[i][1]; i++) {
    if (!strcmp(argv[i], "--help")) return fputs(help, stdout), 0;
    else if (!strcmp(argv[i], "--lib") && i + 1 < argc) choose(argv[++i]);
    else if (!strcmp(argv[i], "--path") && i + 1 < argc) path = argv[++i];
    else if (!strcmp(argv[i], "--late")) late = 1;
    else if (!strcmp(argv[i], "--ptds")) per_thread = 1;
    else if (!strcmp(argv[i], "--")) { i++; break; }
    else die("%s is no option", argv[i]);
  }
  setvbuf(stdout, NULL, _IOLBF, 0);
  int from_stdin = i < argc && !strcmp(argv[i], "-");
  start(late, path, script_parse(from_stdin ? read_all(stdin) : join(argv + i)));
  return 0;
}
