# SPDX-License-Identifier: Apache-2.0
"""The build backend: meson-python, and before it two questions.

Is everything there that pip cannot install? If not, one message names it, before pip downloads
anything. Is a CUDA toolkit there? If not, pip gets nvcc and the headers from PyPI for this build.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import mesonpy
from mesonpy import get_requires_for_build_sdist  # noqa: F401

# The toolkit of the copy kernel. Its parts are of one release: they have no such demand themselves.
CUDA = [f"nvidia-{part} == 13.0.*" for part in ("cuda-nvcc", "cuda-runtime", "cuda-crt", "nvvm")]

# What is needed: a header, and the Debian package that has it.
HEADERS = {
    "stdlib.h": "libc6-dev",
    "urcu.h": "liburcu-dev",
    "numa.h": "libnuma-dev",
    "xxhash.h": "libxxhash-dev",
    "jansson.h": "libjansson-dev",
}

Settings = dict[str, Any]


def _options(settings: Settings | None) -> dict[str, str]:
    """Meson options of the caller: pip install . --config-settings=setup-args=-DNAME=VALUE."""
    given = (settings or {}).get("setup-args", [])
    given = [given] if isinstance(given, str) else given
    return dict(arg[2:].split("=", 1) for arg in given if arg.startswith("-D") and "=" in arg)


def _with(settings: Settings | None, arg: str) -> Settings:
    """The settings and one more argument of meson setup."""
    given = (settings or {}).get("setup-args", [])
    given = [given] if isinstance(given, str) else list(given)
    return {**(settings or {}), "setup-args": [*given, arg]}


def _wants_kernel(settings: Settings | None) -> bool:
    return _options(settings).get("cuda") != "disabled"


def _has_toolkit(settings: Settings | None) -> bool:
    """Whether meson.build finds cuda.h and nvcc, or was told where to look."""
    options = _options(settings)
    root = Path(options.get("toolkit", "/usr/local/cuda"))
    places = (root / "include", root / "targets/x86_64-linux/include", Path("/usr/include"))
    nvcc = (root / "bin/nvcc").exists() or shutil.which("nvcc") is not None
    return "toolkit" in options or (nvcc and any((place / "cuda.h").exists() for place in places))


def _toolkit_from_pypi() -> Path:
    """Where the packages CUDA lie; pip installed them for this build alone."""
    for path in sys.path:
        for nvcc in Path(path).glob("nvidia/cu*/bin/nvcc"):
            return nvcc.parent.parent
    raise SystemExit(
        "orbitkv: there is no CUDA toolkit for the copy kernel. Install " + ", ".join(CUDA) + ", "
        "or say where one is (--config-settings=setup-args=-Dtoolkit=DIR), or build for hosts "
        "without GPUs (--config-settings=setup-args=-Dcuda=disabled)."
    )


def _preprocesses(compiler: list[str], header: str) -> bool:
    done = subprocess.run(
        [*compiler, "-E", "-"],
        input=f"#include <{header}>\n",
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return done.returncode == 0


def _check_host(settings: Settings | None) -> None:
    """End with one message if something is missing that pip cannot install."""
    compiler = os.environ.get("CC", "cc").split()
    missing = {}
    if shutil.which(compiler[0]):
        for header, package in HEADERS.items():
            if not _preprocesses([*compiler, "-x", "c"], header):
                missing[header] = package
    else:
        missing["a C compiler"] = "gcc"
        missing["headers of libraries"] = " ".join(HEADERS.values())
    if not shutil.which("pkg-config"):
        missing["pkg-config"] = "pkgconf"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        missing["Python.h"] = "python3-dev"
    if _wants_kernel(settings) and not (
        shutil.which("gcc") and _preprocesses(["gcc", "-x", "c++"], "cstdlib")
    ):
        missing["a C++ compiler for nvcc"] = "g++"
    if missing:
        raise SystemExit(
            f"orbitkv: the build lacks {', '.join(missing)}. On Debian and Ubuntu:\n"
            f"  apt-get install --no-install-recommends {' '.join(missing.values())}"
        )


def get_requires_for_build_wheel(config_settings: Settings | None = None) -> list[str]:
    _check_host(config_settings)
    requires: list[str] = mesonpy.get_requires_for_build_wheel(config_settings)
    if _wants_kernel(config_settings) and not _has_toolkit(config_settings):
        requires += CUDA
    return requires


def build_sdist(sdist_directory: str, config_settings: Settings | None = None) -> str:
    # The sources are the same with and without a toolkit.
    name: str = mesonpy.build_sdist(sdist_directory, _with(config_settings, "-Dcuda=disabled"))
    return name


def build_wheel(
    wheel_directory: str,
    config_settings: Settings | None = None,
    metadata_directory: str | None = None,
) -> str:
    _check_host(config_settings)
    settings = config_settings
    if _wants_kernel(settings) and not _has_toolkit(settings):
        settings = _with(settings, f"-Dtoolkit={_toolkit_from_pypi()}")
    name = mesonpy.build_wheel(wheel_directory, settings, metadata_directory)
    # meson-python tags for the Python that builds; python/meson.build compiles for 3.9 and later.
    tagged = subprocess.run(
        [sys.executable, "-m", "wheel", "tags", "--remove", "--python-tag=cp39", name],
        cwd=wheel_directory,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return tagged.stdout.split()[-1]
