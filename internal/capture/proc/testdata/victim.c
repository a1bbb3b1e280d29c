// SPDX-License-Identifier: Apache-2.0
/*
 * A process that does as it is told: one command per line on stdin, one answer
 * per line on stdout. Children are left running (they end with their parent)
 * unless the command says otherwise.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void answer(const char *what, long value)
{
	printf("%s %ld\n", what, value);
	fflush(stdout);
}

/* Waits to be killed, at the latest when the parent ends or a minute has passed.
 * The first process of a namespace does not get SIGALRM, so it counts. */
static void linger(pid_t parent)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int i = 0; i < 600 && getppid() == parent; i++)
		usleep(100000);
	_exit(0);
}

static void do_fork(void)
{
	pid_t self = getpid(), pid = fork();

	if (pid == 0)
		linger(self);
	answer("child", pid);
}

/* The child makes a grandchild as its first act and ends at once. */
static void do_grandchild(int session)
{
	int fds[2];
	pid_t child, grandchild = 0;

	if (pipe(fds))
		exit(90);
	child = fork();
	if (child == 0) {
		if (session)
			setsid();
		grandchild = fork();
		if (grandchild == 0) {
			close(fds[0]);
			close(fds[1]);
			alarm(60); /* whoever forgets it */
			for (;;)
				pause();
		}
		if (write(fds[1], &grandchild, sizeof(grandchild)) < 0)
			_exit(91);
		_exit(7);
	}
	if (read(fds[0], &grandchild, sizeof(grandchild)) < 0)
		exit(92);
	waitpid(child, NULL, 0);
	close(fds[0]);
	close(fds[1]);
	printf("family %d %d\n", child, grandchild);
	fflush(stdout);
}

/* Many children, each with its own exit code, reaped as they end. */
static void do_storm(int n)
{
	for (int i = 0; i < n; i++) {
		pid_t pid = fork();

		if (pid == 0)
			_exit(i % 100);
		printf("%d ", pid);
		if (i % 8 == 7)
			waitpid(-1, NULL, 0);
	}
	while (waitpid(-1, NULL, 0) > 0)
		;
	printf("\n");
	fflush(stdout);
}

static void do_vfork(char *path)
{
	pid_t pid = vfork();

	if (pid == 0) {
		execl(path, path, "two words", (char *)NULL);
		_exit(93);
	}
	waitpid(pid, NULL, 0);
	answer("child", pid);
}

static void do_child_exit(int code, int sig)
{
	pid_t pid = fork();

	if (pid == 0) {
		if (sig)
			raise(sig);
		_exit(code);
	}
	waitpid(pid, NULL, 0);
	answer("child", pid);
}

static int stop;

static void *thread(void *name)
{
	pthread_setname_np(pthread_self(), name);
	__atomic_add_fetch(&stop, -1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&stop, __ATOMIC_SEQ_CST) != 1000)
		usleep(500);
	return NULL;
}

static void do_threads(int n)
{
	static pthread_t threads[64];
	static char names[64][16];

	if (n) {
		stop = n;
		for (int i = 0; i < n; i++) {
			snprintf(names[i], sizeof(names[i]), "worker-%d", i & 63);
			pthread_create(&threads[i], NULL, thread, names[i]);
		}
		while (__atomic_load_n(&stop, __ATOMIC_SEQ_CST))
			usleep(500);
	} else {
		stop = 1000;
		for (int i = 0; i < 64 && threads[i]; i++)
			pthread_join(threads[i], NULL);
	}
	answer("threads", n);
}

static void *last_thread(void *code)
{
	usleep(20000);
	syscall(SYS_exit_group, (int)(intptr_t)code);
	return NULL;
}

/* A child whose first thread ends before its last one. */
static void do_leader_first(int code)
{
	pid_t pid = fork();
	pthread_t id;

	if (pid == 0) {
		pthread_create(&id, NULL, last_thread, (void *)(intptr_t)code);
		syscall(SYS_exit, 0);
	}
	waitpid(pid, NULL, 0);
	answer("child", pid);
}

static void *exec_thread(void *path)
{
	execl(path, path, "from a thread", (char *)NULL);
	_exit(94);
}

/* A child that execs from another thread than its first. */
static void do_thread_exec(char *path)
{
	pid_t pid = fork();
	pthread_t id;

	if (pid == 0) {
		pthread_create(&id, NULL, exec_thread, path);
		pause();
	}
	waitpid(pid, NULL, 0);
	answer("child", pid);
}

