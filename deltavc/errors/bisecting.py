"""Errors of a search for the first bad version."""

from __future__ import annotations

from dataclasses import dataclass

from deltavc.errors.base import DeltavcError


class BisectError(DeltavcError):
    """A search for the first bad version that cannot go on like this."""


@dataclass(eq=False)
class NotBisecting(BisectError):
    """No search is on its way, or it lacks a bad or a good version."""

    reason: str

    kind = "not_bisecting"
    hint = (
        "Begin with `deltavc bisect start BAD GOOD`, say `deltavc bisect start main step:0`; of a search that is on "
        "its way, name the one that is missing with `deltavc bisect bad REF` or `deltavc bisect good REF`."
    )

    def __str__(self) -> str:
        return self.reason


@dataclass(eq=False)
class MarksContradict(BisectError):
    """A version was marked good that has the bad one among its ancestors."""

    good: str
    bad: str

    kind = "marks_contradict"
    hint = (
        "Nothing was marked. If good and bad were mixed up, start anew with the newer one as BAD; a wrong mark is put "
        "right by marking its version again (`deltavc bisect log` lists them)."
    )

    def __str__(self) -> str:
        if self.good == self.bad:
            return f"version {self.good} cannot be good and bad"
        return f"good version {self.good} comes after bad version {self.bad}, and everything after a bad one is bad"


@dataclass(eq=False)
class BadMergeBase(BisectError):
    """The version that a good one and the bad one both come from is bad: what was bad is good again in the good one."""

    merge_base: str
    good: tuple[str, ...]

    kind = "bad_merge_base"
    exit_code = 3
    hint = "There is no first bad version between them. Start anew, with a good version that the bad one comes from."

    def __str__(self) -> str:
        names = ", ".join(self.good)
        return f"{self.merge_base}, from where {names} forked, is bad: it was put right on the way to {names}"


@dataclass(eq=False)
class EvaluationFailed(BisectError):
    """The command that tells good from bad ended in a way that tells neither."""

    version: str
    exit_code_of_command: int
    reason: str

    kind = "evaluation_failed"
    hint = "Nothing was marked. Run the command by hand, then `deltavc bisect run` again: it goes on from here."

    def __str__(self) -> str:
        return f"the command ended with {self.exit_code_of_command} for version {self.version}: {self.reason}"


@dataclass(eq=False)
class BadJournal(BisectError):
    """The file that keeps a search, or a log that is to be replayed, is not what deltavc wrote."""

    path: str
    reason: str

    kind = "bad_journal"
    hint = "`deltavc bisect reset` ends a search whose file is damaged. A log is what `deltavc bisect log` prints."

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"
