/* SPDX-License-Identifier: Apache-2.0 */
#ifndef STATE_H
#define STATE_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* What a processor holds that a call of a function may depend on. z and p lie as close as vectors are long. */
struct state {
	uint64_t x[31];
	uint64_t nzcv, fpcr, pad; /* 248, 256 */
	unsigned char v[32][16] __attribute__((aligned(16))); /* 272 */
	unsigned char z[32 * 256]; /* 784 */
	unsigned char p[17 * 32];  /* 8976: p0-p15, ffr */
};
_Static_assert(
    offsetof(struct state, v) == 272 && offsetof(struct state, z) == 784 && offsetof(struct state, p) == 8976,
    "as below");

/* What stays as it is from call to call. */
struct control {
	uint64_t fpcr;
};

#define TO15 "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15"
#define TO31 TO15 ",16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31"
#define X1TO29 "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29"

#ifdef DRIVER
#define GENERAL                                                   \
	"stp x29, x30, [sp, #-16]!\n"                                 \
	".irp n, " X1TO29 "\n str x\\n, [x0, #8*\\n]\n .endr\n"       \
	"mrs x9, nzcv\n str x9, [x0, #248]\n mrs x9, fpcr\n str x9, [x0, #256]\n"
#define END "mov w0, #0\n ldp x29, x30, [sp], #16\n"

__asm__(".text\n.globl cuLaunchKernel\n.type cuLaunchKernel, %function\n.balign 16\ncuLaunchKernel:\n" GENERAL
	"add x9, x0, #272\n .irp n, " TO31 "\n str q\\n, [x9, #16*\\n]\n .endr\n" END "ret\n"
	".size cuLaunchKernel, .-cuLaunchKernel\n");

/* Its return address is signed, as distributions compile: hint 25 is paciasp, 29 autiasp. */
__asm__(".text\n.arch_extension sve\n.globl cuLaunchKernelEx\n.type cuLaunchKernelEx, %function\n.balign "
        "16\ncuLaunchKernelEx:\n hint #25\n" GENERAL "add x9, x0, #784\n .irp n, " TO31
        "\n str z\\n, [x9, #\\n, mul vl]\n .endr\n"
        "mov x9, #8976\n add x9, x0, x9\n .irp n, " TO15 "\n str p\\n, [x9, #\\n, mul vl]\n .endr\n"
        "rdffr p0.b\n str p0, [x9, #16, mul vl]\n" END "hint #29\n ret\n"
        ".size cuLaunchKernelEx, .-cuLaunchKernelEx\n.arch_extension nosve\n");
#endif

#ifdef CALLER
#include <sys/auxv.h>
#include <sys/prctl.h>

/* call_with loads all of want but x0 and x30, calls f(found), and comes back. */
int call_with(const struct state *want, struct state *found, int (*f)(struct state *));
int call_with_wide(const struct state *want, struct state *found, int (*f)(struct state *));
#define LOAD                                                                                                    \
	"stp x29, x30, [sp, #-176]!\n stp x19, x20, [sp, #16]\n stp x21, x22, [sp, #32]\n stp x23, x24, [sp, #48]\n" \
	"stp x25, x26, [sp, #64]\n stp x27, x28, [sp, #80]\n stp d8, d9, [sp, #96]\n stp d10, d11, [sp, #112]\n"      \
	"stp d12, d13, [sp, #128]\n stp d14, d15, [sp, #144]\n mov x30, x2\n str x1, [sp, #160]\n"                    \
	"ldr x9, [x0, #248]\n msr nzcv, x9\n"
#define CALL                                                                                                    \
	".irp n, " X1TO29 "\n ldr x\\n, [x0, #8*\\n]\n .endr\n ldr x0, [sp, #160]\n blr x30\n"                       \
	"ldp x19, x20, [sp, #16]\n ldp x21, x22, [sp, #32]\n ldp x23, x24, [sp, #48]\n ldp x25, x26, [sp, #64]\n"     \
	"ldp x27, x28, [sp, #80]\n ldp d8, d9, [sp, #96]\n ldp d10, d11, [sp, #112]\n ldp d12, d13, [sp, #128]\n"     \
	"ldp d14, d15, [sp, #144]\n ldp x29, x30, [sp], #176\n ret\n"

__asm__(".text\n.type call_with, %function\ncall_with:\n" LOAD
	"add x9, x0, #272\n .irp n, " TO31 "\n ldr q\\n, [x9, #16*\\n]\n .endr\n" CALL ".size call_with, .-call_with\n"
	".arch_extension sve\n.type call_with_wide, %function\ncall_with_wide:\n" LOAD
	"add x9, x0, #784\n .irp n, " TO31 "\n ldr z\\n, [x9, #\\n, mul vl]\n .endr\n"
	"mov x9, #8976\n add x9, x0, x9\n .irp n, " TO15 "\n ldr p\\n, [x9, #\\n, mul vl]\n .endr\n setffr\n" CALL
	".size call_with_wide, .-call_with_wide\n.arch_extension nosve\n");

static size_t vector_bytes; /* of SVE; 0: none */

static inline int have_wide(void)
{
	int vl = getauxval(AT_HWCAP) & HWCAP_SVE ? prctl(PR_SVE_GET_VL) : 0;

	vector_bytes = vl > 0 ? vl & PR_SVE_VL_LEN_MASK : 0;
	return vl > 0;
}

static inline unsigned scatter(void *at, size_t n, unsigned seed)
{
	for (size_t i = 0; i < n; i++)
		((unsigned char *)at)[i] = (unsigned char)((seed = seed * 1103515245 + 12345) >> 16);
	return seed;
}

static inline void fill(struct state *s, unsigned seed)
{
	size_t masks = 2 * vector_bytes;

	seed = scatter(s, offsetof(struct state, z), seed);
	s->nzcv &= 0xf0000000;
	seed = scatter(s->z, 32 * vector_bytes, seed);
	scatter(s->p, masks, seed);
	memset(s->p + masks, 0xff, vector_bytes / 8);
}

static inline int differs(const struct state *want, const struct state *found, int wide)
{
	if (memcmp(&want->x[1], &found->x[1], 29 * 8) || want->nzcv != found->nzcv)
		return 1;
	if (!wide)
		return memcmp(want->v, found->v, sizeof(want->v)) ? 2 : 0;
	if (memcmp(want->z, found->z, 32 * vector_bytes))
		return 2;
	return memcmp(want->p, found->p, 17 * vector_bytes / 8) ? 3 : 0;
}

static inline void read_control(struct control *c) { __asm__ volatile("mrs %0, fpcr" : "=r"(c->fpcr)); }

static inline int other_control(const struct state *found, const struct control *c) { return found->fpcr != c->fpcr; }
#endif
#endif
