// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// Computing on the CPU. Functions are told how much to do, and do not look at the clock.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "serving.h"

static unsigned char text[4096], image[4096];
static volatile uint32_t sink;

static NOINLINE void build_batch(long rounds) {
  uint32_t h = 2166136261u;
  while (rounds-- > 0)
    for (int i = 0; i < 64; i++) h = (h ^ text[i]) * 16777619u;
  sink = h;
}

static NOINLINE void pack_requests(long rounds) {
  uint32_t h = 1;
  while (rounds-- > 0)
    for (int i = 0; i < 64; i++) h = h * 31 + (h >> 7) + text[i * 3];
  sink = h;
}

static NOINLINE void tokenize_batch(long rounds) {
  uint32_t tokens = 0;
  while (rounds-- > 0)
    for (int i = 0; i < 64; i++) tokens += text[(tokens + (uint32_t)i) & 4095] == ' ' ? 1 : tokens & 3;
  sink = tokens;
}

static NOINLINE void decode_jpeg(long rounds) {
  int32_t dc = 7;
  while (rounds-- > 0)
    for (int i = 0; i < 64; i++) image[i] = (unsigned char)(dc = (dc * 181 + image[i] * 59) >> 3);
  sink = (uint32_t)dc;
}

static NOINLINE void resize_bilinear(long rounds) {
  uint32_t x = 3;
  while (rounds-- > 0)
    for (int i = 0; i < 64; i++) x = (x * 3 + image[i] * 13u + image[i + 64] * 5u) >> 2;
  sink = x;
}

// dispatch_op stands for what a framework does for each operation before it launches.
static NOINLINE void dispatch_op(long rounds) {
  uint32_t h = 5;
  while (rounds-- > 0)
    for (int i = 0; i < 64; i++) h = (h ^ image[i]) * 2654435761u;
  sink = h;
}

enum { BUILD, PACK, TOKENIZE, DECODE, RESIZE, DISPATCH, KINDS };
static void (*const functions[KINDS])(long) = {
    build_batch, pack_requests, tokenize_batch, decode_jpeg, resize_bilinear, dispatch_op};
static const char *const names[KINDS] = {
    "build_batch", "pack_requests", "tokenize_batch", "decode_jpeg", "resize_bilinear", "dispatch_op"};
static double rounds_per_us[KINDS];

// What an earlier program wrote into the file of the environment's RATES: a program and its fixed twin then do the same
// work, round by round, whatever the machine did while they started.
static void read_rates(void) {
  char name[64];
  double rate;
  FILE *f = getenv("RATES") ? fopen(getenv("RATES"), "r") : NULL;
  if (!f) return;
  while (fscanf(f, "%63s %lf", name, &rate) == 2)
    for (int k = 0; k < KINDS; k++)
      if (!strcmp(name, names[k])) rounds_per_us[k] = rate;
  fclose(f);
}

static void write_rate(const char *name, double rate) {
  FILE *f = getenv("RATES") ? fopen(getenv("RATES"), "a") : NULL;
  if (!f) return;
  fprintf(f, "%s %.9g\n", name, rate);
  fclose(f);
}

// The fastest of some tries is what the function takes where nobody disturbs.
static double fastest(int kind) {
  double best = 0;
  for (int try = 0; try < 7; try++) {
    uint64_t from = plan_now();
    functions[kind](2000);
    double rate = 2000 * 1e3 / (double)(plan_now() - from + 1);
    if (rate > best) best = rate;
  }
  return best;
}

void work_calibrate(void) {
  memset(text, 'a', sizeof text);
  for (size_t i = 0; i < sizeof text; i += 6) text[i] = ' ';
  read_rates();
  for (int k = 0; k < KINDS; k++)
    if (rounds_per_us[k] == 0) write_rate(names[k], rounds_per_us[k] = fastest(k));
}

static void run(int kind, long us) { functions[kind]((long)((double)us * rounds_per_us[kind])); }

static void phase(const char *cause, int kind, long us) {
  plan_begin(cause);
  run(kind, us);
  plan_end();
}

void work_native(const struct action *a) { phase("native-work", BUILD, a->a); }
void work_pack(const struct action *a) { phase("native-work", PACK, a->a); }
void work_tokenize(const struct action *a) { phase("preprocessing", TOKENIZE, a->a); }
void work_decode(const struct action *a) { phase("preprocessing", DECODE, a->a); }
void work_resize(const struct action *a) { phase("preprocessing", RESIZE, a->a); }
void work_crunch(long us) { run(BUILD, us); }
void work_dispatch(long us) { run(DISPATCH, us); }
