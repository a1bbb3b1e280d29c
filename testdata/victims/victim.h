// The scripted victim: a program that makes exactly the CUDA calls its script says.
#ifndef VICTIM_H
#define VICTIM_H
#include <stddef.h>
#include <stdint.h>

enum { MAX_WORDS = 32, MAX_STREAMS = 64, MAX_EVENTS = 64 };

struct node { // one command, with its block where it has one
  char *word[MAX_WORDS];
  int words, has_block;
  struct node *body, *next;
};

struct shape { // how to launch
  const char *kernel;
  unsigned grid[3], block[3], shared;
  int stream;   // index; 0 is the default stream
  char how;     // 'k' plain, 'x' the Ex entry point, 'c' cooperative
};

enum { DIR_H2D, DIR_D2H, DIR_D2D };
struct transfer {
  int dir, async, pinned, stream;
  size_t bytes;
};

// api is the CUDA library in use: the driver's functions or the runtime's. All return CUDA's own codes.
struct api {
  const char *name;
  int (*setup)(void *(*sym)(const char *)); // loads what is needed; 0 or an error, *failed says where
  int (*thread_setup)(void);
  int (*launch)(const struct shape *, uint64_t n);
  int (*copy)(const struct transfer *, uint64_t n);
  int (*fill)(size_t bytes, int async, int stream, uint64_t n);
  int (*alloc)(size_t bytes, void **out, int async);
  int (*release)(void *p, int async);
  int (*sync)(void);
  int (*stream_new)(int nonblocking, int index);
  int (*stream_sync)(int index);
  int (*stream_query)(int index);
  int (*event_record)(int event, int stream);
  int (*event_wait)(int event, int stream);
  int (*event_sync)(int event);
  int (*capture_begin)(int stream);
  int (*capture_end)(int stream, void **exec);
  int (*graph_launch)(void *exec, int stream, uint64_t n);
  int (*host_func)(void (*fn)(void *), void *data, int stream);
  // captures n kernels, and updates exec with them
  int (*graph_update)(void *exec, int stream, const struct shape *, uint64_t n);
  int (*reset)(void);                        // the device: forgets streams, events, kernels, buffers
  // goes on in context n, made at its first use; 0 is the first; null: cannot
  int (*context)(int n);
  int (*peer)(size_t bytes, uint64_t n);     // to device 1 and back; null: cannot
};

extern const struct api driver_api, runtime_api;
extern const char *failed; // the function that returned the last error
extern int per_thread;     // use the per-thread default stream variants

// Buffers that copies use; made at the first copy that needs them, 64 MiB or the copy's size.
size_t buffer_size(size_t bytes);
uint64_t now_ns(void);
void spin_ns(uint64_t ns);

// script.c
struct node *script_parse(const char *text);
// profile.c
void profile_command(const char *what, const char *argument);
// run.c
void run_block(const struct node *);
void run_check(const struct node *);
void run_open(const char *path); // null: the usual name
extern const struct api *cuda;
void die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
extern const char *self_path, *lib_mode;
#endif
