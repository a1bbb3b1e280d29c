/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names, each written to the ring once. No lock and no allocation, because completed buffers may arrive on several
 * threads at a time. At worst a race writes a name twice, under two ids, which is harmless.
 */
#include "agent.h"

#define ENTRIES (1u << 14)
#define TEXTS (8u << 20) /* bytes; pages that no name uses are never touched */
#define LONGEST 16384u
#define PROBES 32u

enum { EMPTY = 0, BUSY = 1, WHOLE = 2 };

struct entry {
	uint32_t state, id, length, text; /* text: offset in texts */
	uint64_t numbers;                 /* dur of its AGENT_NAME */
	uint32_t local, flags;
};

static struct {
	struct entry *entries; /* ENTRIES, and behind them the texts */
	char *texts;
	uint32_t used, last; /* bytes of texts; the last id given */
} names;

int names_make(void)
{
	if (!names.entries)
		names.entries = map(ENTRIES * sizeof(struct entry) + TEXTS);
	if (!names.entries)
		return -ENOMEM;
	names.texts = (char *)(names.entries + ENTRIES);
	return 0;
}

void names_forget(void)
{
	sys(SYS_madvise, names.entries, ENTRIES * sizeof(struct entry) + TEXTS, MADV_DONTNEED);
	names.used = 0;
	names.last = 0;
}

static int same(const struct entry *e, const char *text, uint32_t length, const struct agent_slot *a)
{
	return e->length == length && e->numbers == a->dur && e->local == (uint32_t)a->ts && e->flags == a->flags &&
	       !memcmp(names.texts + e->text, text, length);
}

/* FNV-1a over 8-byte words. */
static uint32_t hash(const char *text, uint32_t length, const struct agent_slot *a)
{
	uint64_t h = 0xcbf29ce484222325u ^ a->dur ^ a->ts << 48;
	uint64_t word;

	for (; length >= 8; length -= 8, text += 8) {
		__builtin_memcpy_inline(&word, text, 8);
		h = (h ^ word) * 0x100000001b3u;
		h ^= h >> 29;
	}
	for (; length; length--)
		h = (h ^ (uint8_t)*text++) * 0x100000001b3u;
	return (uint32_t)(h ^ h >> 32);
}

/* Bytes of text in one struct agent_text. */
#define TEXT 59u
_Static_assert(sizeof(struct agent_text) == TEXT + sizeof(uint32_t) + sizeof(uint8_t), "text, seq and kind");
_Static_assert(sizeof(struct agent_text) == sizeof(struct agent_slot), "a text is a slot");

static void put_text(int64_t at, const char *text, uint32_t length)
{
	struct agent_text t;
	uint8_t part[TEXT];

	for (uint32_t i = 0; i < TEXT; i++)
		part[i] = i < length ? (uint8_t)text[i] : 0;
	memcpy(t.text_a, part, 16);
	memcpy(t.text_b, part + 16, 6);
	memcpy(t.text_c, part + 22, 37);
	t.kind = AGENT_TEXT;
	ring_put(at, (const struct agent_slot *)&t);
}

/* The name's slots are adjacent, so one reader finds them together. */
static void announce(int64_t at, uint32_t id, const char *text, uint32_t length, const struct agent_slot *about)
{
	struct agent_slot s = *about;

	s.kind = AGENT_NAME;
	s.ret = (int32_t)id;
	s.func = (uint16_t)length;
	ring_put(at, &s);
	for (uint32_t from = 0; from < length; from += TEXT)
		put_text(++at, text + from, length - from);
}

/* Fills an entry that this thread has claimed. Without room here or in the ring it stays empty, and the next event
 * tries again. */
static uint32_t fill(struct entry *e, const char *text, uint32_t length, const struct agent_slot *about)
{
	int64_t at = peek(&names.used) > TEXTS - length ? -1 : ring_take(1 + (length + TEXT - 1) / TEXT);
	uint32_t offset, id;

	if (at < 0) {
		store(&e->state, EMPTY);
		return 0;
	}
	id = add(&names.last, 1) + 1;
	announce(at, id, text, length, about);
	offset = add(&names.used, length);
	if (offset > TEXTS - length) { /* others took the room at the same moment */
		store(&e->state, EMPTY);
		return id;
	}
	memcpy(names.texts + offset, text, length);
	e->id = id;
	e->length = length;
	e->text = offset;
	e->numbers = about->dur;
	e->local = (uint32_t)about->ts;
	e->flags = about->flags;
	store(&e->state, WHOLE);
	return id;
}

uint32_t name_id(const char *text, const struct agent_slot *about)
{
	uint32_t length, h;

	if (!text)
		return 0;
	length = (uint32_t)text_length(text, LONGEST);
	h = hash(text, length, about);
	for (uint32_t i = 0; i < PROBES; i++) {
		struct entry *e = &names.entries[(h + i) & (ENTRIES - 1)];
		uint32_t state = load(&e->state);

		if (state == WHOLE && same(e, text, length, about))
			return e->id;
		if (state == EMPTY && swapped(&e->state, EMPTY, BUSY))
			return fill(e, text, length, about);
	}
	return 0; /* full: the event is written without its name */
}
