/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
#ifndef INFERSCOPE_AGENT_THREAD_H
#define INFERSCOPE_AGENT_THREAD_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>

/* Reports whether this is a thread of the agent or of CUPTI, whose calls are not the program's. CUPTI's threads inherit
 * the name that the agent's thread has while it creates them (agent/src/loop.c, internal/analysis/threads). */
static __always_inline int is_agent(void)
{
	const __u64 *comm = (const __u64 *)bpf_get_current_task_btf()->comm;

	return (comm[0] == 0x6f63737265666e69ULL && comm[1] == 0x6570ULL) /* inferscope */
	    || comm[0] == 0x6974707563ULL; /* cupti */
}

#endif
