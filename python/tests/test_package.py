# SPDX-License-Identifier: Apache-2.0
"""The package as it is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest

import orbitkv
from orbitkv._okv import ffi, lib

SCRIPTS = Path(sysconfig.get_path("scripts"))


def test_every_source_is_installed() -> None:
    sources = Path(__file__).parent.parent / "orbitkv"
    installed = Path(orbitkv.__file__).parent
    assert installed != sources
    wanted = {path.relative_to(sources) for path in sources.rglob("*.py*") if path.suffix != ".pyc"}
    assert {path for path in wanted if not (installed / path).exists()} == set()
    assert (installed / "py.typed").exists()


@pytest.mark.parametrize("name", ["orbitkv-manager", "orbitkv-replay", "orbitkv-bench"])
def test_programs(name: str) -> None:
    for path in (orbitkv.program(name), SCRIPTS / name):
        said = subprocess.run([path, "--help"], capture_output=True, text=True, check=True)
        assert name in said.stdout


def test_no_such_program() -> None:
    with pytest.raises(FileNotFoundError):
        orbitkv.program("orbitkv-nothing")


def test_the_version_and_the_devices() -> None:
    version = lib.okv_version()
    numbers = f"{version >> 16}.{version >> 8 & 255}.{version & 255}"
    said = subprocess.run(
        [SCRIPTS / "orbitkv-manager", "--version"], capture_output=True, text=True, check=True
    )
    assert said.stdout == f"orbitkv-manager {numbers}\ndevices: {orbitkv.devices()}\n"
    # A wheel has the kernel, unless the one who built it said otherwise.
    if not os.environ.get("ORBITKV_TEST_HOST_ONLY"):
        assert orbitkv.devices() == "host, cuda (dma, kernel)"


def test_status_of_a_manager(manager: tuple[Path, Any]) -> None:
    said = subprocess.run(
        [SCRIPTS / "orbitkv-manager", "status", "--json", "--socket", manager[0]],
        capture_output=True,
        text=True,
        check=True,
    )
    status = orbitkv.manager_status(manager[0])
    assert json.loads(said.stdout)["bytes_total"] == status.bytes_total == 64 << 20


def test_the_default_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORBITKV_SOCKET", "/x/y")
    assert orbitkv.default_socket_path() == "/x/y"


@pytest.mark.parametrize(
    ("struct", "fields"),
    [
        ("okv_manager_status", orbitkv.ManagerStatus._fields),
        ("okv_engine_stats", orbitkv.EngineStats._fields),
        ("okv_stage_times", orbitkv.StageTimes._fields),
        ("okv_op_result", orbitkv.OpResult._fields),
    ],
)
def test_fields_are_those_of_the_headers(struct: str, fields: tuple[str, ...]) -> None:
    assert {name for name, _ in ffi.typeof(f"struct {struct}").fields} == set(fields)


def test_status_codes_are_those_of_the_headers() -> None:
    codes = ffi.typeof("enum okv_status").relements
    assert {f"OKV_E_{s.name}": int(s) for s in orbitkv.Status if s} == {
        name: number for name, number in codes.items() if number
    }
