/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What the programs of sched.bpf.c read of a task: its CPU, its system call and file, and
 * whether it was interrupted.
 */
#ifndef INFERSCOPE_SCHED_TASK_H
#define INFERSCOPE_SCHED_TASK_H

#define true 1
#define false 0

/* include/linux/sched.h, unchanged since 4.14 */
#define TASK_UNINTERRUPTIBLE 0x02
#define TASK_STOPPED_TRACED 0x0c
#define TASK_DEAD 0x80

#define PF_KTHREAD 0x00200000
#define THREAD_SIZE 16384 /* of x86-64, without KASAN */

/* include/linux/preempt.h: NMI and hard interrupt counts, and the bit that is set while
 * a soft interrupt is being served (not only disabled). */
#define IN_INTERRUPT 0x00ff0100

#define NS_PER_TICK 10000000ULL /* of USER_HZ, see process.bpf.c */

/* Only the fields that are read; "___sched" makes them CO-RE flavours. */
struct inode___sched {
	unsigned short i_mode;
	unsigned long i_ino;
} __attribute__((preserve_access_index));

struct file___sched {
	struct inode___sched *f_inode;
} __attribute__((preserve_access_index));

struct fdtable___sched {
	unsigned int max_fds;
	struct file___sched **fd;
} __attribute__((preserve_access_index));

struct files_struct___sched {
	struct fdtable___sched *fdt;
} __attribute__((preserve_access_index));

struct signal_struct___sched {
	struct {
		int counter;
	} live;
} __attribute__((preserve_access_index));

struct seq_file;

struct bpf_iter_meta___sched {
	struct seq_file *seq;
} __attribute__((preserve_access_index));

struct sched_entity___sched {
	unsigned char sched_delayed; /* 6.12 on */
} __attribute__((preserve_access_index));

/* The kernel's statistics of a thread's waits for a CPU (CONFIG_SCHED_INFO, selected by
 * taskstats and schedstats); its times are of the run queue's clock. */
struct sched_info___sched {
	unsigned long pcount;		 /* times that the thread was put on a CPU */
	unsigned long long run_delay;	 /* ns for which it waited for one; added to when it is put on one */
	unsigned long long last_arrival; /* when it was last put on one */
	unsigned long long last_queued;	 /* since when it waits for one; 0: it does not */
} __attribute__((preserve_access_index));

struct task_struct___sched {
	struct {
		struct {
			__u32 count;
		} preempt; /* arm64 */
		__u32 status; /* x86 */
		__u32 cpu; /* 5.16 on */
	} thread_info;
	unsigned int cpu; /* before */
	void *stack;
	unsigned int flags;
	unsigned int __state;
	int on_cpu;
	int on_rq;
	struct sched_entity___sched se;
	struct sched_info___sched sched_info;
	unsigned in_iowait : 1;
	int pid;
	int tgid;
	__u64 start_boottime;
	struct task_struct___sched *group_leader;
	struct files_struct___sched *files;
	struct signal_struct___sched *signal;
} __attribute__((preserve_access_index));

static __always_inline bool has_account(void)
{
	return bpf_core_field_exists(((struct sched_info___sched *)0)->pcount);
}

/*
 * Reads through a pointer that the verifier does not track, without a helper call, which costs
 * as much as ten loads. Linux 6.2 on.
 */
extern void *bpf_rdonly_cast(const void *obj, __u32 type) __ksym __weak;
#define AS(type, at) ((type *)bpf_rdonly_cast((const void *)(at), bpf_core_type_id_kernel(type)))
const volatile bool has_cast; /* set before loading */

/* Any kernel type that begins with a pointer, used to read one. */
struct list_head {
	struct list_head *next, *prev;
};

static __always_inline __u64 inode_word(__u64 number, __u16 mode)
{
	return (number & 0xffffffffffffULL) | (__u64)(mode >> 12) << 48;
}

