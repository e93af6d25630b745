"""Patterns: names of tensors, or patterns of names as in fnmatch."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Set

_GLOB = re.compile(r"[*?\[]")


def matching(pattern: str, names: Set[str]) -> set[str]:
    """The names that a pattern matches: itself, and what it matches as in fnmatch, letter case and all."""
    found = {pattern} & names
    if _GLOB.search(pattern):  # going through all names for each of thousands of plain names would take minutes
        found |= {name for name in names if fnmatch.fnmatchcase(name, pattern)}
    return found
