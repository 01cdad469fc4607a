/*
 * [B] How long a kernel waits for an SM. Beside a model that may be long, a millisecond where each
 * of its blocks holds an SM so long, and copy engines wait for nobody. Nothing tells but to try: a
 * kernel that does nothing, now and then while the worker has time, between two events. What it
 * finds holds for the next operation.
 */
#include "device/cuda_device.h"

#include "base/clock.h"

#define PERIOD_NS 500000u
/* On an idle GPU a kernel starts and ends within a few microseconds. */
#define IDLE_NS 10000.0
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

/* A model lets it go soon; one that never does must not keep anybody from closing. */
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

/* What is known no longer holds, and there will be no other one. */
static void give_up(struct oki_cuda_probe *p)
{
	p->works = p->out = false;
	p->wait_ns = p->last_ns = 0;
}

void oki_cuda_probe_launch(struct oki_device *device, uint64_t now_ns)
{
	struct oki_cuda_probe *p = &device->probe;
	const struct oki_cuda_api *api = device->api;
	if (!p->works || (p->launched_ns && now_ns - p->launched_ns < PERIOD_NS))
		return;
	oki_cuda_probe_wait(device, now_ns);
	if (!p->works || p->out)
		return;
	/* A block that needs as much of an SM as a restore's: less would find room sooner. */
	struct oki_cuda_launch nothing = {.lanes = 32, .blocks = 1, .threads = OKI_GATHER_THREADS};
	uint64_t start = oki_now_ns();
	p->launched_ns = now_ns;
	CUresult result = api->event_record(p->from, p->stream);
	if (result == CUDA_SUCCESS)
		result = oki_cuda_launch(device, p->stream, &nothing);
	p->out = result == CUDA_SUCCESS;
	if (p->out)
		result = api->event_record(p->to, p->stream);
	/* The first event may be there before the kernel is, and the second one long after. */
	p->call_ns = oki_now_ns() - start;
	if (result == CUDA_SUCCESS)
		return;
	p->lost = p->out;
	give_up(p);
}

static double beyond_calls(const struct oki_cuda_probe *p, double ns)
{
	ns -= (double)p->call_ns;
	return ns > IDLE_NS ? ns : 0;
}

/* The longer one of the last two: to wait costs an operation more than to use the slower way. */
static void take(struct oki_cuda_probe *p, double ns)
{
	p->wait_ns = ns > p->last_ns ? ns : p->last_ns;
	p->last_ns = ns;
}

double oki_cuda_probe_wait(struct oki_device *device, uint64_t now_ns)
{
	struct oki_cuda_probe *p = &device->probe;
	const struct oki_cuda_api *api = device->api;
	float ms = 0;
	if (!p->out)
		return p->wait_ns;
	CUresult result = api->event_query(p->to);
	double age = beyond_calls(p, (double)(now_ns - p->launched_ns));
	/* Until the GPU came to it nothing says that it waits for an SM. */
	if (result == CUDA_ERROR_NOT_READY && api->event_query(p->from) != CUDA_SUCCESS)
		return p->wait_ns;
	if (result == CUDA_ERROR_NOT_READY)
		return age > p->wait_ns ? age : p->wait_ns;
	p->lost = result != CUDA_SUCCESS;
	if (result == CUDA_SUCCESS)
		result = api->event_elapsed(&ms, p->from, p->to);
	if (result == CUDA_SUCCESS) {
		p->out = false;
		take(p, beyond_calls(p, ms * 1e6));
	} else {
		give_up(p);
	}
	return p->wait_ns;
}
