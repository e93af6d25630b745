"""Where a search for the first bad version stands, and what it found: as text and as JSON. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import texts
from .texts import SHORT, plain, share

if TYPE_CHECKING:
    from deltavc.bisect.marks import Marks
    from deltavc.bisect.result import Bisection
    from deltavc.bisect.search import Try
    from deltavc.version import Version

SHOWN = 5
"""Tensors that changed most, and how many of them people are shown."""


@dataclass(frozen=True, slots=True)
class Trying:
    """A version that is to be tried.

    num_unkept: how many suspects have no weights. directory: where it is, if it was put somewhere.
    """

    choice: Try
    version: Version
    num_suspects: int
    num_unkept: int
    directory: str | None

    def as_json(self) -> dict[str, Any]:
        """A JSON-able form."""
        return {
            "status": "trying",
            "version": self.version.as_json(),
            "merge_base": self.choice.merge_base,
            "num_left": self.choice.num_left,
            "num_steps": self.choice.num_steps,
            "num_suspects": self.num_suspects,
            "num_without_weights": self.num_unkept,
            "directory": self.directory,
        }


def waiting_json(marks: Marks) -> dict[str, Any]:
    """A search that lacks marks."""
    return {"status": "waiting", "bad": marks.bad, "good": marks.good}


def waiting(marks: Marks) -> str:
    """What a search lacks."""
    if marks.bad is None:
        good = len(marks.good)
        known = f", {good} good {'version' if good == 1 else 'versions'} known" if good else ""
        return f"waiting for {'a bad version' if good else 'a good and a bad version'}{known}"
    return "waiting for a good version, bad version known"


def trying(found: Trying) -> Iterator[str]:
    """What is to be tried next."""
    choice = found.choice
    if choice.merge_base:
        yield "Bisecting: a version from where a good one forked has to be tried first"
    else:
        left, steps = _count(choice.num_left, "version"), _count(choice.num_steps, "step")
        yield f"Bisecting: {left} left to test after this (roughly {steps})"
    where = f"  in {plain(found.directory)}" if found.directory is not None else ""
    yield f"{texts.brief(found.version)}{where}"


def evaluated(version: Version, verdict: str, moved: str) -> str:
    """A version that was tried."""
    step = f" step {version.step}" if version.step is not None else ""
    return f"{version.short_id}{step} is {'skipped' if verdict == 'skip' else verdict}: {moved}"


def concluded_json(found: Bisection, rollback: str | None) -> dict[str, Any]:
    """What a search found, and the command that goes back to before it."""
    status = "undecided" if found.first_bad is None else "found"
    return {"status": status, **found.as_json(), "rollback": rollback}


def concluded(found: Bisection, rollback: str | None, names: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """What a search found, and the command that goes back to before it."""
    if found.first_bad is None:
        yield "There are only versions left that were skipped, or have no weights."
        yield "The first bad version could be any of:"
        yield from (f"  {texts.brief(version)}" for version in found.suspects)
        return
    yield f"{found.first_bad.id} is the first bad version"
    *block, _ = texts.log([found.first_bad], names, oneline=False, graph=False)
    yield from block
    if found.changed is not None and found.before is not None:
        yield ""
        yield from _changed(found, found.before)
    if rollback is not None:
        yield ""
        yield "To go back to before it:"
        yield f"  {rollback}"


def rollback_command(branch: str, to: Version, first_bad: Version, repo: str | None) -> str:
    """The command that moves a branch back to before the first bad version."""
    bad = f"step {first_bad.step}" if first_bad.step is not None else first_bad.short_id
    where = [] if repo is None else ["--repo", repo]
    return shlex.join(
        ["deltavc", *where, "rollback", branch, "--to", to.id[:SHORT], "--reason", f"{bad} is the first bad one"]
    )


def _changed(found: Bisection, before: Version) -> Iterator[str]:
    from deltavc.bisect.result import most_changed

    assert found.changed is not None
    tensors = most_changed(found.changed)
    yield f"What changed most, from {texts.brief(before)}:"
    rows = [
        [
            f"  {plain(tensor.name)}",
            share(tensor.changed_elements, tensor.num_elements) if tensor.status == "changed" else tensor.status,
            f"{tensor.largest_step:,} ulp" if tensor.largest_step else "",
        ]
        for tensor in tensors[:SHOWN]
    ]
    yield from texts.table(["  tensor", "changed", "largest step"], rows, right=(1, 2))
    if len(tensors) > SHOWN:
        yield f"  and {_count(len(tensors) - SHOWN, 'other tensor')}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"
