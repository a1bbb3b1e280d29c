/* SPDX-License-Identifier: Apache-2.0 */
#include "sys.h"

uint64_t now(void)
{
	struct timespec64 t = { 0, 0 };

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.seconds * 1000000000u + (uint64_t)t.nanoseconds;
}

uint32_t gettid(void)
{
	return (uint32_t)sys(SYS_gettid, 0, 0, 0);
}

int thread_lives(uint32_t tid)
{
	return !sys(SYS_tgkill, sys(SYS_getpid, 0, 0, 0), tid, 0);
}

/* Reads struct pthread.tid of glibc on x86-64, at its offset in 2.36. That is not part of the ABI, so it is used only
 * after a check in two threads (tid_agrees in start.c). On arm64 the offset differs between versions. */
uint32_t libc_tid(void)
{
	uint32_t tid = 0;

#if defined(__x86_64__)
	if (gnu_get_libc_version)
		__asm__("movl %%fs:0x2d0, %0" : "=r"(tid));
#endif
	return tid;
}

void *map(size_t bytes)
{
	long at =
	    sys6(SYS_mmap, 0, (long)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at < 0 && at > -4096)
		return NULL;
	sys(SYS_madvise, at, bytes, MADV_DONTDUMP);
	return (void *)at;
}

void futex_wait(uint32_t *word, uint32_t seen, uint64_t ns)
{
	struct timespec64 t = { (int64_t)(ns / 1000000000u), (int64_t)(ns % 1000000000u) };

	sys6(SYS_futex, (long)word, FUTEX_WAIT, (long)seen, (long)&t, 0, 0);
}

void futex_wake(uint32_t *word)
{
	sys(SYS_futex, word, FUTEX_WAKE, 0x7fffffff);
}

/*
 * Reads aligned words. A word never crosses a page, so the bytes around the text can always be read; only an address
 * sanitizer would object, and is disabled here.
 */
__attribute__((no_sanitize("address"))) size_t text_length(const char *text, size_t limit)
{
	size_t before = (uintptr_t)text % 8, at; /* at: from the first of the word's bytes that is not the text's */
	uint64_t word, zeros;

	for (at = 0; at < limit + before; at += 8) {
		__builtin_memcpy_inline(&word, text - before + at, 8);
		if (!at)
			word |= (1ull << 8 * before) - 1;
		zeros = (word - 0x0101010101010101u) & ~word & 0x8080808080808080u; /* its lowest bit is in the first byte that
		                                                                     * is 0 */
		if (!zeros)
			continue;
		at += (size_t)__builtin_ctzll(zeros) / 8 - before;
		return at < limit ? at : limit;
	}
	return limit;
}

const char *found(const char *text, const char *part)
{
	for (; *text; text++) {
		size_t i = 0;

		while (part[i] && text[i] == part[i])
			i++;
		if (!part[i])
			return text;
	}
	return NULL;
}

void copy_text(char *to, const char *from, size_t room)
{
	size_t n = text_length(from, room - 1);

	memcpy(to, from, n);
	to[n] = 0;
}

/* Compilers call these implicitly; -fno-builtin keeps them from turning these loops into calls of themselves. */
void *memcpy(void *restrict to, const void *restrict from, size_t n)
{
	unsigned char *t = to;
	const unsigned char *f = from;

	for (; n >= 8; n -= 8, t += 8, f += 8)
		__builtin_memcpy_inline(t, f, 8);
	for (; n; n--)
		*t++ = *f++;
	return to;
}

void *memset(void *to, int byte, size_t n)
{
	for (volatile unsigned char *t = to; n; n--)
		*t++ = (unsigned char)byte;
	return to;
}

int memcmp(const void *a, const void *b, size_t n)
{
	const unsigned char *x = a, *y = b;
	uint64_t v, w;

	for (; n >= 8; n -= 8, x += 8, y += 8) {
		__builtin_memcpy_inline(&v, x, 8);
		__builtin_memcpy_inline(&w, y, 8);
		if (v != w)
			break;
	}
	for (; n; n--, x++, y++)
		if (*x != *y)
			return *x - *y;
	return 0;
}
