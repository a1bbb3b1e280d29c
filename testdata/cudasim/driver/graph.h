// Graphs: nodes in a list, each with the nodes it must follow.
#ifndef CUDASIM_GRAPH_H
#define CUDASIM_GRAPH_H
#include "sim.h"

struct sim_node {
  uint32_t magic, type;
  uint64_t id;
  struct sim_graph *graph;
  struct sim_node **deps;
  size_t dep_count;
  struct sim_op op;      // kernel, copy, memset, host
  uint64_t duration;     // ns
  CUhostFn fn;
  void *data;
  struct sim_graph *child;
  struct sim_event *event;
  struct sim_func *func;
  size_t index;          // place in its graph's list
};

struct sim_graph {
  uint32_t magic, id;
  struct sim_node **nodes;
  size_t count, cap;
};

struct sim_exec {
  uint32_t magic, id;
  struct sim_graph *graph; // its own copy
  uint64_t *ends;          // room for the end times of one launch
  size_t *order;           // node indices, each after those it follows
  uint32_t epoch;          // of the profiler's that instrumented it; 0: none did
};

struct sim_graph *graph_new(void);
void graph_free(struct sim_graph *);
struct sim_graph *graph_clone(const struct sim_graph *);
struct sim_node *graph_add(struct sim_graph *, uint32_t type, struct sim_node *const *deps, size_t count);
struct sim_exec *exec_new(const struct sim_graph *);
void exec_free(struct sim_exec *);
uint64_t exec_run(struct sim_exec *, struct sim_stream *, struct sim_call *);
int capture_begin(struct sim_stream *, struct sim_graph *into);
int capture_end(struct sim_stream *, struct sim_graph **out);
void capture_forbid(struct sim_stream *);
#endif
