// The script's grammar: commands separated by newline or ';', words by blanks, blocks in braces.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "victim.h"

static struct node *parse(const char **p, int depth);

static int blank(char c) { return c == ' ' || c == '\t'; }
static int ends_command(char c) { return c == '\n' || c == ';' || c == '}' || c == '{' || c == 0; }

static char *word(const char **p) {
  const char *from = *p;
  while (!blank(**p) && !ends_command(**p)) (*p)++;
  return strndup(from, (size_t)(*p - from));
}

static void block(struct node *n, const char **p, int depth) {
  (*p)++;
  n->has_block = 1;
  n->body = parse(p, depth + 1);
  if (**p != '}') die("'%s {' has no closing brace", n->words ? n->word[0] : "");
  (*p)++;
}

static struct node *command(const char **p, int depth) {
  struct node *n = calloc(1, sizeof *n);
  if (!n) die("out of memory");
  for (;;) {
    while (blank(**p)) (*p)++;
    if (**p == '{') {
      block(n, p, depth);
      return n;
    }
    if (ends_command(**p)) return n;
    if (n->words == MAX_WORDS) die("'%s' has more than %d words", n->word[0], MAX_WORDS);
    n->word[n->words++] = word(p);
  }
}

static struct node *parse(const char **p, int depth) {
  struct node *first = NULL, **at = &first;
  for (;;) {
    while (blank(**p) || **p == '\n' || **p == ';') (*p)++;
    if (!**p) return first;
    if (**p == '}') {
      if (!depth) die("a closing brace too many");
      return first;
    }
    struct node *n = command(p, depth);
    if (!n->words) die("a block without a command before it");
    *at = n;
    at = &n->next;
  }
}

struct node *script_parse(const char *text) { return parse(&text, 0); }
