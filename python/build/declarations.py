# SPDX-License-Identifier: Apache-2.0
"""Write the source of the extension module orbitkv._okv.

Usage: declarations.py INCLUDE_DIR HOLD_H OUT_C

The declarations are those of the public headers, in the order in which orbitkv.h includes them.
Nothing is declared a second time here, so nothing can drift: a type that cffi cannot read ends the
build, and the C compiler checks every number, size and signature again.
"""

import re
import sys
from pathlib import Path

import cffi

# What cffi cannot know, as the headers' own includes are not read.
SYSTEM_TYPES = "typedef int... uid_t;\n"

# The counter by which Python sees how long the library uses an object: hold.h.
HOLD = """
struct okv_py_hold;
struct okv_py_hold *okv_py_hold_new(void);
int okv_py_hold_is_used(const struct okv_py_hold *hold);
void okv_py_hold_drop(struct okv_py_hold *hold);
void okv_py_hold_set(struct okv_owner *owner, struct okv_py_hold *hold);
"""


def read_headers(include: Path) -> str:
    """The public headers one after another, as orbitkv.h includes them."""
    names = re.findall(r"#include <(orbitkv/\w+\.h)>", (include / "orbitkv/orbitkv.h").read_text())
    return "\n".join((include / name).read_text() for name in names)


def declarations(text: str) -> str:
    """What cffi reads: no comments, no includes, no C++, numbers of macros kept."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = text.replace("\\\n", " ")
    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", text, flags=re.S)
    kept = []
    for line in text.splitlines():
        number = re.match(r"\s*#\s*define\s+(OKV_\w+)\s+(0x[0-9a-fA-F]+|\d+)[uUlL]*\s*$", line)
        if number:
            kept.append(f"#define {number[1]} {number[2]}")
        elif not line.lstrip().startswith("#"):
            kept.append(re.sub(r"\bOKV_EXPORT\b", "", line))
    return "\n".join(kept)


def main() -> None:
    include, hold_header, out = map(Path, sys.argv[1:])
    builder = cffi.FFI()
    builder.cdef(SYSTEM_TYPES + declarations(read_headers(include)) + HOLD)
    builder.set_source(
        "orbitkv._okv",
        f"#include <orbitkv/orbitkv.h>\n{hold_header.read_text()}",
        py_limited_api=True,
    )
    builder.emit_c_code(str(out))


if __name__ == "__main__":
    main()
