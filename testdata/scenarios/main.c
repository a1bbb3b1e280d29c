// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// prog: does what the lines on its standard input say, each line again and again in a thread of its own, the first in
// the main thread. "process LINE" is a process of its own. After the line "go" it says "ready PID" and begins.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <signal.h>
#include <unistd.h>
#include "serving.h"

enum { LINES = 16, ACTIONS = 32 };
struct line {
  int process;
  char *actions[ACTIONS + 1];
};

static void split(char *text, struct line *l) {
  memset(l, 0, sizeof *l);
  if (!strncmp(text, "process ", 8)) l->process = 1, text += 8;
  int n = 0;
  char *rest = NULL;
  for (char *a = strtok_r(text, ";\n", &rest); a && n < ACTIONS; a = strtok_r(NULL, ";\n", &rest))
    l->actions[n++] = strdup(a);
}

static NOINLINE void *serve(void *arg) {
  struct line *l = arg;
  for (;;)
    for (char **a = l->actions; *a; a++) serve_action(*a);
  return NULL;
}

static void prepare(struct line *l) {
  for (char **a = l->actions; *a; a++) serve_prepare(*a);
}

int main(void) {
  static struct line lines[LINES];
  int n = 0;
  for (char text[1024]; fgets(text, sizeof text, stdin) && strcmp(text, "go\n") && n < LINES;) split(text, &lines[n++]);
  if (!n) return 2;
  work_calibrate();
  int first = 0;
  for (int i = 1; i < n; i++)
    if (lines[i].process && fork() == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      first = i;
      break;
    }
  prepare(&lines[first]);
  for (int i = first + 1; i < n && !lines[i].process; i++) prepare(&lines[i]);
  device_open();
  if (!first) printf("ready %d\n", getpid()), fflush(stdout);
  for (int i = first + 1; i < n && !lines[i].process; i++) {
    pthread_t t;
    if (pthread_create(&t, NULL, serve, &lines[i])) die("pthread_create");
  }
  serve(&lines[first]);
}
