/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Reads the parameters of a C function at its entry, or at a later instruction up
 * to which no argument register and no stack pointer has changed (package probe
 * chooses such an instruction). Parameters are numbered from 1 and are integers or
 * pointers: none of the probed functions that select one passes a float before it.
 */
#ifndef INFERSCOPE_PARAMS_H
#define INFERSCOPE_PARAMS_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>

#define PARAMS 16 /* a selector has 4 bits; 0 selects nothing */

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

/*
 * Fills what the registers hold. p[0] stays 0, which is what "nothing" reads; the
 * parameters on the stack stay 0 until params_stack.
 */
static __always_inline void params_regs(struct pt_regs *ctx, __u64 *p)
{
	p[1] = PARAM1(ctx);
	p[2] = PARAM2(ctx);
	p[3] = PARAM3(ctx);
	p[4] = PARAM4(ctx);
	p[5] = PARAM5(ctx);
	p[6] = PARAM6(ctx);
#if PARAM_REGS == 8
	p[7] = PARAM7(ctx);
	p[8] = PARAM8(ctx);
#endif
}

/* Reads the parameters from PARAM_REGS + 1 to last, no more: there may be no more. */
static __always_inline long params_stack(struct pt_regs *ctx, __u64 *p, __u32 last)
{
	__u32 bytes = (last - PARAM_REGS) * 8;

	if (last <= PARAM_REGS || last >= PARAMS)
		return 0;
	return bpf_probe_read_user(&p[PARAM_REGS + 1], bytes, (void *)PARAM_STACK(ctx));
}

#endif
