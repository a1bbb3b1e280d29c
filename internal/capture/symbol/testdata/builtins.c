// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
// What an interpreter has of a module that is built into it: PyModuleDef and PyMethodDef (Include/moduleobject.h,
// methodobject.h).
#include <stddef.h>

struct method {
  const char *name;
  void *code;
  int flags;
  const char *doc;
};
struct module {
  long references;
  void *type, *init;
  long index;
  void *copy;
  const char *name, *doc;
  long size;
  struct method *methods;
  void *slots, *traverse, *clear, *free;
};

struct slot {
  int number;
  void *to;
};
struct spec {
  const char *name;
  int size, each;
  unsigned flags;
  struct slot *slots;
};

#define HIDDEN static __attribute__((noinline, used))
extern int outside(int);

HIDDEN int dumps(int x) { return outside(x + 1) * 3; }
HIDDEN int helper(int x) { return outside(x + 2) * 5; }
HIDDEN int loads(int x) { return helper(x + 3) * 7; }
HIDDEN int strange(int x) { return outside(x + 4) * 11; }
HIDDEN int find_all(int x) { return outside(x + 6) * 17; }
HIDDEN int next_row(int x) { return outside(x + 7) * 19; }
HIDDEN int last(int x) { return outside(x + 5) * 13; }

// What is no name ends a table; what is no function's beginning has no name.
static struct method pickle[] = {
    {"dumps", dumps, 1, NULL}, {"inside", (char *)loads + 1, 1, NULL}, {"loads", loads, 1, ""}, {NULL, NULL, 0, NULL}};
static struct method odd[] = {{"not a name", strange, 1, NULL}, {NULL, NULL, 0, NULL}};
static struct method used[] = {{"strange", strange, 1, NULL}, {NULL, NULL, 0, NULL}};
static struct method pattern[] = {{"findall", find_all, 1, NULL}, {NULL, NULL, 0, NULL}};
static struct slot slots[] = {{52, strange}, {64, pattern}, {63, next_row}, {0, NULL}},
                   end[] = {{0, NULL}, {50, strange}};
__attribute__((used)) static struct spec types[] = {
    {"re.Pattern", 64, 8, 1, slots}, {"re.Empty", 64, 8, 1, end}, {"plain", 64, 8, 1, end + 1}};
__attribute__((used)) static struct module modules[] = {
    {0xffffffff, NULL, NULL, 0, NULL, "_pickle", "", 16, pickle, NULL, NULL, NULL, NULL},
    {1, NULL, NULL, 0, NULL, "odd", NULL, -1, odd, NULL, NULL, NULL, NULL},
    {1, NULL, used, 0, NULL, "loaded", NULL, -1, used, NULL, NULL, NULL, NULL},   // has an init: no head of a module
    {1, NULL, NULL, 0, NULL, "large", NULL, 1L << 40, used, NULL, NULL, NULL, NULL},
};

int outside(int x) { return x < 0 ? last(-x) : x; }
int main(void) { return (int)modules[0].references + dumps(1) + loads(2) + strange(3) + find_all(4) + next_row(5); }
