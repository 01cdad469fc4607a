#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A Manager in a PID namespace of its own: $MANAGER with these arguments. Needs root.
exec unshare -p -f --kill-child --mount-proc "${MANAGER:-orbitkv-manager}" "$@"
