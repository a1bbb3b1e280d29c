/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Raw system calls, atomics, and the few functions of libc that no system call replaces. Freestanding: no headers but
 * the compiler's, no errno, no thread-local storage. Numbers: include/uapi/asm-generic/unistd.h and
 * arch/x86/entry/syscalls/syscall_64.tbl of Linux.
 */
#ifndef INFERSCOPE_AGENT_SYS_H
#define INFERSCOPE_AGENT_SYS_H
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("protected")))
#define WEAK __attribute__((weak))
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

#if defined(__x86_64__)
enum {
	SYS_mmap = 9, SYS_rt_sigaction = 13, SYS_rt_sigprocmask = 14, SYS_pread64 = 17, SYS_pwrite64 = 18, SYS_madvise = 28,
	SYS_read = 0, SYS_close = 3, SYS_fcntl = 72, SYS_ftruncate = 77, SYS_prctl = 157, SYS_gettid = 186,
	SYS_tgkill = 234, SYS_getpid = 39, SYS_futex = 202, SYS_openat = 257, SYS_memfd_create = 319, SYS_statx = 332,
	SYS_munmap = 11, SYS_sched_setscheduler = 144, SYS_sched_setaffinity = 203, SYS_sched_getaffinity = 204,
	SYS_getdents64 = 217, SYS_process_vm_readv = 310,
};
enum { /* that others make */
	SYS_accept = 43, SYS_wait4 = 61, SYS_epoll_wait = 232, SYS_waitid = 247, SYS_epoll_pwait = 281, SYS_accept4 = 288,
};

static inline long sys6(long n, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long r;

	__asm__ volatile("syscall"
	    : "=a"(r)
	    : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
	    : "rcx", "r11", "memory");
	return r;
}
#elif defined(__aarch64__)
enum {
	SYS_fcntl = 25, SYS_ftruncate = 46, SYS_openat = 56, SYS_close = 57, SYS_read = 63, SYS_pread64 = 67,
	SYS_pwrite64 = 68, SYS_futex = 98, SYS_sched_setscheduler = 119, SYS_sched_setaffinity = 122,
	SYS_sched_getaffinity = 123, SYS_rt_sigaction = 134, SYS_rt_sigprocmask = 135, SYS_prctl = 167, SYS_getpid = 172,
	SYS_gettid = 178, SYS_tgkill = 131, SYS_munmap = 215, SYS_mmap = 222, SYS_madvise = 233, SYS_memfd_create = 279,
	SYS_statx = 291, SYS_getdents64 = 61, SYS_process_vm_readv = 270,
};
enum { /* that others make */
	SYS_epoll_pwait = 22, SYS_waitid = 95, SYS_accept = 202, SYS_accept4 = 242, SYS_wait4 = 260, SYS_epoll_wait = -1,
};

static inline long sys6(long n, long a, long b, long c, long d, long e, long f)
{
	register long x8 __asm__("x8") = n;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;

	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
}
#else
#error "the agent knows x86-64 and arm64"
#endif

#define sys(n, a, b, c) sys6(n, (long)(a), (long)(b), (long)(c), 0, 0, 0)

/* linux/mman.h, linux/fcntl.h, linux/memfd.h, linux/futex.h, linux/prctl.h, linux/stat.h: the same on both
 * architectures. */
#define FUTEX_TID_MASK 0x3fffffffu
#define FUTEX_OWNER_DIED 0x40000000u
enum {
	PROT_READ = 1, PROT_WRITE = 2, MAP_SHARED = 1, MAP_PRIVATE = 2, MAP_FIXED = 0x10, MAP_ANONYMOUS = 0x20,
	MAP_NORESERVE = 0x4000, MADV_DONTNEED = 4, MADV_DONTFORK = 10, MADV_DONTDUMP = 16, MADV_WIPEONFORK = 18,
	F_GETFD = 1, F_ADD_SEALS = 1033, SEAL_SEAL = 1, SEAL_SHRINK = 2, SEAL_GROW = 4, MFD_CLOEXEC = 1,
	MFD_ALLOW_SEALING = 2, FUTEX_WAIT = 0, FUTEX_WAKE = 1, PR_SET_NAME = 15, SIG_SETMASK = 2, AT_FDCWD = -100,
	AT_EMPTY_PATH = 0x1000, STATX_INO = 0x100,
	O_CLOEXEC = 02000000,
};
enum { EPERM = 1, ENOENT = 2, EAGAIN = 11, ENOMEM = 12, EINVAL = 22, ENOSYS = 38, EPROTO = 71, EALREADY = 114 };

struct timespec64 {
	int64_t seconds, nanoseconds;
};

/* Imported from libc without a version, so that any glibc or musl will do. The weak ones were outside of libc.so before
 * glibc 2.34: without them the agent loads and reports an error. */
int clock_gettime(int clock, struct timespec64 *);
struct dl_info;
int dl_iterate_phdr(int (*)(struct dl_info *, size_t, void *), void *);
WEAK void *dlopen(const char *path, int flags);
WEAK void *dlsym(void *library, const char *name);
WEAK int pthread_create(unsigned long *thread, const void *attributes, void *(*start)(void *), void *argument);
WEAK int pthread_detach(unsigned long thread);
WEAK int *__errno_location(void);
WEAK void free(void *);
WEAK const char *gnu_get_libc_version(void);
WEAK int __cxa_atexit(void (*)(void *), void *argument, void *library);
enum { RTLD_NOW = 2, RTLD_NOLOAD = 4, CLOCK_REALTIME = 0, CLOCK_MONOTONIC = 1 };

/* The start of struct dl_phdr_info (link.h): the rest grew over time. */
struct dl_info {
	uintptr_t base;
	const char *name;
	const void *headers;
	uint16_t count;
};

#pragma GCC visibility push(hidden) /* our own symbols need no global offset table */

#define load(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define peek(p) __atomic_load_n(p, __ATOMIC_RELAXED)
#define store(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)
#define add(p, v) __atomic_fetch_add(p, v, __ATOMIC_RELAXED)

/* Compare and swap; whether *p was from, and is now to. */
#define swapped(p, from, to)                                                                          \
	({                                                                                            \
		__typeof__(*(p)) expected = (from);                                                   \
		__atomic_compare_exchange_n(p, &expected, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE); \
	})

void *memcpy(void *restrict to, const void *restrict from, size_t n);
void *memset(void *to, int byte, size_t n);
int memcmp(const void *a, const void *b, size_t n);

/* now reads CLOCK_MONOTONIC, in ns, through libc's vDSO. */
uint64_t now(void);
uint32_t gettid(void);
int thread_lives(uint32_t tid); /* of this process */
/* libc_tid reads the calling thread's id from glibc's own structure; 0 where its place is not known. */
uint32_t libc_tid(void);
/* map maps private memory that core dumps leave out; NULL where there is none. */
void *map(size_t bytes);
/* futex_wait sleeps for ns at most, while *word == seen. */
void futex_wait(uint32_t *word, uint32_t seen, uint64_t ns);
void futex_wake(uint32_t *word);
/* text_length returns the length of a text, or limit if that is less. */
size_t text_length(const char *text, size_t limit);
/* found returns where part is in text, or NULL. */
const char *found(const char *text, const char *part);
/* copy_text copies a text with its NUL into room bytes; a longer one is cut. */
void copy_text(char *to, const char *from, size_t room);

#pragma GCC visibility pop
#endif
