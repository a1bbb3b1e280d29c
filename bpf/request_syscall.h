/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
#ifndef INFERSCOPE_REQUEST_SYSCALL_H
#define INFERSCOPE_REQUEST_SYSCALL_H

/*
 * Transfers seen at the returns of system calls, for kernels without a usable hook in the socket layer. The socket is
 * looked up by the file descriptor of the call. Helpers do not accept a socket pointer that was read from the
 * descriptor table, so TCP sockets are identified by their addresses until they are closed, and unix sockets by their
 * inodes.
 *
 * Needs request_state.h and the function transferred.
 */
#include <bpf/bpf_core_read.h>

#define S_IFMT 0170000
#define S_IFSOCK 0140000

struct inode___request {
	unsigned short i_mode;
	unsigned long i_ino;
} __attribute__((preserve_access_index));

struct file___request {
	struct inode___request *f_inode;
	struct socket___request *private_data;
} __attribute__((preserve_access_index));

struct fdtable___request {
	unsigned int max_fds;
	struct file___request **fd;
} __attribute__((preserve_access_index));

struct files_struct___request {
	struct fdtable___request *fdt;
} __attribute__((preserve_access_index));

struct task_struct___request {
	struct files_struct___request *files;
} __attribute__((preserve_access_index));

/* Finds the socket behind a descriptor of the current task. Returns 0 where there is none. */
static __always_inline int find_endpoint(struct endpoint *e, __u32 fd)
{
	struct task_struct___request *task = (void *)bpf_get_current_task_btf();
	struct file___request *file = NULL;
	struct fdtable___request *table;
	struct inode___request *inode;
	struct sock___request *sk;
	__u64 slot;

	if (!task->files)
		return 0;
	table = task->files->fdt;
	if (!table || fd >= table->max_fds)
		return 0;
	slot = (__u64)table->fd + fd * sizeof(void *);
	if (bpf_probe_read_kernel(&file, sizeof(file), (void *)slot) || !file)
		return 0;
	inode = BPF_CORE_READ(file, f_inode);
	if (!inode || (BPF_CORE_READ(inode, i_mode) & S_IFMT) != S_IFSOCK)
		return 0;
	sk = (void *)BPF_CORE_READ(file, private_data, sk);
	if (!sk)
		return 0;
	e->sk = NULL;
	e->family = BPF_CORE_READ(sk, __sk_common.skc_family);
	e->port = BPF_CORE_READ(sk, __sk_common.skc_num);
	e->id = e->family == AF_UNIX ? BPF_CORE_READ(inode, i_ino) : (__u64)sk;
	return 1;
}

SEC("tp_btf/sys_exit")
int request_syscall(__u64 *ctx)
{
	struct pt_regs *regs = (void *)ctx[0];
	__u32 tgid, kind = REQUEST_SENT;
	struct request_process *p;
	__s64 bytes = ctx[1];
	struct endpoint e;

	if (request_off)
		return 0;
	tgid = bpf_get_current_pid_tgid() >> 32;
	p = bpf_map_lookup_elem(&request_processes, &tgid);
	if (!p)
		return 0;
	if (bytes <= 0 || bytes > 0x7fffffff)
		goto other;
	switch ((int)SYSCALL(regs)) {
	case SYS_RECVFROM:
		if (ARG4(regs) & MSG_PEEK)
			goto other;
		kind = REQUEST_RECEIVED;
		break;
	case SYS_RECVMSG:
		if (ARG3(regs) & MSG_PEEK)
			goto other;
		kind = REQUEST_RECEIVED;
		break;
	case SYS_READ:
	case SYS_READV:
		kind = REQUEST_RECEIVED;
		break;
	case SYS_WRITE:
	case SYS_WRITEV:
	case SYS_SENDTO:
	case SYS_SENDMSG:
	case SYS_SENDMMSG: /* counted as not seen, like these two */
	case SYS_RECVMMSG:
	case SYS_SENDFILE:
		break;
	default:
		goto other;
	}
	if (find_endpoint(&e, FD(regs)))
		return transferred(p, tgid, &e, bytes, kind);
other:
	/* Counted for the overhead estimate. */
	__sync_fetch_and_add(&p->syscalls, 1);
	return 0;
}

#endif
