"""deltavc policy: which versions keep their weights."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from .options import pairs, pass_repo
from .output import Output

if TYPE_CHECKING:
    from deltavc.repo import Repo


def _counts(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, int]:
    found = pairs("metric")(ctx, param, given)
    try:
        return {name: int(number) for name, number in found.items()}
    except ValueError as error:
        raise click.BadParameter("write METRIC=NUMBER, such as reward=3", ctx, param) from error


def _seconds(ctx: click.Context, param: click.Parameter, given: str | None) -> int | None:
    from deltavc.durations import duration

    if given is None:
        return None
    try:
        seconds = duration(given).total_seconds()
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error
    if seconds < 1 or seconds != int(seconds):
        raise click.BadParameter("a grace is a whole number of seconds, at least one", ctx, param)
    return int(seconds)


_number = click.IntRange(min=0)
_SHORT_GRACE = 3600  # seconds; uploads of a large model may take half of that


@click.command()
@click.option("--keep-last", type=_number, metavar="N", help="The last N versions of every branch.")
@click.option("--keep-every", type=_number, metavar="N", help="Versions of branches whose step is a multiple of N.")
@click.option(
    "--keep-best",
    multiple=True,
    callback=_counts,
    metavar="METRIC=N",
    help="The N versions of every branch where a metric is best. May be repeated.",
)
@click.option("--keep-days", type=_number, metavar="N", help="All versions of the last N days.")
@click.option("--keep-tagged/--no-keep-tagged", default=None, help="Versions that tags are at. They are by default.")
@click.option("--grace", callback=_seconds, metavar="TIME", help="How long what nothing needs stays: 24h, 14d.")
@click.option("--reset", is_flag=True, help="Forget all rules that are not given: every version is kept.")
@click.option("--reason", default="", help="Why; kept with the policy.")
@pass_repo
def policy(
    repo: Repo,
    out: Output,
    keep_last: int | None,
    keep_every: int | None,
    keep_best: dict[str, int],
    keep_days: int | None,
    keep_tagged: bool | None,
    grace: int | None,
    reset: bool,
    reason: str,
) -> None:
    """Show, or set, which versions keep their weights.

    What any rule keeps is kept; a rule that is not given stays as it is, and 0 ends one. The versions that branches
    are at are always kept. Setting a policy drops nothing: `deltavc expire` applies it.

    The grace is twice as long as a commit may take from its first upload to its end. Writers follow a new one from
    their next commit on.

    \b
    Example:
      deltavc policy --keep-last 50 --keep-every 100 --keep-best reward=3
    """
    from deltavc.durations import in_words
    from deltavc.lineage.settings import Policy

    before = Policy() if reset else repo.policy()
    counts = {"keep_last": keep_last, "keep_every": keep_every, "keep_days": keep_days}
    given: dict[str, Any] = {name: number or None for name, number in counts.items() if number is not None}
    given |= {} if keep_tagged is None else {"keep_tagged": keep_tagged}
    given |= {} if grace is None else {"grace_seconds": grace}
    if keep_best:
        given["keep_best"] = {name: number for name, number in {**before.keep_best, **keep_best}.items() if number}
    found = replace(before, **given)
    if given or reset:
        repo.set_policy(found, reason)
    out.policy(found)
    if grace is not None and grace < _SHORT_GRACE:
        out.note(f"from now on a commit that takes longer than {in_words(grace / 2)} is refused")
