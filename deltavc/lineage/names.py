"""Names of branches and tags: what they may look like, and their full names in the bucket.

A name must never read as something else that a ref can be (an id prefix, `main~3`, `step:12`, `a..b`),
and must survive shells and file systems. The rules are those of `git check-ref-format`, and a few more.

    branch_ref("main")  ->  "branches/main"        tag_ref("v1")  ->  "tags/v1"
"""

from __future__ import annotations

import re

from deltavc.errors import BadRefName

BRANCHES = "branches/"
TAGS = "tags/"
SETTINGS = "settings"
"""Full name of the ref that the repository's settings move along."""

MAX_NAME = 200
"""Characters in a name."""

_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\]\\]")
_HEX = re.compile(r"[0-9a-fA-F]{4,}")


def branch_ref(name: str) -> str:
    """The full name of a branch. Raises BadRefName."""
    check_name(name)
    return BRANCHES + name


def tag_ref(name: str) -> str:
    """The full name of a tag. Raises BadRefName."""
    check_name(name)
    return TAGS + name


def check_name(name: str) -> None:
    """Raise BadRefName unless a branch or tag may have this name."""
    if not isinstance(name, str):
        raise BadRefName(repr(name)[:MAX_NAME], "it is not text")
    if not name or len(name) > MAX_NAME:
        raise BadRefName(name[:MAX_NAME], f"it has {len(name)} characters; 1 to {MAX_NAME} are allowed")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise BadRefName(repr(name), "it cannot be written as UTF-8") from error
    if found := _FORBIDDEN.search(name):
        raise BadRefName(name, f"it contains {found[0]!r}")
    if ".." in name or "@{" in name:
        raise BadRefName(name, "it contains '..' or '@{', which have a meaning in refs")
    for part in name.split("/"):
        if not part:
            raise BadRefName(name, "it has an empty part between slashes")
        if part.startswith((".", "-")) or part.endswith((".", ".lock")):
            raise BadRefName(name, "a part of it starts with '.' or '-', or ends with '.' or '.lock'")
    if name in ("@", "HEAD") or name.startswith((BRANCHES, TAGS)):
        raise BadRefName(name, "it is kept for other uses")
    if _HEX.fullmatch(name):
        raise BadRefName(name, "it reads as the beginning of a version's id")
