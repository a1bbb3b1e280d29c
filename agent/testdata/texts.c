/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Texts of every length, at every alignment, in a page between two that cannot be read: a byte read outside of it ends
 * this program by SIGSEGV. Linked with the sources in src; says what was compared.
 */
#include "../src/agent.h"

int printf(const char *format, ...);

enum { PAGE = 4096, LONGEST = 300 };

static char *page;

static int fail(const char *what, size_t length, size_t behind)
{
	printf("%s: length %u, %u bytes behind it\n", what, (unsigned)length, (unsigned)behind);
	return 1;
}

/* A text of length bytes with so many behind its end, the first of them the NUL where there is one; what stands around
 * it is not 0. */
static const char *text(size_t length, size_t behind, int byte)
{
	char *at = page + PAGE - behind - length;

	memset(page, 0x80, PAGE);
	memset(at, byte, length);
	if (behind)
		at[length] = 0;
	return at;
}

/* The bytes that a search by words may take for a 0, or for the end of one. */
static const int bytes[] = { 1, 'x', 0x7f, 0x80, 0x81, 0xff };

static int lengths(size_t length, size_t behind)
{
	for (size_t i = 0; i < COUNT(bytes); i++) {
		const char *t = text(length, behind, bytes[i]);
		size_t most = behind ? LONGEST + 20 : length; /* without a NUL the limit is the end */

		if (text_length(t, most) != length)
			return fail("not its length", length, behind);
		for (size_t limit = 0; limit < length; limit += limit < 40 ? 1 : 37)
			if (text_length(t, limit) != limit)
				return fail("not the limit", length, behind);
	}
	return 0;
}

/* At the beginning of the page, where what lies before the text cannot be read either. */
static int beginnings(size_t length, size_t before)
{
	memset(page, 0, PAGE); /* zeros before the text are not its end */
	memset(page + before, 'x', length);
	return text_length(page + before, PAGE - before) != length ? fail("not its length at the beginning", length, before)
	                                                           : 0;
}

static int names(size_t length, uint32_t *last)
{
	static const struct agent_slot about;

	for (size_t behind = 1; behind <= 9; behind++) { /* the same name at other places */
		uint32_t id = name_id(text(length, behind, 'n'), &about);

		if (id != *last + (behind == 1))
			return fail("not the name's one id", length, behind);
		*last = id;
		the.ring->tail = the.ring->head;
	}
	return 0;
}

int main(void)
{
	uint32_t last = 0;
	int bad = 0;

	page = map(3 * PAGE);
	the.params.slots = 1 << 10;
	if (!page || ring_make() || names_make())
		return 2;
	page += PAGE;
	if (sys(SYS_munmap, page - PAGE, PAGE, 0) || sys(SYS_munmap, page + PAGE, PAGE, 0))
		return 2;
	for (size_t length = 0; length <= LONGEST && !bad; length++) {
		for (size_t behind = 0; behind <= 17 && !bad; behind++)
			bad = lengths(length, behind) || beginnings(length, behind);
		bad = bad || names(length, &last);
	}
	if (!bad)
		printf("%u lengths, %u names\n", LONGEST + 1, last);
	return bad;
}
