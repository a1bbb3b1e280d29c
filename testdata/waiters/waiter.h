/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
#ifndef WAITER_H
#define WAITER_H

#include <pthread.h>

/* Behaviours; each does the same for ever. FILE is a path to make a file at. */
void talk_pipe(void);	       /* main reads, "partner" writes every 10 ms */
void talk_child(void);	       /* the same, with a child process as the partner */
void talk_socket(void);	       /* the same over a socket pair */
void talk_futex(void);	       /* main and "partner" wake each other */
void talk_poll(void);	       /* main polls the pipe that "partner" writes to */
void file_disk(const char *);  /* main reads a file past the page cache */
void file_major(const char *); /* main touches a mapped file that is not in memory */
void file_minor(void);	       /* main touches memory that "partner" provides, 5 ms late each time */
void file_thrash(const char *); /* main reads a byte, makes a file of 32 MB and reads it again and again */
void talk_storm(void);	       /* main and "partner" hand a byte to and fro on one CPU, as fast as they can */
void live_crowd(long n);       /* so many threads sleep for 20 ms again and again, as main does */
void live_threads(void);       /* main makes threads that sleep for 5 ms, one after the other */
void live_fork(void);	       /* main makes processes that sleep for 20 ms, and waits for each */
void live_twin(long apart);    /* a child whose pid is so far away sleeps for 10 ms again and again, as main does */
void live_exec(char *self);    /* a thread that is not the first reads a byte and replaces the program by "sleep" */

/* Says the name and the number of the calling thread. */
void introduce(const char *name);
/* Starts a thread that introduces itself before start returns. */
void start(const char *name, void *(*run)(void *), void *arg);
void ready(void);
void pause_ms(long ms);
_Noreturn void die(const char *what);

#endif
