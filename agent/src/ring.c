/* SPDX-License-Identifier: Apache-2.0 */
/* The ring in shared memory: many threads write, the daemon reads. */
#include "agent.h"

struct statx_start { /* struct statx (linux/stat.h) up to the inode number */
	uint32_t mask, block;
	uint64_t attributes;
	uint32_t links, uid, gid;
	uint16_t mode, pad;
	uint64_t inode;
	uint8_t rest[256 - 40];
};

static uint64_t inode_of(int fd)
{
	struct statx_start s;

	s.inode = 0;
	if (sys6(SYS_statx, fd, (long)"", AT_EMPTY_PATH, STATX_INO, (long)&s, 0))
		return 0;
	return s.inode;
}

/* The build id is in a note of the image (ld --build-id): type 3, "GNU", 20 bytes. */
struct note {
	uint32_t name_size, size, type;
	char name[4];
	uint8_t id[20];
};
struct program_header { /* Elf64_Phdr */
	uint32_t type, flags;
	uint64_t offset, address, physical, file_size, memory_size, align;
};
struct elf_header { /* Elf64_Ehdr */
	uint8_t skip0[32];
	uint64_t headers;
	uint8_t skip1[16];
	uint16_t count;
};
_Static_assert(offsetof(struct elf_header, headers) == 32 && offsetof(struct elf_header, count) == 56, "Elf64_Ehdr");
extern const struct elf_header __ehdr_start __attribute__((visibility("hidden"))); /* made by the linker */

static void copy_build(uint8_t *to)
{
	const uint8_t *base = (const uint8_t *)&__ehdr_start;
	const struct program_header *h = (const void *)(base + __ehdr_start.headers);

	for (int i = 0; i < __ehdr_start.count; i++, h++) {
		const struct note *n = (const void *)(base + h->address);

		if (h->type == 4 && h->file_size >= sizeof(*n) && n->type == 3 && n->size == 20)
			memcpy(to, n->id, 20);
	}
}

static void fill_header(struct agent_ring *r)
{
	const struct agent_params *p = &the.params;

	r->abi = AGENT_ABI;
	r->slots = p->slots;
	r->pid = (int32_t)sys(SYS_getpid, 0, 0, 0);
	copy_build(r->build);
	r->heartbeat = p->heartbeat;
	r->on_ns = p->on_ns;
	r->period_ns = p->period_ns;
	r->deadline_ns = p->deadline_ns;
	r->mode = p->mode;
	store(&r->magic, AGENT_MAGIC);
}

/* Maps the ring, in place of an earlier one that was at least as large: that mapping is never removed. */
static long map_ring(int fd, size_t bytes)
{
	int fixed = the.ring && bytes <= the.ring_bytes;

	return sys6(SYS_mmap, fixed ? (long)the.ring : 0, (long)bytes, PROT_READ | PROT_WRITE,
	    MAP_SHARED | (fixed ? MAP_FIXED : 0), fd, 0);
}

static int adopt(int fd, size_t bytes)
{
	int bad = (int)sys(SYS_ftruncate, fd, bytes, 0);
	long at;

	if (!bad)
		bad = (int)sys(SYS_fcntl, fd, F_ADD_SEALS, SEAL_SHRINK | SEAL_GROW | SEAL_SEAL);
	if (bad)
		return bad;
	at = map_ring(fd, bytes);
	if (at < 0 && at > -4096)
		return (int)at;
	sys(SYS_madvise, at, bytes, MADV_DONTDUMP);
	sys(SYS_madvise, at, bytes, MADV_DONTFORK); /* a forked child must not write into it */
	if (bytes > the.ring_bytes)
		the.ring_bytes = bytes;
	the.mask = the.params.slots - 1;
	the.shift = (uint32_t)__builtin_ctz(the.params.slots);
	the.ring = (struct agent_ring *)at;
	return 0;
}

int ring_make(void)
{
	uint32_t slots = the.params.slots;
	long fd;
	int bad;

	if (slots < 64 || slots > 1u << 22 || slots & (slots - 1))
		return -EINVAL;
	fd = sys(SYS_memfd_create, "inferscope-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING, 0);
	if (fd < 0)
		return (int)fd;
	bad = adopt((int)fd, AGENT_DATA + (size_t)slots * sizeof(struct agent_slot));
	if (bad) {
		sys(SYS_close, fd, 0, 0);
		return bad;
	}
	the.ring_fd = (int)fd;
	the.ring_inode = inode_of((int)fd);
	fill_header(the.ring);
	return 0;
}

/* Checks the inode: a program may close unknown descriptors and reuse their numbers. */
void ring_close(void)
{
	if (the.ring_fd >= 0 && the.ring_inode && inode_of(the.ring_fd) == the.ring_inode)
		sys(SYS_close, the.ring_fd, 0, 0);
	the.ring_fd = -1;
}

void ring_leave(void)
{
	sys6(SYS_mmap, (long)the.ring, (long)the.ring_bytes, PROT_READ | PROT_WRITE,
	     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	sys(SYS_madvise, the.ring, the.ring_bytes, MADV_DONTDUMP);
}

int64_t ring_take(uint32_t n)
{
	struct agent_ring *r = the.ring;
	uint64_t slots = (uint64_t)the.mask + 1, head = peek(&r->head), used;

	do {
		used = head - load(&r->tail); /* a tail ahead of the head makes this huge: no room */
		if (used > slots || slots - used < n) {
			add(&r->dropped, n);
			return -1;
		}
	} while (!__atomic_compare_exchange_n(&r->head, &head, head + n, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
	return (int64_t)head;
}

void ring_put(int64_t position, const struct agent_slot *s)
{
	uint64_t p = (uint64_t)position;
	struct agent_slot *to = (struct agent_slot *)((char *)the.ring + AGENT_DATA) + (p & the.mask);
	const uint64_t *from = (const uint64_t *)s;
	uint64_t *word = (uint64_t *)to;

	for (int i = 0; i < 8; i++)
		if (i != 2)
			word[i] = from[i];
	to->tid = s->tid; /* the other half of word 2; seq comes last */
	store(&to->seq, (uint32_t)(p >> the.shift) + 1);
}

int ring_write(const struct agent_slot *s)
{
	int64_t at = ring_take(1);

	if (at < 0)
		return 0;
	ring_put(at, s);
	return 1;
}
