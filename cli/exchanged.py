"""What came in, went out and was carried over, as lines of text for people. Pure: values in, lines out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .texts import SHORT, nbytes, plain

if TYPE_CHECKING:
    from deltavc.interchange.copying import Copied
    from deltavc.interchange.export_deltas import Exported
    from deltavc.interchange.importing import Imported, Taken


def imported(done: Imported) -> Iterator[str]:
    """Checkpoints that became versions, or would."""
    for taken in done.checkpoints:
        yield f"step {taken.step}  {plain(taken.path)}  {_became(taken)}"
    there = len(done.checkpoints) - done.num_new
    new = f"{done.num_new:,} version{'s' * (done.num_new != 1)}"
    known = f", {there:,} there already" if there else ""
    if done.dry_run:
        yield f"{new} would be committed to {plain(done.branch)}{known}"
    else:
        yield f"{new} committed to {plain(done.branch)}, {nbytes(done.stored_bytes)} stored{known}"


def _became(taken: Taken) -> str:
    if taken.version is None:
        return "new"
    return f"{taken.version[:SHORT]}, {f'{nbytes(taken.stored_bytes)} stored' if taken.new else 'there already'}"


def exported(done: Exported) -> str:
    """A version that was written for other software."""
    files = f"{done.num_files:,} file{'s' * (done.num_files != 1)}, {nbytes(done.nbytes)}"
    return f"{done.version[:SHORT]} is in {plain(done.path)}, {files}{'' if done.new else ', as before'}"


def copied(done: Copied) -> Iterator[str]:
    """What was carried over to another repository, or would be."""
    for ref in done.refs:
        at = f"{plain(ref.name.partition('/')[2])} at {ref.version[:SHORT]}"
        yield at if ref.moved else f"{at}, as before"
    versions = f"{done.num_versions:,} version{'s' * (done.num_versions != 1)}"
    what = "would be copied" if done.dry_run else "copied"
    yield f"{versions} and {nbytes(done.nbytes)} in {done.num_objects:,} objects {what} to {plain(done.url)}"
