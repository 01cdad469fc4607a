/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session that restores only gets descriptors that cannot write. Can its process open the arena
 * again for writing, through /proc, as the Manager's user or as another one that is allowed?
 * As root it tries both.
 */
#include "cases/case.h"
#include "cases/neighbours/case_raw.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "wire/wire.h"

#define OTHER 65534u

static int engine(const char *socket)
{
	char path[64];
	struct stat st;
	int s = case_raw_hello(socket, OKW_HELLO_RESTORE_ONLY);
	if (s < 0)
		case_die("connect: %s", strerror(errno));
	case_raw_descriptor(s);
	case_raw_ask_arena(s);
	int fd = case_raw_descriptor(s);
	if (fd < 0 || fstat(fd, &st))
		case_die("no arena came");
	printf("uid %u: arena with access mode %d (0: read only), mode %o, of uid %u\n",
	       (unsigned)getuid(), fcntl(fd, F_GETFL) & O_ACCMODE, st.st_mode & 0777u,
	       (unsigned)st.st_uid);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	int again = open(path, O_RDWR | O_CLOEXEC);
	printf("  opened again for writing: %s\n", again < 0 ? strerror(errno) : "works");
	if (again < 0)
		return 0;
	uint8_t *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0);
	if (at != MAP_FAILED) {
		at[0] ^= 1;
		printf("  a byte of the cache is changed\n");
	}
	return 1;
}

int main(void)
{
	struct case_manager m;
	int changed = 0;
	case_manager_start(&m, "64M", CASE_OPTIONS("--allow-uid", "65534"));
	if (chmod(m.dir, 0755) || chmod(m.socket, 0666))
		case_die("chmod: %s", strerror(errno));
	for (int other = 0; other < (geteuid() == 0 ? 2 : 1); other++) {
		int status = 0;
		fflush(stdout);
		pid_t pid = fork();
		if (pid == 0) {
			if (other &&
			    (setresgid(OTHER, OTHER, OTHER) || setresuid(OTHER, OTHER, OTHER)))
				case_die("setresuid: %s", strerror(errno));
			exit(engine(m.socket));
		}
		waitpid(pid, &status, 0);
		changed += status != 0;
	}
	case_manager_end(&m, SIGTERM);
	return changed != 0;
}
