"""deltavc follow: keep a directory at the newest version, and tell somebody after each move."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import click

from .failures import FAILED
from .options import pass_repo, seconds
from .output import Output
from .shell import run_for

if TYPE_CHECKING:
    from deltavc.following import Keep, Moved
    from deltavc.repo import Repo

log = logging.getLogger(__name__)


@click.command()
@click.argument("ref")
@click.option("--into", "directory", required=True, metavar="DIR", help="New, empty, or followed into before.")
@click.option("--every", callback=seconds, default="2s", show_default=True, metavar="TIME", help="How often to look.")
@click.option("--once", is_flag=True, help="Move to the newest version and end.")
@click.option("--run", metavar="CMD", help="Shell command after each move; {version}, {step}, {path} are filled in.")
@click.option(
    "--keep",
    type=click.Choice(["host", "disk"]),
    default="host",
    show_default=True,
    help="Where the last version is kept: in main memory, or in temporary files.",
)
@pass_repo
def follow(
    repo: Repo, out: Output, ref: str, directory: str, every: float, once: bool, run: str | None, keep: Keep
) -> None:
    """Keep DIR at the newest version of REF.

    For engines that load weights from disk. DIR gets .safetensors files laid out as they were committed, the version's
    other files, and VERSION, which says what they are; while MOVING is there, they are being replaced. A move costs a
    delta, is proven before anything is written, and writes only files that differ. CMD also finds DELTAVC_VERSION,
    DELTAVC_STEP and DELTAVC_PATH in its environment; one that failed is not run again before the next move. A store or
    database that is away is waited for, unless --once.

    \b
    Example:
      deltavc follow main --into serving --run 'curl -sf -X POST localhost:8000/reload'
    """
    with repo.follow(ref, directory, every=every, keep=keep) as follower:
        if once:
            with out.progress(f"moving {directory} to {ref}"):
                moved = follower.move()
            if moved is None:
                out.note(f"{directory} is at {(follower.version or '')[:12]} already")
            elif not _tell(out, moved, run):
                click.get_current_context().exit(FAILED)
            return
        out.note(f"following {ref} into {directory}; Ctrl-C ends it")
        for moved in follower:
            _tell(out, moved, run)


def _tell(out: Output, moved: Moved, run: str | None) -> bool:
    """Print a move and run the command for it; whether that ended well."""
    out.followed(moved)
    if run is None:
        return True
    code = run_for(run, moved.version, moved.step, moved.path)
    if code:
        log.error("the command for %s ended with exit code %d", moved.version[:12], code)
    return code == 0
