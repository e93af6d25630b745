"""deltavc copy: branches and tags with their history, from one repository to another."""

from __future__ import annotations

from dataclasses import replace

import click

from .options import Settings, pass_output
from .output import Output


@click.command()
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@click.argument("refs", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Only say what would be copied.")
@pass_output
def copy(settings: Settings, out: Output, source: str, target: str, refs: tuple[str, ...], dry_run: bool) -> None:
    """Copy branches and tags, or REFS of them, from repository SRC to DST.

    Both are URLs as --repo takes them; no databases are needed. DST is made if nothing is there. Versions keep their
    ids. Every object is checked on its way, and refs move when all that they lead to is there, so it may be run again:
    after Ctrl-C it goes on, and later it takes what is new. A branch that went another way in DST is left alone.

    \b
    Example:
      deltavc copy runs/demo s3://bucket/demo
      deltavc copy s3://bucket/demo runs/mine main v1
    """
    import deltavc
    from deltavc.errors import NotARepository

    options = settings.storage_options
    with deltavc.open(source, "none", options) as one:
        try:
            other = deltavc.open(target, "none", options)
        except NotARepository:
            place = "memory://what-would-be-copied" if dry_run else target
            other = deltavc.init(place, "none", options)
        if one.url == other.url:
            raise click.UsageError(f"SRC and DST are one repository, {one.url}")
        with other, out.steps() as progress:
            done = deltavc.copy(one, other, refs or None, dry_run=dry_run, progress=progress)
    out.copied(replace(done, url=target) if dry_run else done)
