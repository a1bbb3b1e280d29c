/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "waiter.h"

static int ends[2]; /* read from [0], write to [1] */

static void *writer(void *unused)
{
	for (;;) {
		pause_ms(10);
		if (write(ends[1], "x", 1) != 1)
			die("write");
	}
	return unused;
}

static void reader(void)
{
	char c;

	ready();
	while (read(ends[0], &c, 1) == 1)
		;
	die("read");
}

void talk_pipe(void)
{
	if (pipe(ends))
		die("pipe");
	start("partner", writer, NULL);
	reader();
}

void talk_child(void)
{
	if (pipe(ends))
		die("pipe");
	switch (fork()) {
	case -1:
		die("fork");
	case 0:
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		introduce("partner");
		writer(NULL);
	}
	pause_ms(20); /* so that the partner has introduced itself */
	reader();
}

void talk_socket(void)
{
	char c;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
		die("socketpair");
	start("partner", writer, NULL);
	ready();
	while (recv(ends[0], &c, 1, 0) == 1)
		;
	die("recv");
}

void talk_poll(void)
{
	struct pollfd p;
	char c;

	if (pipe(ends))
		die("pipe");
	start("partner", writer, NULL);
	ready();
	for (;;) {
		p = (struct pollfd){ .fd = ends[0], .events = POLLIN };
		if (poll(&p, 1, -1) != 1 || read(ends[0], &c, 1) != 1)
			die("poll");
	}
}

static atomic_int turn;

static void await(int mine)
{
	while (turn != mine)
		syscall(SYS_futex, &turn, FUTEX_WAIT_PRIVATE, !mine, NULL, NULL, 0);
	pause_ms(2); /* the other one waits meanwhile */
	turn = !mine;
	syscall(SYS_futex, &turn, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void *second(void *unused)
{
	for (;;)
		await(1);
	return unused;
}

void talk_futex(void)
{
	start("partner", second, NULL);
	ready();
	for (;;)
		await(0);
}

static int back[2]; /* the way back of a storm */

static void *answer(void *unused)
{
	char c;

	while (read(ends[0], &c, 1) == 1 && write(back[1], &c, 1) == 1)
		;
	return unused;
}

void talk_storm(void)
{
	cpu_set_t one;
	char c = 'x';

	CPU_ZERO(&one);
	CPU_SET(0, &one);
	if (sched_setaffinity(0, sizeof(one), &one) || pipe(ends) || pipe(back))
		die("pipe");
	start("partner", answer, NULL);
	ready();
	while (write(ends[1], &c, 1) == 1 && read(back[0], &c, 1) == 1)
		;
	die("read");
}
