/* SPDX-License-Identifier: Apache-2.0 */
/* Events that callers bring are looked at once, in one scope; streams are waited for where they are
 * busy. No GPU. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "okv_config.h"

#if OKV_HAVE_CUDA

#include "device/cuda/cuda_device.h"
#include "support/suite.h"

#define LAYERS 36u
#define EVENT(n) ((CUevent)(uintptr_t)(0x7f0000001000ull + 64ull * (n)))
#define CONTEXT ((CUcontext)(uintptr_t)16)

#define OURS ((CUstream)(uintptr_t)24)
#define THEIRS(n) ((CUstream)(uintptr_t)(0x1000 + 64 * (n)))
#define POINT ((CUevent)(uintptr_t)32)
#define CALLERS 4u

static struct {
	int pushed, popped, queries, waits;
	CUresult push, query, wait;
	CUevent bad;	     /* of which the query says CUDA_ERROR_INVALID_HANDLE */
	uint32_t busy;	     /* bit n: THEIRS(n) has work */
	uint32_t recorded;   /* bit n: POINT was recorded there */
	CUstream fence_in;   /* last */
	CUcontext belong_to; /* the streams */
	CUstreamCaptureStatus capturing;
} calls;

static CUresult fake_push(CUcontext context)
{
	ck_assert_ptr_eq(context, CONTEXT);
	calls.pushed++;
	return calls.push;
}

static CUresult fake_pop(CUcontext *ret_context)
{
	*ret_context = CONTEXT;
	calls.popped++;
	return CUDA_SUCCESS;
}

static CUresult fake_exchange(CUstreamCaptureMode *mode)
{
	(void)mode;
	return CUDA_SUCCESS;
}

static CUresult fake_query(CUevent event)
{
	ck_assert_int_eq(calls.pushed, calls.popped + 1);
	calls.queries++;
	return event == calls.bad ? CUDA_ERROR_INVALID_HANDLE : calls.query;
}

static CUresult fake_text(CUresult result, const char **ret_text)
{
	(void)result;
	*ret_text = "text";
	return CUDA_SUCCESS;
}

static uint32_t number_of(CUstream stream)
{
	uintptr_t n = ((uintptr_t)stream - (uintptr_t)THEIRS(0)) / 64;
	ck_assert_uint_lt(n, CALLERS);
	return (uint32_t)n;
}

static CUresult fake_capturing(CUstream stream, CUstreamCaptureStatus *ret_status)
{
	number_of(stream);
	*ret_status = calls.capturing;
	return CUDA_SUCCESS;
}

static CUresult fake_context(CUstream stream, CUcontext *ret_context)
{
	number_of(stream);
	*ret_context = calls.belong_to;
	return CUDA_SUCCESS;
}

