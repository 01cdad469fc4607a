/* SPDX-License-Identifier: Apache-2.0 */
/* [B] One session's shared memory and doorbells, for either side. */
#include "wire/channel.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fd.h"

#define RECORD ((uint32_t)sizeof(struct okw_record))
#define USE_GRAIN 16384u /* few calls, and little more than what is used */

static const struct oki_channel empty = {
	.request_fd = -1, .control_fd = -1, .engine_doorbell = -1, .manager_doorbell = -1};

static int new_bell(int *ret_fd, struct okv_error *err)
{
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (fd < 0)
		return oki_fail_os(err, OKV_E_NOMEM, OKV_STAGE_CONNECT, errno, "eventfd");
	*ret_fd = fd;
	return 0;
}

static int map_both(struct oki_channel *c, struct okv_error *err)
{
	int rc = oki_shm_get(c->control_fd, OKW_CONTROL_BYTES, 0, false, &c->control_shm, err);
	if (rc)
		return rc;
	rc = oki_shm_get(c->request_fd, OKW_REQUEST_AREA_BYTES, 0, false, &c->request_shm, err);
	if (rc)
		return rc;
	c->control = (struct okw_control *)(void *)c->control_shm.base;
	c->requests = c->request_shm.base;
	return 0;
}

bool oki_channel_use(struct oki_channel *channel, enum oki_channel_part part, uint32_t end)
{
	struct okw_control *control = channel->control;
	uint8_t *starts[OKI_CHANNEL_PARTS] = {(uint8_t *)control->records, channel->requests,
					      control->bank};
	static const uint32_t sizes[OKI_CHANNEL_PARTS] = {
		sizeof(control->records), OKW_REQUEST_AREA_BYTES, sizeof(control->bank)};
	uint32_t used = channel->used[part];

	if (end <= used)
		return true;
	uint32_t more = (end - used + USE_GRAIN - 1) / USE_GRAIN * USE_GRAIN;
	if (more > sizes[part] - used)
		more = sizes[part] - used;
	if (!oki_shm_allocate(starts[part] + used, more))
		return false;
	channel->used[part] = used + more;
	if (part == OKI_CHANNEL_RECORDS)
		atomic_store_explicit(&control->records_used, (used + more + RECORD - 1) / RECORD,
				      memory_order_relaxed);
	return true;
}

int oki_channel_create(struct oki_channel *channel, uint64_t epoch, uint64_t token, uint32_t slot,
		       struct okv_error *err)
{
	struct oki_channel c = empty;
	int rc = oki_shm_create("orbitkv-control", OKW_CONTROL_BYTES, &c.control_fd, err);
	if (!rc)
		rc = oki_shm_create("orbitkv-request", OKW_REQUEST_AREA_BYTES, &c.request_fd, err);
	if (!rc)
		rc = new_bell(&c.engine_doorbell, err);
	if (!rc)
		rc = new_bell(&c.manager_doorbell, err);
	if (!rc)
		rc = map_both(&c, err);
	if (!rc && !oki_shm_allocate(c.control, offsetof(struct okw_control, records)))
		rc = oki_fail(err, OKV_E_NOMEM, OKV_STAGE_CONNECT, "no memory for a session");
	if (rc) {
		oki_channel_fini(&c);
		return rc;
	}
	c.control->magic = OKW_MAGIC;
	c.control->bytes = OKW_CONTROL_BYTES;
	c.control->epoch = epoch;
	c.control->token = token;
	c.control->slot = slot;
	*channel = c;
	return 0;
}

/* A write to a pipe instead of an eventfd could raise SIGPIPE; a regular file is always readable,
 * so poll() would not sleep. */
static int check_bell(int fd, struct okv_error *err)
{
	struct stat st;
	if (fstat(fd, &st))
		return oki_fail_os(err, OKV_E_PROTOCOL, OKV_STAGE_CONNECT, errno,
				   "fstat of a doorbell");
	/* Anonymous inodes are the files without a type. */
	if (st.st_mode & S_IFMT)
		return oki_fail(err, OKV_E_PROTOCOL, OKV_STAGE_CONNECT, "a doorbell is no eventfd");
	return 0;
}

