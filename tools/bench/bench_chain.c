/* SPDX-License-Identifier: Apache-2.0 */
/* [E] Small kernels one after the other, as a model in its decode phase launches them. */
#include "bench_beside.h"

#include <stdio.h>
#include <stdlib.h>

#define THREADS 32u /* of the one block of each kernel */
#define STREAM_NON_BLOCKING 0x1u
#define EVENT_DISABLE_TIMING 0x2u

/* PTX, which the driver compiles: the build may have no compiler for GPUs. */
static const char image[] = ".version 6.3\n"
			    ".target sm_52\n"
			    ".address_size 64\n"
			    ".visible .entry nothing()\n"
			    "{\n"
			    "\tret;\n"
			    "}\n";

struct CUmod_st;
struct CUfunc_st;

struct module_calls {
	int (*load)(struct CUmod_st **ret_module, const void *image);
	int (*unload)(struct CUmod_st *module);
	int (*get_function)(struct CUfunc_st **ret_function, struct CUmod_st *module,
			    const char *name);
	int (*launch)(struct CUfunc_st *function, unsigned blocks_x, unsigned blocks_y,
		      unsigned blocks_z, unsigned threads_x, unsigned threads_y, unsigned threads_z,
		      unsigned shared_bytes, struct CUstream_st *stream, void **parameters,
		      void **extra);
};

static const struct tool_symbol symbols[] = {
	{"cuModuleLoadData", offsetof(struct module_calls, load)},
	{"cuModuleUnload", offsetof(struct module_calls, unload)},
	{"cuModuleGetFunction", offsetof(struct module_calls, get_function)},
	{"cuLaunchKernel", offsetof(struct module_calls, launch)},
};

struct chain {
	struct bench_cuda *cuda; /* borrowed */
	struct module_calls calls;
	unsigned kernels;
	struct CUmod_st *module;
	struct CUfunc_st *function; /* of the module */
	struct CUstream_st *stream;
	struct CUevent_st *end;
};

static int end(struct chain *chain)
{
	int result = chain->cuda->gpu.cu.event_record(chain->end, chain->stream);

	return result != 0 ? result : bench_cuda_poll(chain->cuda, chain->end);
}

static int turn(void *self)
{
	struct chain *chain = self;
	int result = 0;

	for (unsigned i = 0; i < chain->kernels && result == 0; i++)
		result = chain->calls.launch(chain->function, 1, 1, 1, THREADS, 1, 1, 0,
					     chain->stream, NULL, NULL);
	return result != 0 ? result : end(chain);
}

/* A turn that failed between two launches left some. */
static int drain(void *self)
{
	return end(self);
}

static void close_chain(void *self)
{
	struct chain *chain = self;
	const struct tool_cuda_calls *cu = &chain->cuda->gpu.cu;

	if (chain->end != NULL)
		cu->event_destroy(chain->end);
	if (chain->stream != NULL)
		cu->stream_destroy(chain->stream);
	if (chain->module != NULL)
		chain->calls.unload(chain->module);
	free(chain);
}

static double chain_us(const void *self, double unit_ns)
{
	(void)self;
	return unit_ns / 1e3;
}

static const struct bench_work_calls work_calls = {.turn = turn,
						   .drain = drain,
						   .close = close_chain,
						   .figure = chain_us,
						   .name = "chain",
						   .terms = "us",
						   .overlap = false};

static int create_objects(struct chain *chain, char *text)
{
	const struct tool_cuda_calls *cu = &chain->cuda->gpu.cu;
	const char *missing =
		tool_symbols_load(chain->cuda->gpu.library, symbols,
				  sizeof(symbols) / sizeof(symbols[0]), &chain->calls);
	int rc;

	if (missing != NULL) {
		snprintf(text, TOOL_TEXT, "the driver lacks %s", missing);
		return TOOL_SKIPPED;
	}
	rc = tool_cuda_said(chain->calls.load(&chain->module, image), "cuModuleLoadData", text);
	if (rc == TOOL_OK)
		rc = tool_cuda_said(
			chain->calls.get_function(&chain->function, chain->module, "nothing"),
			"cuModuleGetFunction", text);
	/* Without a priority, as engines create theirs. */
	if (rc == TOOL_OK)
		rc = tool_cuda_said(cu->stream_create(&chain->stream, STREAM_NON_BLOCKING),
				    "cuStreamCreate", text);
	if (rc == TOOL_OK)
		rc = tool_cuda_said(cu->event_create(&chain->end, EVENT_DISABLE_TIMING),
				    "cuEventCreate", text);
	return rc;
}

int bench_chain_open(struct bench_cuda *cuda, unsigned kernels, struct bench_work *ret_work,
		     char *text)
{
	struct chain *chain = calloc(1, sizeof(*chain));
	int rc;

	if (chain == NULL) {
		snprintf(text, TOOL_TEXT, "out of memory");
		return TOOL_FAILED;
	}
	chain->cuda = cuda;
	chain->kernels = kernels;
	rc = create_objects(chain, text);
	if (rc != TOOL_OK) {
		close_chain(chain);
		return rc;
	}
	*ret_work = (struct bench_work){&work_calls, chain};
	return TOOL_OK;
}
