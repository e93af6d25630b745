"""What a commit says about itself: message, step, metrics, meta, author and time, checked before anything is read."""

from __future__ import annotations

import datetime
import math
import numbers
import os
import pwd
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deltavc import canonical
from deltavc.errors import BadMetadata
from deltavc.lineage.records import MAX_METRIC_NAME
from deltavc.version import metric_json

MAX_MESSAGE = 1 << 20
TIME_FORMAT = "%Y-%m-%dT%H:%M:%S.%fZ"


@dataclass(frozen=True, slots=True)
class Metadata:
    """Checked, in the form in which a version stores it."""

    message: str
    step: int | None
    metrics: dict[str, float | str]
    meta: dict[str, Any]
    author: str
    time: str

    @classmethod
    def of(
        cls,
        message: str = "",
        step: int | None = None,
        metrics: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
        author: str | None = None,
    ) -> Metadata:
        """Check what a caller says. Anything that float() takes is a metric, one-element tensors included.

        Raises:
            BadMetadata: names the field and what is wrong with it.
        """
        if not isinstance(message, str) or len(message) > MAX_MESSAGE:
            raise BadMetadata("message", f"not a string of at most {MAX_MESSAGE} characters")
        if author is not None and not isinstance(author, str):
            raise BadMetadata("author", f"a {type(author).__name__} is not a string")
        for field, given in (("metrics", metrics), ("meta", meta)):
            if given is not None and not isinstance(given, Mapping):
                raise BadMetadata(field, f"a {type(given).__name__} is not a mapping")
        facts = dict(meta or {})
        canonical.check_nesting(facts, "meta")
        found = cls(
            message=message,
            step=None if step is None else _step(step),
            metrics={_name(name): _metric(name, value) for name, value in (metrics or {}).items()},
            # A copy all through: the caller may change what is in it while the commit is on its way.
            meta=canonical.loads(canonical.dumps(facts, "meta")),
            author=author or default_author(),
            time=now(),
        )
        canonical.dumps([found.message, found.author, found.metrics], "message, author or metric name")
        return found


def default_author() -> str:
    """user@host of this process."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a user id without an entry, as in many containers
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def now() -> str:
    """The time in the form that records hold."""
    return datetime.datetime.now(datetime.UTC).strftime(TIME_FORMAT)


def _step(step: Any) -> int:
    if isinstance(step, bool) or not isinstance(step, numbers.Integral) or abs(int(step)) > canonical.MAX_INTEGER:
        raise BadMetadata("step", f"{step!r} is not an integer within 2**53")
    return int(step)


def _name(name: Any) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_METRIC_NAME:
        raise BadMetadata("metrics", f"{str(name)[:60]!r} is not a name of 1 to {MAX_METRIC_NAME} characters")
    return name


def _metric(name: str, value: Any) -> float | str:
    try:
        number = float(value.item() if hasattr(value, "item") else value)  # float(loss) warns where loss has a gradient
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise BadMetadata(f"metric {name!r}", f"{str(value)[:60]!r} is not a number") from error
    return metric_json(math.nan if number != number else number)
