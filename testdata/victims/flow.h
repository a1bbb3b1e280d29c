// What the files with commands share: how a command reads its words, and the commands of flow.c.
#ifndef FLOW_H
#define FLOW_H
#include "victim.h"

// run.c
void check(int code); // of a CUDA call: ends the program unless it is 0
uint64_t number(const char *s, const char *what);
uint64_t duration(const char *s); // ns, of 100ns, 20us, 5ms, 3s
int flag(const struct node *n, const char *word);
const char *arg(const struct node *n, int i); // null where there are not so many words

// flow.c
void sleep_ns(uint64_t ns);
void do_sleep(const struct node *n);
void do_spin(const struct node *n);
void do_thread(const struct node *n);
void do_fork(const struct node *n);
void do_exec(const struct node *n);
void do_repeat(const struct node *n);
void do_until(const struct node *n);
void do_ready(const struct node *n);
void do_wait(const struct node *n);
void do_print(const struct node *n);
void do_nvtx(const struct node *n);
void do_exit(const struct node *n);
void do_crash(const struct node *n);
#endif
