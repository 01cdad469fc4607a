/* [B] Predicting the time of a copy by each way. */
#include "device/cuda_rates.h"

#include <stdio.h>
#include <string.h>

const uint32_t oki_cuda_sizes[OKI_CUDA_SIZES] = {512, 1024, 2048, 32768};

const struct oki_cuda_rates oki_cuda_default_rates = {
	.link = 55.4,
	.copy_ns = 3000,
	.entry_ns = 50,
	.entry_least_ns = 800,
	.scattered_ns = 30,
	.launch_ns = 4500,
	.kernel = {50, 50, 51, 51},
	.far = {1.5, 1.2, 1.2, 1.15},
};

static const uint32_t far_sizes[OKI_CUDA_FAR_SIZES] = {4096, 8192, 10240, 16384};

/* The kernel must promise this share of the copy engines' time, or less. */
#define WORTH_SMS 0.97
/* Two ways at once fill the link a little better than the kernel alone, never better than this. */
#define SHARED_LINK 0.97
/* From the launch of an operation's first kernel to a full link, and from its last byte to its end:
 * so much more than a copy engine takes. */
#define START_NS 6000
/* Forking a stream for the second way and joining it again. */
#define FORK_NS 3000
/* Copy engines after the kernel, or the other way round: one waits for the end of the other. */
#define SWITCH_NS 8000
/* A copy this short does not wait for copy engines that are busy with another stream. */
#define NO_WAIT_BYTES (4u << 20)

/* Of the link, by a kernel that leaves gaps; measured. */
#define PUBLISH_SHARE 0.875
/* Measured like those of restores; rows a little above 8 KiB take as long as 16 KiB. */
static const double publish_far[OKI_CUDA_FAR_SIZES] = {1.6, 1.25, 1.9, 1.2};

void oki_cuda_rates_of_publish(struct oki_cuda_rates *rates)
{
	for (uint32_t i = 0; i < OKI_CUDA_SIZES; i++)
		if (rates->kernel[i] > rates->link * PUBLISH_SHARE)
			rates->kernel[i] = rates->link * PUBLISH_SHARE;
	memcpy(rates->far, publish_far, sizeof(rates->far));
}

double oki_cuda_far_cost(const struct oki_cuda_rates *rates, uint64_t bytes)
{
	for (uint32_t i = 0; i < OKI_CUDA_FAR_SIZES; i++)
		if (bytes <= far_sizes[i])
			return rates->far[i];
	return 1;
}

static double kernel_rate(const struct oki_cuda_rates *rates, uint64_t bytes)
{
	uint32_t i = OKI_CUDA_SIZES - 1;
	while (i > 0 && bytes < oki_cuda_sizes[i])
		i--;
	if (bytes >= oki_cuda_sizes[0])
		return rates->kernel[i];
	/* Below the smallest size a fragment costs what that one does. */
	return rates->kernel[0] * (double)bytes / oki_cuda_sizes[0];
}

double oki_cuda_kernel_ns(const struct oki_cuda_rates *rates, uint64_t rows, uint64_t bytes)
{
	return (double)rows * (double)bytes / kernel_rate(rates, bytes);
}

enum oki_cuda_way oki_cuda_choose(const struct oki_cuda_rates *rates,
				  const struct oki_cuda_load *load)
{
	double launch = rates->launch_ns + (load->follows ? 0 : START_NS);
	/* A kernel that follows another one of the operation mostly has its SMs from that. */
	if (!load->follows || load->last == OKI_CUDA_WAY_DMA)
		launch += load->wait_ns;
	double kernel = launch + load->kernel_ns;
	double both = (double)load->bytes / (rates->link * SHARED_LINK);
	if (both < load->long_dma_ns)
		both = load->long_dma_ns;
	if (both < load->short_kernel_ns)
		both = load->short_kernel_ns;
	both += launch + FORK_NS;
	if (!load->shared)
		both = kernel;
	double worth = load->dma_ns * WORTH_SMS;
	if (load->follows && load->last == OKI_CUDA_WAY_DMA)
		worth -= SWITCH_NS;
	if (load->follows && load->last != OKI_CUDA_WAY_DMA)
		worth += SWITCH_NS;
	if (load->bytes <= NO_WAIT_BYTES)
		worth += (double)load->ahead / rates->link;
	if (kernel >= worth && both >= worth)
		return OKI_CUDA_WAY_DMA;
	/* The fewer bytes on SMs the better: a tie goes to both. */
	return kernel < both || !load->shared ? OKI_CUDA_WAY_KERNEL : OKI_CUDA_WAY_BOTH;
}

void oki_cuda_rates_print(const struct oki_cuda_rates *rates, char *ret_text, size_t size)
{
	snprintf(ret_text, size,
		 "link %.1f GB/s, copy %.2f us, entry %.2f us (at least %.2f), launch %.2f us, "
		 "kernel %.1f %.1f %.1f %.1f GB/s at 512 B, 1 KiB, 2 KiB, 32 KiB",
		 rates->link, rates->copy_ns / 1000, rates->entry_ns / 1000,
		 rates->entry_least_ns / 1000, rates->launch_ns / 1000, rates->kernel[0],
		 rates->kernel[1], rates->kernel[2], rates->kernel[3]);
}
