#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ruff and mypy over the Python package, as pyproject.toml configures them.
# Usage: lint.sh ROOT BUILD_DIR
set -eu
where=$("$(dirname "$0")/environment.sh" "$1" "$2")
cd "$1"
"$where/bin/ruff" check --quiet --no-cache python test/engines
"$where/bin/ruff" format --check --quiet --no-cache python test/engines
"$where/bin/mypy" --cache-dir "$2/python-venv/mypy"
