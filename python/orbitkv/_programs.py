# SPDX-License-Identifier: Apache-2.0
"""Console scripts: they become the package's programs."""

import os
import sys

from .manager import program


def _become(name: str) -> None:
    path = program(name)
    os.execv(path, [name, *sys.argv[1:]])


def manager() -> None:
    _become("orbitkv-manager")


def replay() -> None:
    _become("orbitkv-replay")


def bench() -> None:
    _become("orbitkv-bench")
