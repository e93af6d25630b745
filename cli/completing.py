"""What a shell offers where a REF is to be typed: branches and tags, as the local database knows them.

Nothing is asked of a network, and nothing said when something goes wrong: a shell is waiting.
"""

from __future__ import annotations

from contextlib import suppress

import click
from click.shell_completion import CompletionItem

from . import config
from .options import Settings

_TAKE_REFS = {"a", "against", "at", "b", "bad", "base", "branch", "good", "ref", "refs", "to", "what"}
"""Names of arguments and options, in whatever command, that take a ref."""


class Ref(click.types.StringParamType):
    """Text that names a version."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Branches and tags that begin like this; after `..` those of the other end."""
        before, dots, begun = incomplete.rpartition("..")
        return [CompletionItem(before + dots + name) for name in _names(ctx) if name.startswith(begun)]


def offer_refs(command: click.Command) -> None:
    """Let the parameters of a command that take refs complete them, in subcommands too."""
    if isinstance(command, click.Group):
        for each in command.commands.values():
            offer_refs(each)
    for param in command.params:
        if param.name in _TAKE_REFS and param.type is click.STRING:
            param.type = Ref()


def _names(ctx: click.Context) -> list[str]:
    import deltavc
    from deltavc.store.urls import locate

    with suppress(Exception):
        place = config.locate(ctx.find_object(Settings) or Settings())
        if locate(place.repo).scheme == "file" and (place.db or "sqlite").startswith("sqlite"):
            with deltavc.open(place.repo, place.db) as repo:
                found = {ref.partition("/")[2] for refs in repo.names().values() for ref in refs}
            return sorted(found)
    return []
