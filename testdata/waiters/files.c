/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "waiter.h"

#define SIZE (8 << 20)
#define PAGE 4096

static volatile char sink;

/* Makes the file, on the disk and not in memory, and opens it. */
static int made(const char *path, int flags)
{
	char *zeros = calloc(1, SIZE);
	int fd = open(path, O_CREAT | O_RDWR | O_TRUNC, 0600);

	if (fd < 0 || write(fd, zeros, SIZE) != SIZE || fsync(fd))
		die(path);
	close(fd);
	free(zeros);
	fd = open(path, O_RDONLY | flags);
	if (fd < 0)
		die(path);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	return fd;
}

void file_disk(const char *path)
{
	int fd = made(path, O_DIRECT);
	void *block = NULL;

	if (posix_memalign(&block, PAGE, 64 << 10))
		die("posix_memalign");
	ready();
	for (off_t at = 0;; at = (at + (64 << 10)) % SIZE)
		if (pread(fd, block, 64 << 10, at) < 0)
			die("pread");
}

void file_major(const char *path)
{
	int fd = made(path, 0);
	char *map = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);

	if (map == MAP_FAILED)
		die("mmap");
	madvise(map, SIZE, MADV_RANDOM); /* no readahead: each page is a fault */
	ready();
	for (;;) {
		for (int at = 0; at < SIZE; at += 16 * PAGE)
			sink = map[at];
		madvise(map, SIZE, MADV_DONTNEED);
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	}
}

static int provider;

static void *provide(void *unused)
{
	static char zeros[PAGE] __attribute__((aligned(PAGE)));

	for (;;) {
		struct uffd_msg m;
		struct uffdio_copy copy = { .src = (unsigned long)zeros, .len = PAGE };

		if (read(provider, &m, sizeof(m)) != sizeof(m))
			die("read of userfaultfd");
		pause_ms(5);
		copy.dst = m.arg.pagefault.address & ~(PAGE - 1UL);
		if (ioctl(provider, UFFDIO_COPY, &copy))
			die("UFFDIO_COPY");
	}
	return unused;
}

/* Memory that this program itself provides: the one fault without a disk that surely waits. */
void file_minor(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	char *map = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_register all = { .range = { (unsigned long)map, SIZE }, .mode = UFFDIO_REGISTER_MODE_MISSING };

	provider = syscall(SYS_userfaultfd, O_CLOEXEC);
	if (map == MAP_FAILED || provider < 0 || ioctl(provider, UFFDIO_API, &api) ||
	    ioctl(provider, UFFDIO_REGISTER, &all))
		die("userfaultfd");
	start("partner", provide, NULL);
	ready();
	for (int at = 0;; at = (at + PAGE) % SIZE) {
		sink = map[at];
		madvise(map + at, PAGE, MADV_DONTNEED);
	}
}

/* Reads more than a cgroup with little memory can keep. The file is made once a byte has come: in the cgroup. */
void file_thrash(const char *path)
{
	static char block[64 << 10];
	int fd;

	ready();
	if (read(0, block, 1) != 1)
		die("read");
	fd = open(path, O_CREAT | O_RDWR | O_TRUNC, 0600);
	for (int n = 0; n < 512; n++)
		if (fd < 0 || write(fd, block, sizeof(block)) != sizeof(block))
			die(path);
	for (;;)
		for (int n = 0; n < 512; n++)
			if (pread(fd, block, sizeof(block), (off_t)n * sizeof(block)) < 0)
				die("pread");
}
