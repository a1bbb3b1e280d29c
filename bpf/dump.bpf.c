// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//go:build ignore

/*
 * Dumps what each thread of a process is doing now: its state, its current system call
 * and its saved user registers. No thread is stopped; for a thread on a CPU the registers
 * are those of its last entry into the kernel.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "event.h"

/* Registers in DWARF order, the instruction pointer last. */
#if defined(__TARGET_ARCH_x86)
#define REGISTERS 17
#elif defined(__TARGET_ARCH_arm64)
#define REGISTERS 33
#endif

/* Of the kernel's structures only what is read; "___dump" makes them flavours for CO-RE. */
#if defined(__TARGET_ARCH_x86)
struct thread_struct___dump {
	unsigned long fsbase;
} __attribute__((preserve_access_index));
#elif defined(__TARGET_ARCH_arm64)
struct thread_struct___dump {
	struct {
		unsigned long tp_value;
	} uw;
} __attribute__((preserve_access_index));
struct pt_regs___dump {
	__u64 orig_x0;
	int syscallno;
} __attribute__((preserve_access_index));
#endif

struct task_struct___dump {
	unsigned int __state; /* 5.14 on */
	int exit_state;
	int on_cpu;
	int pid;
	int tgid;
	unsigned long nvcsw;
	unsigned long nivcsw;
	char comm[16];
	struct {
		__u32 status; /* x86 */
	} thread_info;
	struct thread_struct___dump thread;
} __attribute__((preserve_access_index));

/* One thread. */
struct dumped_thread {
	__u64 switches; /* context switches so far */
	__u64 thread_pointer;
	__u64 arguments[2]; /* the first two of the system call */
	__u64 registers[REGISTERS];
	__s32 syscall; /* its number; -1: none */
	__u32 tid;
	__u32 state; /* TASK_* of include/linux/sched.h */
	__u32 exit_state;
	__u8 on_cpu;
	__u8 pad[7];
	char comm[16];
};

/* Set before loading. */
const volatile __u32 dumped_pid = 0;

const struct dumped_thread *export_dumped __attribute__((unused));

#if defined(__TARGET_ARCH_x86)
static __always_inline void read_registers(struct dumped_thread *t, struct pt_regs *regs)
{
	struct pt_regs r = {};

	bpf_probe_read_kernel(&r, sizeof(r), regs);
	t->registers[0] = r.ax;
	t->registers[1] = r.dx;
	t->registers[2] = r.cx;
	t->registers[3] = r.bx;
	t->registers[4] = r.si;
	t->registers[5] = r.di;
	t->registers[6] = r.bp;
	t->registers[7] = r.sp;
	t->registers[8] = r.r8;
	t->registers[9] = r.r9;
	t->registers[10] = r.r10;
	t->registers[11] = r.r11;
	t->registers[12] = r.r12;
	t->registers[13] = r.r13;
	t->registers[14] = r.r14;
	t->registers[15] = r.r15;
	t->registers[16] = r.ip;
	t->syscall = (__s32)r.orig_ax;
	t->arguments[0] = r.di;
	t->arguments[1] = r.si;
}
#elif defined(__TARGET_ARCH_arm64)
static __always_inline void read_registers(struct dumped_thread *t, struct pt_regs *regs)
{
	struct pt_regs___dump *more = (void *)regs;

	bpf_probe_read_kernel(t->registers, 31 * 8, &regs->user_regs.regs);
	bpf_probe_read_kernel(&t->registers[31], 8, &regs->user_regs.sp);
	bpf_probe_read_kernel(&t->registers[32], 8, &regs->user_regs.pc);
	t->syscall = BPF_CORE_READ(more, syscallno);
	t->arguments[0] = BPF_CORE_READ(more, orig_x0);
	t->arguments[1] = t->registers[1];
}
#endif

static __always_inline __u64 thread_pointer(struct task_struct___dump *task)
{
#if defined(__TARGET_ARCH_x86)
	return task->thread.fsbase;
#elif defined(__TARGET_ARCH_arm64)
	return task->thread.uw.tp_value;
#endif
}

/* Called for every thread of the machine; a thread of another process costs 0.1 us. */
SEC("iter/task")
int dump_threads(__u64 *ctx)
{
	struct {
		void *seq;
	} *meta = (void *)ctx[0];
	struct task_struct___dump *task = (void *)ctx[1];
	struct dumped_thread t = {};
	void *regs;

	if (!task || task->tgid != dumped_pid)
		return 0;
	t.tid = task->pid;
	t.state = task->__state;
	t.exit_state = task->exit_state;
	t.on_cpu = task->on_cpu != 0;
	t.switches = task->nvcsw + task->nivcsw;
	t.thread_pointer = thread_pointer(task);
	t.syscall = -1;
	bpf_probe_read_kernel(t.comm, sizeof(t.comm), task->comm);
	regs = (void *)bpf_task_pt_regs((void *)task);
	if (regs)
		read_registers(&t, regs);
#if defined(__TARGET_ARCH_x86)
	if (task->thread_info.status & 2 && t.syscall >= 0 &&
	    t.syscall < OFFCPU_COMPAT) { /* TS_COMPAT, as in sched_task.h */
		t.syscall |= OFFCPU_COMPAT;
		t.arguments[0] = t.arguments[1] = 0;
	}
#endif
	bpf_seq_write(meta->seq, &t, sizeof(t));
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