/* Returns inode and type of the file behind a descriptor of the task, as in args[3]; 0: not known. */
static __always_inline __u64 file_of(struct task_struct___sched *task, __u64 fd)
{
	struct fdtable___sched *table;
	struct file___sched *file = NULL;
	struct inode___sched *inode;
	__u64 slot;

	if (!task->files)
		return 0;
	table = task->files->fdt;
	if (!table || fd >= table->max_fds)
		return 0;
	slot = (__u64)table->fd + (__u32)fd * sizeof(void *);
	if (has_cast) { /* an invalid pointer reads as 0 */
		file = AS(struct file___sched, AS(struct list_head, slot)->next);
		inode = file->f_inode;
		return inode_word(inode->i_ino, inode->i_mode);
	}
	if (bpf_probe_read_kernel(&file, sizeof(file), (void *)slot) || !file)
		return 0;
	inode = BPF_CORE_READ(file, f_inode);
	return inode ? inode_word(BPF_CORE_READ(inode, i_ino), BPF_CORE_READ(inode, i_mode)) : 0;
}

#if defined(__TARGET_ARCH_x86)
#define CALL_NUMBER(regs) ((__s64)(__s32)(regs)->orig_ax)
#define CALL_ARG0(regs) ((regs)->di)
#define CALL_ARG1(regs) ((regs)->si)
#define REGISTERS struct pt_regs
#elif defined(__TARGET_ARCH_arm64)
struct pt_regs___sched {
	__u64 regs[31];
	__u64 pstate;
	__u64 orig_x0;
	int syscallno;
} __attribute__((preserve_access_index));
#define CALL_NUMBER(regs) ((__s64)(regs)->syscallno)
#define CALL_ARG0(regs) ((regs)->orig_x0)
#define CALL_ARG1(regs) ((regs)->regs[1])
/* A macro, not a typedef: CO-RE looks up the name in the kernel's types. */
#define REGISTERS struct pt_regs___sched
#endif

/*
 * Returns the system call that a task is in, as in Event.Func; -1: none. Calls of 32-bit programs, and int $0x80 in
 * 64-bit ones, use another table of numbers: TS_COMPAT of arch/x86/include/asm/thread_info.h, PSR_MODE32_BIT of
 * arch/arm64/include/uapi/asm/ptrace.h.
 */
static __always_inline __s64 call_of(struct task_struct___sched *task, REGISTERS *regs)
{
	__s64 nr = CALL_NUMBER(regs);
#if defined(__TARGET_ARCH_x86)
	bool compat = task->thread_info.status & 2;
#else
	bool compat = regs->pstate & 0x10;
#endif

	return compat && nr >= 0 && nr < OFFCPU_COMPAT ? nr | OFFCPU_COMPAT : nr;
}

/* Returns the CPU that a task is on, or was on last. */
static __always_inline __u16 cpu_of(struct task_struct___sched *task)
{
	return bpf_core_field_exists(task->thread_info.cpu) ? task->thread_info.cpu : task->cpu;
}

/* Offset of the saved registers in a thread's stack, the same for all threads. 0: not known yet. */
__u64 regs_offset __attribute__((aligned(128)));

/* Returns the registers with which the task entered the kernel. */
static __always_inline REGISTERS *regs_of(struct task_struct___sched *task)
{
	REGISTERS *regs;

	if (has_cast && regs_offset)
		return AS(REGISTERS, (__u64)task->stack + regs_offset);
	regs = (void *)bpf_task_pt_regs((void *)task);
	if (has_cast) { /* 6.12 allows no arithmetic on this pointer; reading it through a helper gives a number */
		void *volatile at = regs;
		__u64 number;

		if (!bpf_probe_read_kernel(&number, sizeof(number), (void *)&at))
			regs_offset = number - (__u64)task->stack;
	}
	return regs;
}

/*
 * Reports whether the program runs in a hard or soft interrupt. arm64 counts them in the
 * task. x86 counts them in a per-CPU variable whose address is not always available, but
 * its interrupts have their own stacks, except those that arrive in user code: then the
 * task is in the kernel without a system call. (So is a task in a page fault, which rarely
 * wakes another.) The context of a program is on the stack that it runs on; the verifier
 * allows its address as a number only after a round trip through memory.
 */
static __always_inline bool in_interrupt(void *ctx, struct task_struct___sched *current, __u64 *scratch)
{
#if defined(__TARGET_ARCH_x86)
	__u64 at;

	*(void *volatile *)scratch = ctx;
	at = *(volatile __u64 *)scratch;
	if (at - (__u64)current->stack >= THREAD_SIZE)
		return true;
	return !(current->flags & PF_KTHREAD) && CALL_NUMBER(regs_of(current)) == -1;
#else
	return current->thread_info.preempt.count & IN_INTERRUPT;
#endif
}

#endif
