# SPDX-License-Identifier: Apache-2.0
# The extension module that python/build/declarations.py makes of the public headers.
from typing import Any

ffi: Any
lib: Any