/* A child that is given the pid of a process that has ended. */
static void do_reborn(int pid)
{
	pid_t wanted = pid, self = getpid();
	struct clone_args args = {
		.exit_signal = SIGCHLD,
		.set_tid = (uintptr_t)&wanted,
		.set_tid_size = 1,
	};
	long made = syscall(SYS_clone3, &args, sizeof(args));

	if (made == 0)
		linger(self);
	answer("child", made);
}

static void do_zombie(void)
{
	pid_t pid = fork();
	siginfo_t info;

	if (pid == 0)
		_exit(0);
	waitid(P_PID, pid, &info, WEXITED | WNOWAIT);
	answer("child", pid);
}

static void do_dlopen(const char *path)
{
	void *lib = dlopen(path, RTLD_NOW);

	if (!lib)
		fprintf(stderr, "%s\n", dlerror());
	answer("loaded", lib != NULL);
}

/* An overlay at dir/all: dir/low below, dir/top above. */
static void do_overlay(const char *dir)
{
	char all[4096], options[16384];

	snprintf(all, sizeof(all), "%s/all", dir);
	snprintf(options, sizeof(options), "lowerdir=%s/low,upperdir=%s/top,workdir=%s/work", dir, dir, dir);
	answer("overlay", !mount("none", all, "overlay", 0, options));
}

/* A mount namespace with a file system of its own at dir. */
static void do_mountns(const char *dir)
{
	int bad = unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
		  mount("none", dir, "tmpfs", 0, NULL);

	answer("mountns", !bad);
}

/* A child that is pid 1 of a namespace of its own. */
static void do_pidns(void)
{
	pid_t pid;

	if (unshare(CLONE_NEWPID)) {
		answer("child", -1);
		return;
	}
	pid = fork();
	if (pid == 0)
		linger(0);
	answer("child", pid);
}

static void do_copy(const char *from, const char *to)
{
	char buf[65536];
	int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0755);
	long n, bad = in < 0 || out < 0;

	while (!bad && (n = read(in, buf, sizeof(buf))) > 0)
		bad = write(out, buf, n) != n;
	close(in);
	close(out);
	answer("copied", !bad);
}

static void do_chroot(const char *dir)
{
	answer("chroot", !(chroot(dir) || chdir("/")));
}

static void obey(char *command, char *a, char *b)
{
	int n = a ? atoi(a) : 0;

	if (!strcmp(command, "fork"))
		do_fork();
	else if (!strcmp(command, "grandchild"))
		do_grandchild(0);
	else if (!strcmp(command, "daemon"))
		do_grandchild(1);
	else if (!strcmp(command, "storm"))
		do_storm(n);
	else if (!strcmp(command, "vfork"))
		do_vfork(a);
	else if (!strcmp(command, "child-exit"))
		do_child_exit(n, 0);
	else if (!strcmp(command, "child-signal"))
		do_child_exit(0, n);
	else if (!strcmp(command, "threads"))
		do_threads(n);
	else if (!strcmp(command, "leader-first"))
		do_leader_first(n);
	else if (!strcmp(command, "thread-exec"))
		do_thread_exec(a);
	else if (!strcmp(command, "reborn"))
		do_reborn(n);
	else if (!strcmp(command, "zombie"))
		do_zombie();
	else if (!strcmp(command, "dlopen"))
		do_dlopen(a);
	else if (!strcmp(command, "mountns"))
		do_mountns(a);
	else if (!strcmp(command, "overlay"))
		do_overlay(a);
	else if (!strcmp(command, "pidns"))
		do_pidns();
	else if (!strcmp(command, "mkdir"))
		answer("made", !mkdir(a, 0755));
	else if (!strcmp(command, "copy"))
		do_copy(a, b);
	else if (!strcmp(command, "chroot"))
		do_chroot(a);
	else if (!strcmp(command, "name"))
		answer("named", !prctl(PR_SET_NAME, a));
	else if (!strcmp(command, "setuid"))
		answer("owner", !setuid(n));
	else if (!strcmp(command, "exec"))
		execl(a, a, "again", (char *)NULL);
	else if (!strcmp(command, "exit"))
		exit(n);
}

int main(void)
{
	static char line[8192];

	answer("ready", getpid());
	while (fgets(line, sizeof(line), stdin)) {
		char *command = strtok(line, " \n"), *a = strtok(NULL, " \n"), *b = strtok(NULL, " \n");

		if (command)
			obey(command, a, b);
	}
	return 0;
}
