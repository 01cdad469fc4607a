/* [B] Between the files of the executor. */
#ifndef OKI_EXEC_PRIVATE_H
#define OKI_EXEC_PRIVATE_H

#include "exec/worker.h"

enum oki_transfer_phase {
	OKI_PHASE_CLAIM,
	OKI_PHASE_PARTS,
	OKI_PHASE_DRAIN,
};

struct oki_stream_node {
	struct oki_stream *stream;
	struct oki_stream_node *next;
};

struct oki_worker {
	struct oki_worker_config config;
	const struct oki_device_ops *ops;
	struct oki_device *device;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	struct oki_transfer *queue, **queue_tail; /* under lock */
	bool kicked, stop;			  /* under lock */
	struct oki_transfer *active;		  /* the thread's */
	pthread_mutex_t stream_lock;
	struct oki_stream_node *streams; /* idle ones */
	struct oki_stream_node *spare;	 /* nodes without a stream */
	_Atomic uint64_t wakeups;
	_Atomic bool sleeping;
};

/* Copy one part, layer by layer in consumption order, and record what it completes. */
int oki_submit_part(struct oki_worker *w, struct oki_transfer *t, struct oki_part *part,
		    struct okv_error *err);
/* Record every layer that nothing will complete any more, then the end of all copies. */
int oki_submit_end(struct oki_worker *w, struct oki_transfer *t, struct okv_error *err);
/* Tell the source about layers whose bytes are in place. True when something was told. */
bool oki_layers_report(struct oki_worker *w, struct oki_transfer *t, bool all);

#endif
