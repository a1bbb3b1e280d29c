// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Scripts: lines of actions, "ACTION NUMBER NUMBER WORD; ...".
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "serving.h"

static const struct verb verbs[] = {
    {"kernels", device_kernels, NULL}, {"small", device_small, NULL}, {"burst", device_burst, NULL},
    {"eager", device_eager, NULL}, {"rkernels", device_runtime, NULL}, {"rwait", device_rwait, NULL},
    {"graph", device_graph, NULL}, {"wait", device_wait, NULL}, {"item", device_item, NULL}, {"lag", device_lag, NULL},
    {"poll", device_poll, NULL}, {"upload", device_upload, NULL}, {"download", device_download, NULL}, {"ahead", device_ahead, NULL},
    {"copyin", device_copyin, NULL}, {"copyout", device_copyout, NULL}, {"alloc", device_alloc, NULL},
    {"ralloc", device_ralloc, NULL}, {"pin", device_pin, NULL}, {"module", device_module, NULL},
    {"callback", device_callback, NULL}, {"across", device_across, NULL}, {"native", work_native, NULL},
    {"pack", work_pack, NULL}, {"tokenize", work_tokenize, NULL}, {"decode", work_decode, NULL},
    {"resize", work_resize, NULL}, {"worker", partner_worker, NULL}, {"loader", partner_loader, NULL},
    {"child", partner_child, partner_child_ready}, {"frontend", partner_frontend, partner_frontend_ready},
    {"lock", partner_lock, NULL}, {"rwlock", partner_rwlock, NULL}, {"contend", partner_contend, NULL},
    {"flock", partner_flock, partner_flock_ready}, {"feed", partner_feed, partner_feed_ready},
    {"sleep", outside_sleep, NULL}, {"read", outside_read, outside_file_ready},
    {"sync", outside_sync, outside_file_ready}, {"ask", outside_ask, NULL}, {"serve", outside_serve, outside_listen},
    {"accept", outside_accept, outside_listen}, {"fault", outside_fault, NULL}, {"cpu", NULL, outside_cpu},
    {"reuse", outside_reuse, NULL}, {"enter", partner_enter, NULL}, {"leave", partner_leave, NULL},
};

void die(const char *what) {
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  exit(1);
}

static int parse(const char *text, struct action *out) {
  char name[32] = "";
  long n[2] = {0, 0};
  int used = 0, numbers = 0;
  memset(out, 0, sizeof *out);
  if (sscanf(text, " %31s%n", name, &used) != 1) return 0;
  for (text += used; numbers < 2; numbers++) {
    char *end;
    n[numbers] = strtol(text, &end, 10);
    if (end == text) break;
    if (*end == 'M') n[numbers] <<= 20, end++;
    if (*end == 'k') n[numbers] <<= 10, end++;
    text = end;
  }
  sscanf(text, " %63s", out->word);
  out->a = n[0];
  out->b = n[1];
  for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
    if (!strcmp(verbs[i].name, name)) return out->verb = &verbs[i], 1;
  fprintf(stderr, "no action %s\n", name);
  exit(2);
}

// Texts are parsed once for each thread: those of a script are few, and stay where they are.
int serve_action(const char *text) {
  static __thread struct {
    const char *text;
    struct action action;
  } known[32];
  for (size_t i = 0; i < 32; i++) {
    if (!known[i].text) {
      if (!parse(text, &known[i].action)) return 0;
      known[i].text = strdup(text);
    }
    if (!strcmp(known[i].text, text)) {
      if (known[i].action.verb->run) known[i].action.verb->run(&known[i].action);
      return 1;
    }
  }
  die("too many different actions");
}

void serve_prepare(const char *text) {
  struct action a;
  if (parse(text, &a) && a.verb->prepare) a.verb->prepare(&a);
}
