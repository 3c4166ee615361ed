"""Which units keep to torch's stable ABI, so that their library loads on another release too."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

TORCH_TARGET = "-DTORCH_TARGET_VERSION=0x020b000000000000"
"""The stable ABI of torch 2.11: a library built with newer headers then still loads there.

With it torch's other headers refuse to be included, so units that include those go without.
"""

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^">\n]+)[">]', re.MULTILINE)
_UNSTABLE_HEADER = re.compile(
    r"(?:ATen|c10|caffe2)/|torch/(?!csrc/stable/|headeronly/|csrc/inductor/aoti_torch/)"
)


def is_stable(source: str, files: Mapping[str, bytes]) -> bool:
    """Say whether a unit keeps to torch's stable headers, its own headers followed.

    Every ``#include`` counts, also one that the preprocessor would skip: the wrong answer of that kind
    only costs the library's loading on an older torch, never its compiling.
    """
    waiting, seen = [source], {source}
    while waiting:
        name = waiting.pop()
        for bracket, header in _INCLUDE.findall(files[name].decode("utf-8", "replace")):
            if _UNSTABLE_HEADER.match(header):
                return False
            neighbour = os.path.normpath(os.path.join(os.path.dirname(name), header))
            if bracket == '"' and neighbour in files and neighbour not in seen:
                seen.add(neighbour)
                waiting.append(neighbour)
    return True
