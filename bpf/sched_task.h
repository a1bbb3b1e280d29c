/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What the programs of sched.bpf.c read of a task: where it is, in which system call,
 * with which file, and whether an interrupt has taken its CPU.
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

/* include/linux/preempt.h: NMI and hard interrupt counts, and the bit that says
 * that a soft interrupt is being served (and not only disabled). */
#define IN_INTERRUPT 0x00ff0100

#define NS_PER_TICK 10000000ULL /* of USER_HZ, see process.bpf.c */

/* Of the kernel's structures only what is read; "___sched" makes them flavours for CO-RE. */
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

/* The kernel's own account of a thread's waits for a CPU (CONFIG_SCHED_INFO, which
 * taskstats and schedstats select); its times are of the run queue's clock. */
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
 * Where the verifier does not follow a pointer, this reads through it without a call of
 * a helper, each of which costs as much as ten loads. Linux 6.2 on; the type says what is read.
 */
extern void *bpf_rdonly_cast(const void *obj, __u32 type) __ksym __weak;
#define AS(type, at) ((type *)bpf_rdonly_cast((const void *)(at), bpf_core_type_id_kernel(type)))
const volatile bool has_cast; /* set before loading */

/* Any type that begins with a pointer, to read one. */
struct list_head {
	struct list_head *next, *prev;
};

static __always_inline __u64 inode_word(__u64 number, __u16 mode)
{
	return (number & 0xffffffffffffULL) | (__u64)(mode >> 12) << 48;
}

/* Inode and type of the file behind a descriptor of the task, as args[3] has them; 0: not known. */
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
	if (has_cast) { /* what is no pointer reads as 0 */
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
/* No typedef: the kernel has no type of such a name to find fields in. */
#define REGISTERS struct pt_regs___sched
#endif

/*
 * The call that a task is in, as Event.Func has it; -1: none. A call of a 32-bit program, or one that a 64-bit program
 * makes as they do (int $0x80), has a number of another table: TS_COMPAT of arch/x86/include/asm/thread_info.h,
 * PSR_MODE32_BIT of arch/arm64/include/uapi/asm/ptrace.h.
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

/* The CPU that a task is on, or was on last. */
static __always_inline __u16 cpu_of(struct task_struct___sched *task)
{
	return bpf_core_field_exists(task->thread_info.cpu) ? task->thread_info.cpu : task->cpu;
}

/* From the beginning of a thread's stack to its registers, in bytes: the same for all threads. 0: not known yet. */
__u64 regs_offset __attribute__((aligned(128)));

/* The registers with which the task entered the kernel. */
static __always_inline REGISTERS *regs_of(struct task_struct___sched *task)
{
	REGISTERS *regs;

	if (has_cast && regs_offset)
		return AS(REGISTERS, (__u64)task->stack + regs_offset);
	regs = (void *)bpf_task_pt_regs((void *)task);
	if (has_cast) { /* in 6.12 the verifier lets nobody compute with this pointer; what a helper reads is a number */
		void *volatile at = regs;
		__u64 number;

		if (!bpf_probe_read_kernel(&number, sizeof(number), (void *)&at))
			regs_offset = number - (__u64)task->stack;
	}
	return regs;
}

/*
 * Whether the program runs in an interrupt, hard or soft. arm64 counts them in the
 * task. x86 counts them in a per-CPU variable whose address kernels do not always
 * give away, but interrupts have stacks of their own there, unless they came while
 * user code ran: then the task is in the kernel without a system call. (So is a
 * task in a page fault, which hardly ever wakes anybody.) The context of a program
 * lies on the stack that it runs on; as a number the verifier lets it out of memory only.
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
