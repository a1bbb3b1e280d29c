/* SPDX-License-Identifier: Apache-2.0 */
/* What makes a process awkward to enter. */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include "injectee.h"

volatile unsigned long handled;

static void on_signal(int sig)
{
	(void)sig;
	handled++;
}

static void handle(const char *list)
{
	struct sigaction act = {.sa_handler = on_signal, .sa_flags = SA_RESTART | SA_ONSTACK};
	char *end;

	for (const char *p = list; *p; p = *end ? end + 1 : end)
		sigaction((int)strtol(p, &end, 10), &act, NULL);
}

#ifdef __x86_64__
#define OURS AUDIT_ARCH_X86_64
#else
#define OURS AUDIT_ARCH_AARCH64
#endif

static void install(const struct sock_filter *code, unsigned short n)
{
	struct sock_fprog prog = {n, (struct sock_filter *)code};

	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &prog)) {
		perror("seccomp");
		exit(4);
	}
}

/* One system call is answered with an action, all others are allowed. */
static void filter(unsigned number, unsigned action)
{
	const struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OURS, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, action),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};

	install(code, sizeof(code) / sizeof(code[0]));
}

/* These system calls are allowed, each other one kills. */
static void only(const char *list)
{
	struct sock_filter code[2 * 100 + 2] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
	unsigned short n = 1;
	char *end;

	for (const char *p = list; *p && n < 200; p = *end ? end + 1 : end) {
		code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)strtol(p, &end, 10), 0, 1);
		code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	}
	code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	install(code, n);
}

static void add_filters(const char *what)
{
	if (!strncmp(what, "only:", 5)) {
		only(what + 5);
		return;
	}
	filter(SYS_swapon, SECCOMP_RET_ERRNO | EPERM); /* there may be several */
	if (!strcmp(what, "kill"))
		filter(SYS_memfd_create, SECCOMP_RET_KILL_PROCESS);
	else if (!strcmp(what, "errno"))
		filter(SYS_memfd_create, SECCOMP_RET_ERRNO | EPERM);
	else if (!strcmp(what, "trap"))
		filter(SYS_memfd_create, SECCOMP_RET_TRAP);
	else if (!strcmp(what, "thread"))
		filter(SYS_clone, SECCOMP_RET_ERRNO | EPERM);
	else if (!strcmp(what, "log"))
		filter(SYS_memfd_create, SECCOMP_RET_LOG);
}

static void *children(void *unused)
{
	for (;;) {
		pid_t pid = fork();

		if (!pid)
			_exit(0);
		waitpid(pid, NULL, 0);
		usleep(200);
	}
	return unused;
}

static void *vforks(void *unused)
{
	if (!vfork()) {
		usleep(20000000);
		_exit(0);
	}
	return unused;
}

static void *later(void *arg)
{
	const struct options *o = arg;

	usleep((useconds_t)(o->end_ms + o->exec_ms) * 1000);
	if (o->end_ms)
		exit(0);
	for (int i = 1; o->argv[i]; i++)
		if (!strcmp(o->argv[i], "--exec"))
			o->argv[i + 1] = "0";
	execv("/proc/self/exe", o->argv);
	return arg;
}

void trouble_before(const struct options *o)
{
	if (o->handle)
		handle(o->handle);
	if (o->profile) {
		struct itimerval every = {{0, 1000}, {0, 1000}};

		handle("27");
		setitimer(ITIMER_PROF, &every, NULL);
	}
	if (o->attack)
		attack(o->attack);
	if (o->chroot && (chroot(o->chroot) || chdir("/"))) {
		perror("chroot");
		exit(4);
	}
}

void trouble_after(const struct options *o)
{
	pthread_t t;

	if (o->children)
		pthread_create(&t, NULL, children, NULL);
	if (o->vfork)
		pthread_create(&t, NULL, vforks, NULL);
	if (o->end_ms || o->exec_ms)
		pthread_create(&t, NULL, later, (void *)(uintptr_t)o);
	if (o->seccomp)
		add_filters(o->seccomp);
}
