#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Print the version that include/orbitkv/version.h states.
set -eu
awk '/#define OKV_VERSION_(MAJOR|MINOR|PATCH) / { v = v s $3; s = "." } END { print v }' \
	"$(dirname "$0")/../../include/orbitkv/version.h"
