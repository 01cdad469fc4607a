/* [B] What one GPU's ways to copy cost, and which of them a copy should take. No driver calls. */
#ifndef OKI_DEVICE_CUDA_RATES_H
#define OKI_DEVICE_CUDA_RATES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Fragment sizes the kernel was timed with; between them the rate of the next smaller one. */
#define OKI_CUDA_SIZES 4u
extern const uint32_t oki_cuda_sizes[OKI_CUDA_SIZES];

/* Rows of a 2-D copy that lie at least so far apart on the host take a copy engine longer than
 * their bytes, whatever the size of its pages: those of up to so many bytes. */
#define OKI_CUDA_FAR_PITCH (64u << 10)
#define OKI_CUDA_FAR_SIZES 4u

/* Of one direction. Times in ns, rates in bytes per ns (GB/s). */
struct oki_cuda_rates {
	double link;	       /* one long copy by a copy engine */
	double copy_ns;	       /* of a plain or a 2-D copy, beside its bytes */
	double entry_ns;       /* of an entry of a batched call, beside its bytes */
	double entry_least_ns; /* of an entry, bytes included */
	double scattered_ns;   /* more for an entry whose neighbours lie elsewhere; not measured */
	double launch_ns;      /* of a kernel, beside its bytes */
	double kernel[OKI_CUDA_SIZES];
	double far[OKI_CUDA_FAR_SIZES]; /* times as long; not measured */
};

/* What was measured on an H200 (driver 580, PCIe 5 x16) with 4 SMs, of restores. */
extern const struct oki_cuda_rates oki_cuda_default_rates;
/* A publish by the kernel leaves gaps: it is no faster than that, whatever was measured. And copy
 * engines take longer for far rows. */
void oki_cuda_rates_of_publish(struct oki_cuda_rates *rates);
/* So many times as long as their bytes take rows of a 2-D copy that lie far apart. */
double oki_cuda_far_cost(const struct oki_cuda_rates *rates, uint64_t bytes);

/* Rows of bytes each, copied by the kernel, without its launch. */
double oki_cuda_kernel_ns(const struct oki_cuda_rates *rates, uint64_t rows, uint64_t bytes);

enum oki_cuda_way {
	OKI_CUDA_WAY_DMA,
	OKI_CUDA_WAY_KERNEL,
	OKI_CUDA_WAY_BOTH,
};

/* Predicted costs of some layers together. */
struct oki_cuda_load {
	uint64_t bytes;
	uint64_t ahead;		/* bytes of other streams that copy engines may take first */
	double wait_ns;		/* until a kernel gets its first SM */
	double dma_ns;		/* all of it by copy engines */
	double kernel_ns;	/* all of it by the kernel, without its launch */
	double long_dma_ns;	/* the runs that suit copy engines, by those */
	double short_kernel_ns; /* the other ones by the kernel, without its launch */
	bool shared;		/* both at once are possible */
	bool follows;		/* another copy of the same operation, which went by `last` */
	enum oki_cuda_way last;
};

/*
 * The fastest way by prediction. Copy engines take whole operations one after the other, so a
 * short copy avoids them while they are busy for someone else. Copy engines take no time from a
 * model, so the kernel must be faster by a few percent to be worth its SMs.
 */
enum oki_cuda_way oki_cuda_choose(const struct oki_cuda_rates *rates,
				  const struct oki_cuda_load *load);

/* One line for people. */
void oki_cuda_rates_print(const struct oki_cuda_rates *rates, char *ret_text, size_t size);

#endif
