/* SPDX-License-Identifier: Apache-2.0 */
/* Who believes whom across user namespaces? Needs root. */
#include <sched.h>

#include "cases/case.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

static char dir[32], path[64];

static void become(uid_t uid)
{
	if (uid && (setresgid(uid, uid, uid) || setresuid(uid, uid, uid)))
		_exit(9);
}

static void try_open(const char *what, uid_t trusted)
{
	struct okv_engine_options o;
	struct okv_engine *engine;
	okv_engine_options_init(&o);
	o.socket_path = path;
	if (trusted) {
		o.flags = OKV_ENGINE_TRUST_UID;
		o.trust_uid = trusted;
	}
	int rc = okv_engine_open(&o, &engine, &case_err);
	printf("  %-54s %s %s\n", what, rc ? okv_status_name(rc) : "CONNECTED",
	       rc ? case_err.text : "");
	fflush(stdout);
	_exit(0);
}

/* One connection of another process. uid: outside; trusted: by it, 0: none. */
static void attempt(const char *what, uid_t uid, uid_t trusted)
{
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0) {
		become(uid);
		try_open(what, trusted);
	}
	waitpid(pid, NULL, 0);
}

/* The same from a user namespace with this map (NULL: none), as user `inside` of it. */
static void attempt_inside(const char *what, uid_t uid, const char *map, uid_t inside)
{
	int made[2], mapped[2];
	char c, file[64];
	if (pipe(made) || pipe(mapped))
		case_die("pipe");
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0) {
		become(map ? 0 : uid);
		if (unshare(CLONE_NEWUSER)) {
			printf("  %-54s no user namespace: %s\n", what, strerror(errno));
			fflush(stdout);
			_exit(1);
		}
		if (write(made[1], "x", 1) != 1 || read(mapped[0], &c, 1) != 1 ||
		    (map && setresuid(inside, inside, inside)))
			_exit(9);
		try_open(what, 0);
	}
	close(made[1]);
	if (read(made[0], &c, 1) == 1) {
		snprintf(file, sizeof(file), "/proc/%d/uid_map", (int)pid);
		int fd = map ? open(file, O_WRONLY | O_CLOEXEC) : -1;
		if (map && (fd < 0 || write(fd, map, strlen(map)) < 0))
			printf("  %s: %s\n", file, strerror(errno));
		if (write(mapped[1], "x", 1) != 1)
			case_die("pipe");
		if (fd >= 0)
			close(fd);
	}
	waitpid(pid, NULL, 0);
	close(made[0]);
	close(mapped[0]);
	close(mapped[1]);
}

/* A Manager of this user, in a user namespace without a map if inside; ready for everybody. */
static pid_t manager(uid_t uid, const char *allowed, bool inside)
{
	int ready[2];
	char c;
	if (pipe(ready))
		case_die("pipe");
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0) {
		const char *binary = case_manager_binary();
		become(uid);
		if (inside && unshare(CLONE_NEWUSER))
			_exit(9);
		dup2(ready[1], STDOUT_FILENO);
		dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), STDERR_FILENO);
		close(ready[0]);
		execl(binary, binary, "serve", "--socket", path, "--memory", "64M",
		      allowed ? "--allow-uid" : NULL, allowed, (char *)NULL);
		_exit(127);
	}
	close(ready[1]);
	if (read(ready[0], &c, 1) != 1)
		printf("  no Manager\n");
	chmod(path, 0777);
	return pid;
}

static void end(pid_t pid)
{
	kill(pid, SIGTERM);
	waitpid(pid, NULL, 0);
}

int main(void)
{
	if (geteuid() != 0)
		case_die("only root can become someone else");
	snprintf(dir, sizeof(dir), "/tmp/okv-case-XXXXXX");
	if (!mkdtemp(dir) || chmod(dir, 0777))
		case_die("%s: %s", dir, strerror(errno));
	snprintf(path, sizeof(path), "%s/m.sock", dir);
	puts("a stranger's Manager, uid 4242, which admits uid 4343");
	pid_t pid = manager(4242, "4343", false);
	attempt("uid 4343", 4343, 0);
	attempt_inside("uid 4343 in a namespace without a map", 4343, NULL, 0);
	attempt_inside("uid 65534 of a container, 4343 outside", 0, "0 0 1\n65534 4343 1\n", 65534);
	attempt_inside("root of a container, 4343 outside", 0, "0 4343 1\n", 0);
	end(pid);
	puts("root's Manager, which admits uid 100000");
	pid = manager(0, "100000", false);
	attempt("uid 100000", 100000, 0);
	attempt_inside("root of a container with 0 to 65535 at 100000", 0, "0 100000 65536\n", 0);
	attempt_inside("uid 1000 of that container", 0, "0 100000 65536\n", 1000);
	end(pid);
	puts("a Manager of uid 4343 in a namespace without a map, which admits its own user");
	pid = manager(4343, NULL, true);
	attempt("a stranger, uid 4242, who trusts uid 4343", 4242, 4343);
	end(pid);
	unlink(path);
	rmdir(dir);
	return 0;
}
