/* SPDX-License-Identifier: Apache-2.0 */
/*
 * OrbitKV: a KV cache that outlives its engine. The whole API in one include.
 *
 *   engine.h    okv_engine_open      connect to the Manager, or run one in this process
 *   binding.h   okv_namespace_open   what is cached: identity and schema
 *               okv_binding_register where this rank keeps it: layers on a device
 *   lookup.h    okv_lookup           find the longest usable prefix and pin it by a lease
 *   transfer.h  okv_restore_start    copy blocks into pages, layer by layer
 *               okv_publish_start    copy pages into blocks
 *               okv_op_wait…         wait for one layer or for the operation
 *   stats.h     okv_stats_get        counters of an engine
 *   manager.h   okv_manager_create   the Manager, for a program that runs one
 *   logging.h   okv_log_ring_create  log lines, for a program that reads them
 *
 * Results. Calls return 0 or an OKV_E_… code, and explain it in the struct okv_error if one is
 * given. A ret_… argument is written on success only. So initialise handles to NULL; every release
 * call accepts NULL. There are two exceptions: okv_op_wait() and okv_op_poll() write the result
 * whenever the operation has ended, and okv_engine_poll() writes its count also when the session is
 * lost.
 *
 * Option structs start with their size; fill them with their _init call. Fields that an older
 * header lacks get their defaults. Fields that this library does not know must be 0.
 *
 * Handles may be released in any order and in any state: each exactly once, and not while another
 * thread is in a call on it. What an operation uses stays alive until it drained.
 */
#ifndef ORBITKV_ORBITKV_H
#define ORBITKV_ORBITKV_H

#include <orbitkv/version.h>
#include <orbitkv/status.h>
#include <orbitkv/logging.h>
#include <orbitkv/manager.h>
#include <orbitkv/engine.h>
#include <orbitkv/binding.h>
#include <orbitkv/lookup.h>
#include <orbitkv/transfer.h>
#include <orbitkv/stats.h>

#endif
