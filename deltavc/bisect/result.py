"""What a search found: the first bad version, what led to it, and what changed in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deltavc.bisect.marks import Verdict
from deltavc.version import Version

if TYPE_CHECKING:
    from deltavc.diff import Diff, TensorDiff


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A version that was tried.

    move_seconds: bringing its weights there. seconds: what the test of them took.
    """

    version: Version
    verdict: Verdict
    move_seconds: float
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """A JSON-able form, as `--json` prints it."""
        return {
            "version": self.version.id,
            "step": self.version.step,
            "verdict": self.verdict,
            "move_seconds": self.move_seconds,
            "seconds": self.seconds,
        }


@dataclass(frozen=True, slots=True)
class Bisection:
    """What a search found.

    first_bad: the first bad version; None if several were left that could not be told apart.
    suspects: those, each after its parents; or the first bad version alone.
    evaluations: the versions that were tried, in order.
    before: the version that the first bad one was made from; None if it was made from none.
    changed: how it differs from that; None if the weights of either are not kept, or there is no first bad version.
    """

    first_bad: Version | None
    suspects: tuple[Version, ...]
    evaluations: tuple[Evaluation, ...] = ()
    before: Version | None = None
    changed: Diff | None = None

    def as_json(self) -> dict[str, Any]:
        """A JSON-able form, as `--json` prints it."""
        return {
            "first_bad": None if self.first_bad is None else self.first_bad.as_json(),
            "suspects": [version.id for version in self.suspects],
            "evaluations": [each.as_json() for each in self.evaluations],
            "before": None if self.before is None else self.before.as_json(),
            "changed": None if self.changed is None else self.changed.as_json(),
        }


def most_changed(diff: Diff) -> Sequence[TensorDiff]:
    """The tensors that differ: first those with the largest share of elements that changed, then by largest step."""
    differ = [tensor for tensor in diff.tensors if tensor.status != "same"]
    return sorted(differ, key=lambda tensor: (-tensor.density, -tensor.largest_step, tensor.name))
