/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Reads the parameters of a C function at its entry, or at a later instruction before
 * which neither the argument registers nor the stack pointer change (package uprobe
 * chooses it). Parameters are numbered from 1 and are integers or pointers: no probed
 * function has a float parameter before one that is read.
 */
#ifndef INFERSCOPE_PARAMS_H
#define INFERSCOPE_PARAMS_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>

#if defined(__TARGET_ARCH_x86)
/* System V AMD64: six registers; [rsp] is the return address, the rest is above it. */
#define PARAM_REGS 6
#define PARAM_STACK(ctx) (SP(ctx) + 8)
/* The ret instruction has popped the return address. */
#define SP_AT_ENTRY(ctx) (SP(ctx) - 8)
#define SP(ctx) ((ctx)->sp)
#define IP(ctx) ((ctx)->ip)
#define PARAM1(ctx) ((ctx)->di)
#define PARAM2(ctx) ((ctx)->si)
#define PARAM3(ctx) ((ctx)->dx)
#define PARAM4(ctx) ((ctx)->cx)
#define PARAM5(ctx) ((ctx)->r8)
#define PARAM6(ctx) ((ctx)->r9)
#define RESULT(ctx) ((ctx)->ax)
#elif defined(__TARGET_ARCH_arm64)
/* AAPCS64: eight registers; the return address is in x30. */
#define PARAM_REGS 8
#define PARAM_STACK(ctx) SP(ctx)
#define SP_AT_ENTRY(ctx) SP(ctx)
#define SP(ctx) ((ctx)->user_regs.sp)
#define IP(ctx) ((ctx)->user_regs.pc)
#define PARAM1(ctx) ((ctx)->user_regs.regs[0])
#define PARAM2(ctx) ((ctx)->user_regs.regs[1])
#define PARAM3(ctx) ((ctx)->user_regs.regs[2])
#define PARAM4(ctx) ((ctx)->user_regs.regs[3])
#define PARAM5(ctx) ((ctx)->user_regs.regs[4])
#define PARAM6(ctx) ((ctx)->user_regs.regs[5])
#define PARAM7(ctx) ((ctx)->user_regs.regs[6])
#define PARAM8(ctx) ((ctx)->user_regs.regs[7])
#define RESULT(ctx) ((ctx)->user_regs.regs[0])
#endif

/* Reads bytes of the stack parameters, starting with the first. */
static __always_inline long read_stack_params(struct pt_regs *ctx, void *to, __u32 bytes)
{
	return bpf_probe_read_user(to, bytes, (void *)PARAM_STACK(ctx));
}

/* Reads parameter n, which is on the stack. */
static __always_inline long read_stack_param(struct pt_regs *ctx, __u64 *to, __u32 n)
{
	return bpf_probe_read_user(to, sizeof(*to), (void *)PARAM_STACK(ctx) + (n - PARAM_REGS - 1) * 8);
}

/* Copies the register parameters to regs[0] to regs[PARAM_REGS - 1] and clears the rest. */
static __always_inline void param_regs(struct pt_regs *ctx, __u64 *regs)
{
	regs[0] = PARAM1(ctx);
	regs[1] = PARAM2(ctx);
	regs[2] = PARAM3(ctx);
	regs[3] = PARAM4(ctx);
	regs[4] = PARAM5(ctx);
	regs[5] = PARAM6(ctx);
#if PARAM_REGS == 8
	regs[6] = PARAM7(ctx);
	regs[7] = PARAM8(ctx);
#else
	regs[6] = 0;
	regs[7] = 0;
#endif
}

#endif
