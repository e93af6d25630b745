"""Canonical JSON and content names: one value, one spelling, one id.

Everything that is named by its content is canonical JSON (RFC 8785) or raw bytes, named by BLAKE3.

    body = dumps({"b": 1, "a": "x"})      # b'{"a":"x","b":1}'
    content_id(body)                      # 64 hex digits
"""

from __future__ import annotations

import json
from typing import Any

import rfc8785
from blake3 import blake3

from deltavc.errors import BadMetadata, BadPayload

MAX_INTEGER = 2**53 - 1
"""Integers beyond this have no single spelling in RFC 8785."""

MAX_BYTES = 32 << 20
"""Bytes of any JSON that is written or read; a layout or an edge of 250,000 tensors takes so many."""

MAX_CONTAINERS = 2_000_000
"""Lists and objects in it, which in memory take twenty times their bytes and more. Brackets in texts count too."""

MAX_NESTING = 100
"""Levels of lists and objects in what users give; parsers in every language read that many."""


def dumps(value: Any, field: str = "metadata") -> bytes:
    """Return `value` as canonical JSON.

    Args:
        value: None, bool, int, float, str, and lists, tuples and string-keyed dicts of them.
        field: what to call it if it cannot be written.

    Raises:
        BadMetadata: NaN, infinities, integers beyond 2**53, lone surrogates, other types; more than MAX_BYTES or
            MAX_CONTAINERS, which no reader would read.
    """
    try:
        body = rfc8785.dumps(value)
        if (fault := _size_fault(len(body), body.count(b"[") + body.count(b"{"))) is not None:
            raise BadMetadata(field, fault)
        return body
    except (rfc8785.CanonicalizationError, UnicodeEncodeError, RecursionError) as error:
        raise BadMetadata(field, str(error) or type(error).__name__) from error


def check_nesting(value: Any, field: str) -> None:
    """Refuse a value that some readers could not parse again.

    Raises:
        BadMetadata: lists and dicts of more than MAX_NESTING levels.
    """
    level = [value]
    for _ in range(MAX_NESTING + 1):
        outer = [item for item in level if isinstance(item, dict | list | tuple)]
        if not outer:
            return
        level = [inner for item in outer for inner in (item.values() if isinstance(item, dict) else item)]
    raise BadMetadata(field, f"it is nested more than {MAX_NESTING} levels deep")


def loads(body: bytes | bytearray | memoryview) -> Any:
    """Parse JSON that came from outside.

    Raises:
        BadPayload: not UTF-8, not JSON, a key twice, NaN or infinities, nested too deeply; more than MAX_BYTES or
            MAX_CONTAINERS, before it is parsed.
    """
    try:
        if len(body) > MAX_BYTES:
            raise BadPayload(f"more than {MAX_BYTES} bytes of JSON")
        text = str(body, "utf-8")
        if (fault := _size_fault(len(body), text.count("[") + text.count("{"))) is not None:
            raise BadPayload(fault)
        return json.loads(text, object_pairs_hook=_unique, parse_int=_integer, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadPayload(f"not JSON: {error}") from error


def sealed(item: dict[str, Any], field: str = "metadata") -> bytes:
    """An object that is not named by its content, as canonical JSON with its own `checksum` in it.

    The checksum is the BLAKE3 of the canonical JSON without it, cut to 32 hex digits.

    Raises:
        BadMetadata: as `dumps`.
    """
    return dumps(item | {"checksum": content_id(dumps(item, field))[:32]}, field)


def unsealed(body: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Read what `sealed` wrote.

    Raises:
        BadPayload: not such an object, or not the one that was written.
    """
    item = loads(body)
    if not isinstance(item, dict):
        raise BadPayload("not a JSON object")
    found = item.pop("checksum", None)
    try:
        expected = content_id(dumps(item))[:32]
    except BadMetadata as error:
        raise BadPayload(f"not canonical JSON: {error.reason}") from error
    if found != expected:
        raise BadPayload("it does not have its checksum")
    return item


def content_id(body: bytes | bytearray | memoryview) -> str:
    """The BLAKE3 of these bytes as 64 hex digits."""
    return blake3(body).hexdigest()


def _size_fault(nbytes: int, num_containers: int) -> str | None:
    if nbytes > MAX_BYTES:
        return f"it takes {nbytes} bytes as JSON; at most {MAX_BYTES} are read"
    if num_containers > MAX_CONTAINERS:
        return f"it has {num_containers} lists and objects; at most {MAX_CONTAINERS} are read"
    return None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice")
    return found


def _integer(digits: str) -> int | float:
    """RFC 8785 spells 1e20 as 100000000000000000000: beyond MAX_INTEGER, whole numbers were floats."""
    value = int(digits)
    return value if abs(value) <= MAX_INTEGER else float(digits)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
