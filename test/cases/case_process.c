/* SPDX-License-Identifier: Apache-2.0 */
/* Managers as processes, what /proc says of them, and a gate in memory. */
#include "cases/case.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>

const char *case_manager_binary(void)
{
	const char *binary = getenv("ORBITKV_MANAGER");
	return binary ? binary : CASE_MANAGER;
}

static void become_manager(const struct case_manager *m, const char *memory,
			   const char *const *options, int ready)
{
	const char *argv[24] = {
		case_manager_binary(), "serve", "--socket", m->socket, "--memory", memory};
	const char *log = getenv("CASE_LOG");
	int n = 6;
	for (; options && *options && n < 23; options++)
		argv[n++] = *options;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(ready, STDOUT_FILENO);
	int fd = open(log ? log : "/dev/null", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	dup2(fd, STDERR_FILENO);
	execv(argv[0], (char *const *)(uintptr_t)argv);
	_exit(127);
}

bool case_manager_again(struct case_manager *m, const char *memory, const char *const *options)
{
	int ends[2];
	char c = 0;
	if (pipe2(ends, O_CLOEXEC))
		case_die("pipe: %s", strerror(errno));
	fflush(stdout);
	m->pid = fork();
	if (m->pid == 0)
		become_manager(m, memory, options, ends[1]);
	close(ends[1]);
	while (c != '\n' && read(ends[0], &c, 1) == 1)
		;
	/* Left open: the Manager may write more. */
	if (c == '\n')
		return true;
	close(ends[0]);
	waitpid(m->pid, NULL, 0);
	m->pid = -1;
	return false;
}

void case_manager_start(struct case_manager *m, const char *memory, const char *const *options)
{
	snprintf(m->dir, sizeof(m->dir), "/tmp/okv-case-XXXXXX");
	if (!mkdtemp(m->dir))
		case_die("%s: %s", m->dir, strerror(errno));
	snprintf(m->socket, sizeof(m->socket), "%s/m.sock", m->dir);
	if (!case_manager_again(m, memory, options))
		case_die("the Manager %s did not start; $CASE_LOG names a file for its reason",
			 case_manager_binary());
}

int case_manager_kill(struct case_manager *m, int sig)
{
	int status = 0;
	if (m->pid <= 0)
		return 0;
	kill(m->pid, sig);
	waitpid(m->pid, &status, 0);
	m->pid = -1;
	return status;
}

int case_manager_end(struct case_manager *m, int sig)
{
	int status = case_manager_kill(m, sig);
	unlink(m->socket);
	rmdir(m->dir);
	return status;
}

struct okv_manager_status case_status(const char *socket)
{
	struct okv_manager_status now = {0};
	int rc = okv_manager_status_query(socket, 20000, &now, &case_err);
	if (rc)
		printf("status: %s: %s\n", okv_status_name(rc), case_err.text);
	return now;
}

void case_show_status(const char *what, const char *socket)
{
	struct okv_manager_status s = case_status(socket);
	printf("%-46s sessions %" PRIu64 ", retained %" PRIu64 ", leases %" PRIu64
	       ", pinned bytes %" PRIu64 ", active operations %" PRIu64 ", quarantined %" PRIu64
	       " with %" PRIu64 " bytes, free %" PRIu64 " of %" PRIu64 "\n",
	       what, s.sessions, s.sessions_retained, s.leases, s.bytes_pinned, s.ops_active,
	       s.ops_quarantined, s.bytes_quarantined, s.bytes_free, s.bytes_total);
	fflush(stdout);
}

long case_proc_kb(pid_t pid, const char *field)
{
	char path[64], line[256];
	size_t length = strlen(field);
	long kb = -1;
	snprintf(path, sizeof(path), pid ? "/proc/%d/status" : "/proc/meminfo", (int)pid);
	FILE *f = fopen(path, "r");
	while (f && kb < 0 && fgets(line, sizeof(line), f))
		if (!strncmp(line, field, length))
			kb = strtol(line + length + 1, NULL, 10);
	if (f)
		fclose(f);
	return kb;
}

int case_descriptors(pid_t pid)
{
	char path[64];
	int count = 0;
	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	DIR *dir = opendir(path);
	if (!dir)
		return -1;
	while (readdir(dir))
		count++;
	closedir(dir);
	return count - 2 - (pid == getpid());
}

static struct {
	uint8_t *at;
	size_t bytes;
	_Atomic bool is_closed, is_met;
} gate;

static void at_gate(int sig, siginfo_t *info, void *context)
{
	(void)context;
	uint8_t *at = info->si_addr;
	if (!gate.at || at < gate.at || at >= gate.at + gate.bytes) {
		signal(sig, SIG_DFL);
		return;
	}
	gate.is_met = true;
	while (gate.is_closed)
		case_pause(0.001);
}

void case_gate_close(void *at, size_t bytes)
{
	struct sigaction action = {.sa_sigaction = at_gate, .sa_flags = SA_SIGINFO};
	gate.at = at;
	gate.bytes = bytes;
	gate.is_met = false;
	gate.is_closed = true;
	if (sigaction(SIGSEGV, &action, NULL) || mprotect(at, bytes, PROT_NONE))
		case_die("gate: %s", strerror(errno));
}

bool case_gate_met(void)
{
	return gate.is_met;
}

void case_gate_open(void)
{
	mprotect(gate.at, gate.bytes, PROT_READ | PROT_WRITE);
	gate.is_closed = false;
}
