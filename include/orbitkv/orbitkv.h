/* SPDX-License-Identifier: Apache-2.0 */
/*
 * OrbitKV: a KV cache that outlives its engine. The whole API in one include.
 *
 *   engine.h    okv_engine_open      connect to the Manager, or run one inside
 *   binding.h   okv_namespace_open   what is cached: identity and schema
 *               okv_binding_register where this rank keeps it: layers on a device
 *   lookup.h    okv_lookup           which blocks are there, pinned by a lease
 *   transfer.h  okv_restore_start    blocks into pages, layer by layer
 *               okv_publish_start    pages into blocks
 *               okv_op_wait…         per layer, per operation
 *   stats.h     okv_stats_get        counters
 *   manager.h   okv_manager_create   the other side, embeddable
 *
 * Calls return 0 or an OKV_E_… code and may explain it in a struct okv_error. What a ret_…
 * argument points to is written on success only: set handles to NULL before, and what closes them
 * at the end takes whatever came about. Two say more: okv_op_wait() and okv_op_poll() write their
 * result whenever the operation has ended, okv_engine_poll() its count also with a session that is
 * lost.
 * Option structs start with their size; fill them with their _init call. A struct of an older
 * header gets defaults for what it lacks; a newer one is accepted when what we do not know is 0.
 * Handles may be released in any order and any state, each exactly once, and not while another
 * thread is in a call on it; what they own lives until drained.
 */
#ifndef ORBITKV_ORBITKV_H
#define ORBITKV_ORBITKV_H

#include <orbitkv/version.h>
#include <orbitkv/status.h>
#include <orbitkv/manager.h>
#include <orbitkv/engine.h>
#include <orbitkv/binding.h>
#include <orbitkv/lookup.h>
#include <orbitkv/transfer.h>
#include <orbitkv/stats.h>

#endif
