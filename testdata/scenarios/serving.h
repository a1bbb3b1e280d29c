/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
#ifndef SERVING_H
#define SERVING_H

#include <stddef.h>
#include <stdint.h>

/* What prog and prog.py are made of: a small inference server on the simulated CUDA, which
 * does as the script on its standard input says, and writes down what it did (plan.c). */

#define PUBLIC __attribute__((visibility("default")))
#define NOINLINE __attribute__((noinline))

/* An action of a script: two numbers and a word. */
struct action {
  const struct verb *verb;
  long a, b;
  char word[64];
};
struct verb {
  const char *name;
  void (*run)(const struct action *);
  void (*prepare)(const struct action *); /* before CUDA is up; may be null */
};

/* plan.c: the truth. A phase is a stretch of CLOCK_MONOTONIC ns in which the calling thread,
 * which is the one that the GPU waits for, did what cause names. */
PUBLIC uint64_t plan_now(void);
PUBLIC void plan_begin(const char *cause);
PUBLIC void plan_end(void);
PUBLIC void plan_split(const char *cause, uint64_t from); /* from then to now it was cause, in the middle of the phase
                                                           * that is open */
void plan_late_begin(const char *cause); /* the same, for what comes just before the next launch */
void plan_late_end(void);
void plan_late_longer(void); /* it goes on until now */
PUBLIC void plan_add(const char *cause, uint64_t from, uint64_t to);

/* device.c: CUDA. Each thread has a stream of its own. */
PUBLIC void device_open(void);
PUBLIC extern uint64_t device_left; /* ns: when wait or item last came back from the driver */
void device_kernels(const struct action *);  /* kernels N NAME: launches them, as fast as it goes */
void device_small(const struct action *);    /* small N BLOCKS NAME: the same, of so few blocks, where kernels have
                                              * eight for each multiprocessor */
void device_burst(const struct action *);    /* burst N US NAME: the same, with US of a framework's dispatching before
                                              * each */
void device_eager(const struct action *);    /* eager N US NAME: launches that a framework takes US each for, of kernels
                                              * that run longer than that */
void device_runtime(const struct action *);  /* rkernels N US NAME: as burst, through the runtime */
void device_rwait(const struct action *);    /* rwait: cudaStreamSynchronize */
void device_graph(const struct action *);    /* graph N NAME: one graph of N kernels in a row */
void device_wait(const struct action *);     /* wait: cuStreamSynchronize */
void device_item(const struct action *);     /* item: 4 bytes to pageable memory, which waits for everything before */
void device_lag(const struct action *);      /* lag N: waits for what was launched N actions "lag" before, so that the
                                              * queue never drains */
void device_poll(const struct action *);     /* poll US: asks every US whether what was launched is done */
void device_upload(const struct action *);   /* upload BYTES: from pinned memory, asynchronous */
void device_download(const struct action *); /* download BYTES: to pinned memory, asynchronous */
void device_ahead(const struct action *);    /* ahead BYTES DOWN: upload (1: download) in a stream of its own, which the
                                              * next step's kernels wait for */
void device_copyin(const struct action *);   /* copyin BYTES: from pageable memory, synchronous */
void device_copyout(const struct action *);  /* copyout BYTES: to pageable memory, synchronous */
void device_alloc(const struct action *);    /* alloc N BYTES: cuMemAlloc and cuMemFree */
void device_ralloc(const struct action *);   /* ralloc N BYTES: cudaMalloc and cudaFree */
void device_pin(const struct action *);      /* pin N BYTES: cuMemHostAlloc and cuMemFreeHost */
void device_module(const struct action *);   /* module: loads a module */
void device_callback(const struct action *); /* callback US N NAME: N kernels behind a host function of US
                                              * (CUDASIM_HOSTFN_NS) */
void device_across(const struct action *);   /* across US N NAME: the same, the host function in another stream */

/* work.c: computing on the CPU, in microseconds of a quiet machine. */
PUBLIC void work_calibrate(void);
void work_native(const struct action *);
void work_pack(const struct action *);
void work_tokenize(const struct action *);
void work_decode(const struct action *);
void work_resize(const struct action *);
void work_crunch(long us); /* as work_native, no phase */
PUBLIC void work_dispatch(long us);

/* partners.c: waiting for other threads and processes. */
void partner_worker(const struct action *);     /* worker US: a thread computes, asked through a condition */
void partner_loader(const struct action *);     /* loader US: a thread fills a bounded queue, US a piece */
void partner_child(const struct action *);      /* child US: a process computes, asked through pipes */
void partner_frontend(const struct action *);   /* frontend US: a process tokenizes, asked through a socket pair */
void partner_lock(const struct action *);       /* lock US: another thread holds a mutex */
void partner_rwlock(const struct action *);     /* rwlock US: another thread writes under a read-write lock */
void partner_contend(const struct action *);    /* contend US REST: a thread takes a mutex for US and leaves it for
                                                 * REST */
void partner_flock(const struct action *);      /* flock US: a process has the lock of a file for US, again and again */
void partner_feed(const struct action *);       /* feed US: 128 KB to a process, through a pipe with room for less, that
                                                 * computes for US before it reads the next */
void partner_enter(const struct action *);      /* enter: takes the lock of all that launches */
void partner_leave(const struct action *);      /* leave: lets go of it */
void partner_flock_ready(const struct action *);
void partner_feed_ready(const struct action *);
void partner_child_ready(const struct action *);
void partner_frontend_ready(const struct action *);

/* outside.c: waiting for the machine and for others. */
void outside_sleep(const struct action *);  /* sleep US */
void outside_read(const struct action *);   /* read BYTES: past the page cache */
void outside_sync(const struct action *);   /* sync BYTES: writes, and waits until the disk has them */
void outside_ask(const struct action *);    /* ask PORT US: an answer that takes a server US */
void outside_serve(const struct action *);  /* serve: waits for a byte on a connection */
void outside_accept(const struct action *); /* accept: waits for a connection, and a byte on it */
void outside_fault(const struct action *);  /* fault BYTES: touches fresh memory */
void outside_reuse(const struct action *);  /* reuse BYTES: touches memory that it keeps */
void outside_file_ready(const struct action *);
void outside_listen(const struct action *);
void outside_cpu(const struct action *);    /* cpu N: stays on CPU N; begins before CUDA is up */

/* script.c */
PUBLIC int serve_action(const char *text);   /* runs one action: "kernels 20 gemm_us50" */
PUBLIC void serve_prepare(const char *text); /* what a line of actions needs before CUDA is up */
_Noreturn void die(const char *what);

#endif
