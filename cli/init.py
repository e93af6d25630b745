"""deltavc init: make a repository, and a config.toml that leads to it."""

from __future__ import annotations

import os
from pathlib import Path

import click

from .options import Settings, pass_output
from .output import Output


@click.command()
@click.argument("url")
@click.option("--no-config", is_flag=True, help="Write no .deltavc/config.toml; commands then take --repo.")
@pass_output
def init(settings: Settings, out: Output, url: str, no_config: bool) -> None:
    """Make a repository at URL.

    URL is a local path, file:///path or s3://bucket/prefix. Name a database for a remote repository with --db, unless
    it will do without: then steps, metrics and logs cannot be asked for.
    Writes .deltavc/config.toml here, so that commands in this folder and below find the repository.

    \b
    Example:
      deltavc init runs/demo
      deltavc init s3://bucket/run-7 --db postgresql://me@host/lineage
    """
    import deltavc

    from . import config

    folder = Path.cwd()
    if (folder / config.FILE).exists() and not no_config:
        named = config.read(folder).repo
        raise click.UsageError(
            f"{folder / config.FILE} is there already, and names {named}: "
            "--no-config leaves it so, another folder gets its own"
        )
    if url.startswith("memory:"):
        raise click.UsageError("a memory:// repository would end with this command")
    place = config.Place(url, settings.db or os.environ.get("DELTAVC_DB") or None, settings.storage_options)
    with deltavc.init(place.repo, place.db, place.storage_options) as repo:
        left_out: list[str] = []
        try:
            if not no_config:
                left_out = config.write(folder, place)
        except OSError as error:
            why = f"{error.filename} cannot be written ({error.strerror})"
            raise click.ClickException(f"{repo.url} is made, but {why}; name it by --repo or DELTAVC_REPO") from error
        out.initialized(repo.url, repo.database, None if no_config else str(config.FILE))
    for what in left_out:
        out.note(f"not written to {config.FILE}: {what}; the environment has to hold it from now on")
