/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a program of the GPU check says when it dies of a signal: the address, the module with the offset of the
 * instruction in its file, and the code around it. One line on stderr, then the signal's default action. Static, so
 * that each program has its own.
 */
#ifndef INFERSCOPE_TEST_GPU_FAULT_H
#define INFERSCOPE_TEST_GPU_FAULT_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

enum { FAULT_BEFORE = 24, FAULT_AFTER = 16 }; /* bytes of code that are shown */

static uintptr_t fault_instruction(const ucontext_t *c)
{
#if defined(__x86_64__)
	return (uintptr_t)c->uc_mcontext.gregs[REG_RIP];
#else
	return (uintptr_t)c->uc_mcontext.pc;
#endif
}

/* The line of /proc/self/maps with an address in it, and where in the file that is. Reads byte by byte: nothing is
 * allocated. */
static void fault_module(uintptr_t at, char *to, size_t room)
{
	char line[512];
	size_t n = 0;
	int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	unsigned long begin, end, offset;
	int path;

	snprintf(to, room, "no module");
	while (fd >= 0 && read(fd, line + n, 1) == 1) {
		if (line[n] != '\n' && n < sizeof(line) - 2) {
			n++;
			continue;
		}
		line[n] = 0;
		n = 0;
		if (sscanf(line, "%lx-%lx %*s %lx %*s %*s %n", &begin, &end, &offset, &path) < 3 || at < begin || at >= end)
			continue;
		snprintf(to, room, "%s+0x%lx", path < (int)strlen(line) ? line + path : "anonymous", at - begin + offset);
		break;
	}
	if (fd >= 0)
		close(fd);
}

static void fault_code(uintptr_t at, char *to, size_t room)
{
	uint8_t code[FAULT_BEFORE + FAULT_AFTER];
	struct iovec mine = { code, sizeof(code) }, theirs = { (void *)(at - FAULT_BEFORE), sizeof(code) };
	size_t used = 0;

	to[0] = 0;
	if (syscall(SYS_process_vm_readv, getpid(), &mine, 1, &theirs, 1, 0) != (ssize_t)sizeof(code))
		return;
	for (size_t i = 0; i < sizeof(code) && used + 6 < room; i++)
		used += (size_t)snprintf(to + used, room - used, i == FAULT_BEFORE ? "[%02x] " : "%02x ", code[i]);
}

static void fault_handler(int signal_number, siginfo_t *info, void *context)
{
	static char module[512], code[256], line[1024];
	uintptr_t at = fault_instruction((const ucontext_t *)context);
	int n;

	fault_module(at, module, sizeof(module));
	fault_code(at, code, sizeof(code));
	n = snprintf(line, sizeof(line), "fault: signal %d, address %p, instruction 0x%lx in %s, thread %ld, code %s\n",
	    signal_number, info->si_addr, (unsigned long)at, module, (long)syscall(SYS_gettid), code);
	if (n > 0 && write(2, line, (size_t)n) < 0)
		_exit(127);
	signal(signal_number, SIG_DFL); /* an instruction that faulted does so again, a signal that was sent does not */
	if (info->si_code <= 0 || signal_number == SIGABRT)
		raise(signal_number);
}

/* Shows what a program died of. For the thread that calls it on a stack of its own, too, for stacks that are used
 * up. */
static void fault_show(void)
{
	static const int signals[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT };
	static char stack[64 << 10];
	stack_t own;
	struct sigaction a;

	memset(&own, 0, sizeof(own));
	own.ss_sp = stack;
	own.ss_size = sizeof(stack);
	memset(&a, 0, sizeof(a));
	a.sa_sigaction = fault_handler;
	a.sa_flags = SA_SIGINFO | SA_ONSTACK;
	sigaltstack(&own, NULL);
	for (size_t i = 0; i < sizeof(signals) / sizeof(*signals); i++)
		sigaction(signals[i], &a, NULL);
}
#endif
