# SPDX-License-Identifier: Apache-2.0
"""The build backend: meson-python."""

from mesonpy import (  # noqa: F401
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)
