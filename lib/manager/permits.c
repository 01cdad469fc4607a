/* SPDX-License-Identifier: Apache-2.0 */
/* [M] Restore permits: how many restores may run per device, whichever session asks. */
#include "manager/manager_private.h"

#include <stdlib.h>
#include <string.h>

struct oki_mgr_device {
	struct oki_mgr_device *next;
	uint8_t id[16];
	uint32_t refs; /* bindings and running restores */
	uint32_t used; /* running restores */
};

void oki_mgr_permits_init(struct oki_mgr_permits *permits, uint32_t limit)
{
	pthread_mutex_init(&permits->lock, NULL);
	permits->devices = NULL;
	permits->limit = limit;
}

void oki_mgr_permits_fini(struct oki_mgr_permits *permits)
{
	while (permits->devices) {
		struct oki_mgr_device *device = permits->devices;
		permits->devices = device->next;
		free(device);
	}
	pthread_mutex_destroy(&permits->lock);
}

struct oki_mgr_device *oki_mgr_device_get(struct oki_mgr_permits *permits, const uint8_t id[16])
{
	struct oki_mgr_device *device;

	pthread_mutex_lock(&permits->lock);
	for (device = permits->devices; device; device = device->next)
		if (!memcmp(device->id, id, sizeof(device->id)))
			break;
	if (!device) {
		device = calloc(1, sizeof(*device));
		if (device) {
			memcpy(device->id, id, sizeof(device->id));
			device->next = permits->devices;
			permits->devices = device;
		}
	}
	if (device)
		device->refs++;
	pthread_mutex_unlock(&permits->lock);
	return device;
}

static void put_locked(struct oki_mgr_permits *permits, struct oki_mgr_device *device)
{
	if (--device->refs)
		return;
	struct oki_mgr_device **link = &permits->devices;
	while (*link != device)
		link = &(*link)->next;
	*link = device->next;
	free(device);
}

void oki_mgr_device_put(struct oki_mgr_permits *permits, struct oki_mgr_device *device)
{
	pthread_mutex_lock(&permits->lock);
	put_locked(permits, device);
	pthread_mutex_unlock(&permits->lock);
}

bool oki_mgr_permit_take(struct oki_mgr_permits *permits, struct oki_mgr_device *device)
{
	pthread_mutex_lock(&permits->lock);
	bool free_one = device->used < permits->limit;
	if (free_one) {
		device->used++;
		device->refs++;
	}
	pthread_mutex_unlock(&permits->lock);
	return free_one;
}

void oki_mgr_permit_give(struct oki_mgr_permits *permits, struct oki_mgr_device *device)
{
	pthread_mutex_lock(&permits->lock);
	device->used--;
	put_locked(permits, device);
	pthread_mutex_unlock(&permits->lock);
}
