/* SPDX-License-Identifier: Apache-2.0 */
/*
 * [B] The probe: does a kernel wait for an SM? Beside a model it may wait for a millisecond if the
 * model's blocks hold their SMs so long; copy engines never wait for SMs. No driver call tells, so
 * the worker, while it polls, now and then launches an empty kernel between two events. One probe
 * says little: the link delays some, and a model lets some through. So SMs count as held when some
 * of the last probes waited. The next piece uses the result.
 */
#include "device/cuda/cuda_device.h"

#include <string.h>

#include "base/clock.h"

/* Between probes. A probe delays a copy kernel beside it by 9 us, as events with timing wait for
 * all that is written. */
#define PERIOD_NS 2000000u
/* Between probes while one of the last ones waited, to learn soon whether a model runs. */
#define CLOSE_PERIOD_NS 500000u
/* Between queries whether a launched probe has ended. */
#define ASK_NS 50000u
/* A probe waited if it took longer than this, the launch calls subtracted. On an idle GPU a kernel
 * starts and ends within a few microseconds; beside our own copies one in sixteen waits 20 to 80 us
 * for the link; behind a model's blocks it waits 40 to 300 us, or far longer. */
#define IDLE_NS 60000.0
/* How long closing waits for a probe to end. */
#define CLOSE_NS 20000000u

void oki_cuda_probe_init(struct oki_device *device)
{
	struct oki_cuda_probe *p = &device->probe;
	const struct oki_cuda_api *api = device->api;
	if (!api->event_elapsed)
		return;
	CUresult result = api->stream_create(&p->stream, CU_STREAM_NON_BLOCKING, device->priority);
	if (result == CUDA_SUCCESS)
		result = api->event_create(&p->from, CU_EVENT_DEFAULT);
	if (result == CUDA_SUCCESS)
		result = api->event_create(&p->to, CU_EVENT_DEFAULT);
	p->works = result == CUDA_SUCCESS;
	if (!p->works)
		oki_cuda_probe_fini(device);
}

/* Waits for the probe's end, which comes soon beside most models. Limited to CLOSE_NS, so that a
 * model that never yields an SM cannot block closing. */
static bool has_ended(struct oki_device *device)
{
	const struct oki_cuda_probe *p = &device->probe;
	const uint64_t end = oki_now_ns() + CLOSE_NS;
	if (p->lost || !p->out)
		return !p->lost;
	CUresult result = CUDA_ERROR_NOT_READY;
	while (result == CUDA_ERROR_NOT_READY && oki_now_ns() < end)
		result = device->api->event_query(p->to);
	return result == CUDA_SUCCESS;
}

bool oki_cuda_probe_fini(struct oki_device *device)
{
	struct oki_cuda_probe *p = &device->probe;
	const struct oki_cuda_api *api = device->api;
	bool ended = has_ended(device);
	if (p->to)
		api->event_destroy(p->to);
	if (p->from)
		api->event_destroy(p->from);
	if (p->stream)
		api->stream_destroy(p->stream);
	*p = (struct oki_cuda_probe){0};
	return ended;
}

/* Forget the results and launch no further probe. */
static void give_up(struct oki_cuda_probe *p)
{
	p->works = p->out = false;
	memset(p->waits, 0, sizeof(p->waits));
}

static void launch(struct oki_device *device, uint64_t now_ns)
{
	struct oki_cuda_probe *p = &device->probe;
	const struct oki_cuda_api *api = device->api;
	/* A block that needs as much of an SM as a restore's: a smaller one would find room sooner.
	 */
	struct oki_cuda_launch nothing = {.lanes = 32, .blocks = 1, .threads = OKI_GATHER_THREADS};
	uint64_t start = oki_now_ns();
	p->launched_ns = p->asked_ns = now_ns;
	CUresult result = api->event_record(p->from, p->stream);
	if (result == CUDA_SUCCESS)
		result = oki_cuda_launch(device, p->stream, &nothing);
	p->out = result == CUDA_SUCCESS;
	if (p->out)
		result = api->event_record(p->to, p->stream);
	/* The first event may be complete before the kernel is even queued, so the time between the
	 * events includes these calls. */
	p->call_ns = oki_now_ns() - start;
	if (result == CUDA_SUCCESS)
		return;
	p->lost = p->out;
	give_up(p);
}

static void add_result(struct oki_cuda_probe *p, double ns)
{
	ns -= (double)p->call_ns;
	p->waits[p->looks++ % OKI_CUDA_LOOKS] = ns > IDLE_NS ? ns : 0;
}

static void check_end(struct oki_device *device, uint64_t now_ns)
{
	struct oki_cuda_probe *p = &device->probe;
	const struct oki_cuda_api *api = device->api;
	float ms = 0;
	p->asked_ns = now_ns;
	CUresult result = api->event_query(p->to);
	if (result == CUDA_ERROR_NOT_READY)
		return;
	p->lost = result != CUDA_SUCCESS;
	if (result == CUDA_SUCCESS)
		result = api->event_elapsed(&ms, p->from, p->to);
	if (result != CUDA_SUCCESS) {
		give_up(p);
		return;
	}
	p->out = false;
	add_result(p, ms * 1e6);
}

static uint32_t count_waits(const struct oki_cuda_probe *p)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < OKI_CUDA_LOOKS; i++)
		count += p->waits[i] > 0;
	return count;
}

void oki_cuda_probe_look(struct oki_device *device, uint64_t now_ns)
{
	struct oki_cuda_probe *p = &device->probe;
	if (p->works && p->out && now_ns - p->asked_ns >= ASK_NS)
		check_end(device, now_ns);
	uint64_t period = count_waits(p) ? CLOSE_PERIOD_NS : PERIOD_NS;
	if (p->works && !p->out && (!p->launched_ns || now_ns - p->launched_ns >= period))
		launch(device, now_ns);
}

double oki_cuda_probe_wait(const struct oki_cuda_probe *p)
{
	double longest = 0;
	for (uint32_t i = 0; i < OKI_CUDA_LOOKS; i++)
		longest = p->waits[i] > longest ? p->waits[i] : longest;
	return count_waits(p) >= OKI_CUDA_LOOKS_HELD ? longest : 0;
}