int oki_channel_import(struct oki_channel *channel, int fds[4], const struct okw_welcome *welcome,
		       struct okv_error *err)
{
	struct oki_channel c = empty;
	c.request_fd = oki_fd_take(&fds[0]);
	c.control_fd = oki_fd_take(&fds[1]);
	c.engine_doorbell = oki_fd_take(&fds[2]);
	c.manager_doorbell = oki_fd_take(&fds[3]);
	int rc = 0;
	if (welcome->control_bytes != OKW_CONTROL_BYTES ||
	    welcome->request_area_bytes != OKW_REQUEST_AREA_BYTES)
		rc = oki_fail(
			err, OKV_E_VERSION, OKV_STAGE_CONNECT,
			"the Manager's control memory has %u + %u bytes, this side's %zu + %u",
			welcome->control_bytes, welcome->request_area_bytes,
			(size_t)OKW_CONTROL_BYTES, OKW_REQUEST_AREA_BYTES);
	if (!rc)
		rc = check_bell(c.engine_doorbell, err);
	if (!rc)
		rc = check_bell(c.manager_doorbell, err);
	if (!rc)
		rc = map_both(&c, err);
	if (!rc && (c.control->magic != OKW_MAGIC || c.control->epoch != welcome->epoch ||
		    c.control->token != welcome->token || c.control->slot != welcome->slot))
		rc = oki_fail(err, OKV_E_PROTOCOL, OKV_STAGE_CONNECT,
			      "the control memory is not that of this session");
	if (rc) {
		oki_channel_fini(&c);
		return rc;
	}
	oki_channel_sent(&c);
	*channel = c;
	return 0;
}

void oki_channel_sent(struct oki_channel *channel)
{
	oki_fd_close(&channel->request_fd);
	oki_fd_close(&channel->control_fd);
}

void oki_channel_fini(struct oki_channel *channel)
{
	if (channel->control_shm.base)
		oki_shm_put(&channel->control_shm);
	if (channel->request_shm.base)
		oki_shm_put(&channel->request_shm);
	oki_fd_close(&channel->request_fd);
	oki_fd_close(&channel->control_fd);
	oki_fd_close(&channel->engine_doorbell);
	oki_fd_close(&channel->manager_doorbell);
	*channel = empty;
}

static void signal_fd(int eventfd)
{
	uint64_t one = 1;
	ssize_t n;
	do {
		n = write(eventfd, &one, sizeof(one));
	} while (n < 0 && errno == EINTR);
	/* EAGAIN: the counter is at its maximum, so the listener is signalled already. */
}

void oki_doorbell_wake(struct okw_doorbell *bell, int eventfd)
{
	/* G1: this load of asleep follows the store of what is announced, and the sleeper loads
	 * that after its store of asleep. In the one total order of all sequentially consistent
	 * operations at least one of the two sees the other. */
	if (atomic_load(&bell->asleep))
		signal_fd(eventfd);
}

void oki_doorbell_ring(struct okw_doorbell *bell, int eventfd, uint32_t index)
{
	atomic_fetch_or(&bell->dirty[index / 64], 1ull << (index % 64));
	oki_doorbell_wake(bell, eventfd);
}

/* Sequentially consistent, for the test between declaring sleep and sleeping. */
static bool pending(struct okw_doorbell *bell)
{
	for (uint32_t w = 0; w < OKW_DIRTY_WORDS; w++)
		if (atomic_load(&bell->dirty[w]))
			return true;
	return false;
}

bool oki_doorbell_sleep(struct okw_doorbell *bell)
{
	atomic_store(&bell->asleep, 1);
	if (!pending(bell))
		return true;
	atomic_store(&bell->asleep, 0);
	return false;
}

void oki_doorbell_awake(struct okw_doorbell *bell)
{
	atomic_store(&bell->asleep, 0);
}
