"""Fields of stored records, read strictly: each of these returns a value of the form asked for or raises ValueError."""

from __future__ import annotations

import datetime
import re
from typing import Any, TypeVar

from deltavc import canonical
from deltavc.errors import BadPayload

_T = TypeVar("_T")

ID = re.compile(r"[0-9a-f]{64}")
"""The BLAKE3 of something."""

U64 = re.compile(r"[0-9a-f]{16}")
RANDOM = re.compile(r"[0-9a-f]{32}")
FILE = re.compile(r"[0-9a-f]{64}-[0-9a-f]{32}")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")


def json_object(body: bytes, what: str) -> dict[str, Any]:
    """The members of a JSON object. Raises BadPayload, naming `what` it should be."""
    item = canonical.loads(body)
    if not isinstance(item, dict):
        raise BadPayload(f"not a {what}: not a JSON object")
    return item


def typed(kind: type[_T], value: Any) -> _T:
    if type(value) is not kind:
        raise ValueError(f"{str(value)[:40]!r} is not a {kind.__name__}")
    return value


def text(value: Any) -> str:
    return typed(str, value)


def items(value: Any) -> list[Any]:
    return typed(list, value)


def members(value: Any) -> dict[str, Any]:
    return typed(dict, value)


def integer(value: Any, low: int = 0) -> int:
    if type(value) is not int or not low <= value <= canonical.MAX_INTEGER:
        raise ValueError(f"{str(value)[:40]!r} is not an integer of at least {low}")
    return value


def match(pattern: re.Pattern[str], value: Any) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(f"{str(value)[:80]!r} does not have the form {pattern.pattern}")
    return value


def one_of(value: Any, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ValueError(f"{str(value)[:40]!r} is none of {', '.join(allowed)}")
    return str(value)


def now() -> str:
    """This moment, by this machine's clock, as records keep times."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def moment(value: Any) -> str:
    """A time as records write it, which has been or will be: not one in a thirteenth month."""
    found = match(_TIME, value)
    datetime.datetime.fromisoformat(found)
    return found