static CUresult fake_stream_query(CUstream stream)
{
	return calls.busy >> number_of(stream) & 1 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult fake_record(CUevent event, CUstream stream)
{
	ck_assert_ptr_eq(event, POINT);
	calls.recorded |= 1u << number_of(stream);
	calls.fence_in = stream;
	return CUDA_SUCCESS;
}

static CUresult fake_wait(CUstream stream, CUevent event, unsigned flags)
{
	ck_assert_ptr_eq(stream, OURS);
	ck_assert_ptr_eq(event, POINT);
	ck_assert_uint_eq(flags, 0);
	ck_assert_ptr_nonnull(calls.fence_in);
	calls.fence_in = NULL; /* recorded anew for the next one */
	calls.waits++;
	return calls.wait;
}

static struct oki_cuda_api api;
static struct oki_device *device;
static struct okv_error problem;

static void setup(void)
{
	memset(&calls, 0, sizeof(calls));
	memset(&problem, 0, sizeof(problem));
	api = (struct oki_cuda_api){
		.context_push = fake_push,
		.context_pop = fake_pop,
		.capture_mode_exchange = fake_exchange,
		.event_query = fake_query,
		.event_record = fake_record,
		.stream_is_capturing = fake_capturing,
		.stream_context = fake_context,
		.stream_query = fake_stream_query,
		.stream_wait_event = fake_wait,
		.error_name = fake_text,
		.error_string = fake_text,
	};
	device = calloc(1, sizeof(*device));
	ck_assert(device != NULL);
	device->api = &api;
	device->context = CONTEXT;
	calls.belong_to = CONTEXT;
}

static void teardown(void)
{
	ck_assert_int_eq(calls.popped, calls.push == CUDA_SUCCESS ? calls.pushed : 0);
	free(device);
}

static int check(const CUevent *events, uint32_t count)
{
	return oki_cuda_check_events(device, events, count, &problem);
}

/* Complete or not, as _i says; holes are layers without events. */
START_TEST(each_event_is_looked_at_once)
{
	CUevent events[LAYERS];
	calls.query = _i ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
	for (uint32_t i = 0; i < LAYERS; i++)
		events[i] = i % 7 ? EVENT(i) : NULL;
	ck_assert_int_eq(check(events, LAYERS), 0);
	ck_assert_int_eq(calls.queries, 30);
	ck_assert_int_eq(calls.pushed, 1);
	for (int round = 0; round < 3; round++)
		ck_assert_int_eq(check(events, LAYERS), 0);
	ck_assert_int_eq(calls.queries, 30);
	ck_assert_int_eq(calls.pushed, 1);
	/* Another one among them. */
	events[LAYERS - 1] = EVENT(LAYERS);
	ck_assert_int_eq(check(events, LAYERS), 0);
	ck_assert_int_eq(calls.queries, 31);
	ck_assert_int_eq(calls.pushed, 2);
}
END_TEST

START_TEST(a_refused_event_is_refused_again)
{
	const CUevent events[] = {EVENT(0), NULL, EVENT(1), EVENT(2)};
	char name[32];
	calls.bad = EVENT(1);
	snprintf(name, sizeof(name), "%p is no usable event", (void *)EVENT(1));
	for (int round = 0; round < 3; round++) {
		memset(&problem, 0, sizeof(problem));
		ck_assert_int_eq(check(events, 4), OKV_E_INVAL);
		ck_assert_int_eq(problem.device_error, CUDA_ERROR_INVALID_HANDLE);
		ck_assert_ptr_nonnull(strstr(problem.text, name));
	}
	/* Those before it are known by then, those behind it are not. */
	ck_assert_int_eq(calls.queries, 1 + 3);
	calls.bad = NULL;
	ck_assert_int_eq(check(events, 4), 0);
	ck_assert_int_eq(calls.queries, 1 + 3 + 2);
}
END_TEST

/* More events than are kept in mind: looked at again, never taken for another one. */
START_TEST(more_events_than_places)
{
	enum { MANY = 4 * sizeof(device->events) / sizeof(device->events[0]) };
	static CUevent events[MANY];
	for (uint32_t i = 0; i < MANY; i++)
		events[i] = EVENT(i);
	ck_assert_int_eq(check(events, MANY), 0);
	ck_assert_int_eq(calls.queries, MANY);
	calls.bad = EVENT(MANY);
	for (uint32_t i = 0; i < MANY; i++) {
		const CUevent two[] = {events[i], calls.bad};
		ck_assert_int_eq(check(two, 2), OKV_E_INVAL);
	}
	ck_assert_int_gt(calls.queries, 2 * MANY);
}
END_TEST

START_TEST(a_context_that_cannot_be_entered)
{
	const CUevent event = EVENT(0);
	calls.push = CUDA_ERROR_INVALID_CONTEXT;
	ck_assert_int_eq(check(&event, 1), OKV_E_INVAL);
	ck_assert_int_eq(problem.device_error, CUDA_ERROR_INVALID_CONTEXT);
	ck_assert_int_eq(calls.queries, 0);
}
END_TEST

/* ---- streams ---- */

static int fence(void)
{
	const CUstream streams[CALLERS] = {THEIRS(0), THEIRS(1), THEIRS(2), THEIRS(3)};
	struct oki_stream stream = {.device = device, .stream = OURS, .point = POINT};
	return oki_cuda_fence(&stream, streams, CALLERS, &problem);
}

/* Any of them may be busy, and it is said whether one was. */
START_TEST(busy_streams_are_waited_for)
{
	calls.busy = (uint32_t)_i;
	ck_assert_int_eq(fence(), _i != 0);
	ck_assert_uint_eq(calls.recorded, (uint32_t)_i);
	ck_assert_int_eq(calls.waits, __builtin_popcount((unsigned)_i));
	ck_assert_int_eq(calls.pushed, 1);
}
END_TEST

START_TEST(streams_that_are_refused)
{
	calls.busy = 15;
	if (_i == 0)
		calls.capturing = CU_STREAM_CAPTURE_STATUS_ACTIVE;
	else if (_i == 1)
		calls.belong_to = NULL;
	else
		calls.wait = CUDA_ERROR_INVALID_HANDLE;
	ck_assert_int_eq(fence(), OKV_E_INVAL);
	ck_assert_int_eq(calls.waits, _i == 2);
	ck_assert_int_ne(problem.text[0], 0);
}
END_TEST

START_TEST(no_streams_need_no_context)
{
	struct oki_stream stream = {.device = device, .stream = OURS, .point = POINT};
	ck_assert_int_eq(oki_cuda_fence(&stream, NULL, 0, &problem), 0);
	ck_assert_int_eq(calls.pushed, 0);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("cuda caller");
	TCase *t = tcase_create("events");
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_loop_test(t, each_event_is_looked_at_once, 0, 2);
	tcase_add_test(t, a_refused_event_is_refused_again);
	tcase_add_test(t, more_events_than_places);
	tcase_add_test(t, a_context_that_cannot_be_entered);
	suite_add_tcase(suite, t);
	t = tcase_create("streams");
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_loop_test(t, busy_streams_are_waited_for, 0, 1 << CALLERS);
	tcase_add_loop_test(t, streams_that_are_refused, 0, 3);
	tcase_add_test(t, no_streams_need_no_context);
	suite_add_tcase(suite, t);
	return kv_suite_run(suite);
}

#else

int main(void)
{
	puts("skipped: built without CUDA headers");
	return 77;
}

#endif
