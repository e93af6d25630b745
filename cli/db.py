"""deltavc db: look after the index database."""

from __future__ import annotations

import click

from .options import Settings, pass_output
from .output import Output


@click.group()
def db() -> None:
    """Look after the index database."""


@db.command()
@pass_output
def upgrade(settings: Settings, out: Output) -> None:
    """Bring the database's schema to the one that this release needs.

    \b
    Example:
      deltavc db upgrade --db postgresql://me@host/lineage
    """
    from deltavc.opening import upgrade_database

    from .config import locate

    place = locate(settings)
    with out.progress("upgrading the database"):
        before, after = upgrade_database(place.repo, place.db, place.storage_options)
    out.upgraded(before, after)
