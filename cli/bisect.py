"""deltavc bisect: which version was the first bad one?"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec

import click

from .bisect_search import Place, Search, folder_of
from .options import Settings, pass_repo
from .output import Output

if TYPE_CHECKING:
    from deltavc.repo import Repo

P = ParamSpec("P")


def pass_search(command: Callable[Concatenate[Search, P], None]) -> Callable[P, None]:
    """Open the repository, and call the command with the search that is on its way in this folder."""

    @functools.wraps(command)
    def run(repo: Repo, out: Output, /, *args: P.args, **kwargs: P.kwargs) -> None:
        settings = click.get_current_context().ensure_object(Settings)
        command(Search.of(repo, out, settings, folder_of(settings, repo)), *args, **kwargs)

    return pass_repo(run)


def _placed(command: Callable[P, None]) -> Callable[P, None]:
    """Add the options that say where versions are tried."""
    into = click.option("--into", "directory", metavar="DIR", help="Put each version that is to be tried into DIR.")
    leave_out = click.option(
        "--leave-out", multiple=True, metavar="NAME", help="But not the kept files of this name, such as 'optimizer*'."
    )
    return into(leave_out(command))


@click.group()
def bisect() -> None:
    """Find the version at which something went bad.

    Exit codes are git's: 0 when it is found or there is one to try, 2 when only versions are left that were skipped or
    have no weights, 3 when a good version forked from what was bad already.

    \b
    Example:
      deltavc bisect start main step:100
      deltavc bisect run './evaluate.sh {path}'
      deltavc bisect reset
    """


@bisect.command()
@click.argument("bad", required=False)
@click.argument("good", nargs=-1)
@_placed
@pass_search
def start(
    search: Search, bad: str | None, good: tuple[str, ...], directory: str | None, leave_out: tuple[str, ...]
) -> None:
    """Begin: BAD and its ancestors are searched, but for those that GOOD comes from.

    What refs mean is settled here; branches may move meanwhile. A search that was on its way in this folder is
    forgotten.

    \b
    Example:
      deltavc bisect start main step:100
    """
    search.start(bad, good, Place.of(directory, leave_out))


@bisect.command()
@click.argument("refs", nargs=-1, metavar="[REF]...")
@pass_search
def good(search: Search, refs: tuple[str, ...]) -> None:
    """Mark versions as good: REFs, or else the one that is being tried.

    \b
    Example:
      deltavc bisect good
    """
    search.mark("good", refs)


@bisect.command()
@click.argument("ref", required=False)
@pass_search
def bad(search: Search, ref: str | None) -> None:
    """Mark a version as bad: REF, or else the one that is being tried.

    \b
    Example:
      deltavc bisect bad
    """
    search.mark("bad", () if ref is None else (ref,))


@bisect.command()
@click.argument("refs", nargs=-1, metavar="[REF | A..B]...")
@pass_search
def skip(search: Search, refs: tuple[str, ...]) -> None:
    """Mark versions as ones that cannot be tried: REFs, or else the one that is being tried.

    Versions whose weights are not kept need no such mark. If it cannot be told which version is the first bad one, the
    exit code is 2.

    \b
    Example:
      deltavc bisect skip step:110..step:120
    """
    search.mark("skip", refs)


@bisect.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@_placed
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="CMD...")
@pass_search
def run(search: Search, command: tuple[str, ...], directory: str | None, leave_out: tuple[str, ...]) -> None:
    """Search to the end: CMD is run for each version that is to be tried.

    CMD says by its exit code what a version is: 0 good, 125 cannot be told, any other up to 127 bad. With 128 or more,
    or ended by a signal, it stops the search where it is. {path}, {version} and {step} in CMD are filled in;
    DELTAVC_PATH, DELTAVC_VERSION and DELTAVC_STEP are in its environment. The directory at {path} is moved from version
    to version by deltas; its files are rewritten in place.

    Ctrl-C loses nothing: run goes on where it was.

    \b
    Example:
      deltavc bisect run './evaluate.sh {path}'
      deltavc bisect run python evaluate.py --weights {path} --step {step}
    """
    from .bisect_run import run_to_the_end

    run_to_the_end(search, command, Place.of(directory, leave_out))


@bisect.command("log")
@pass_search
def show_log(search: Search) -> None:
    """Print what was marked so far, as commands that mark it again.

    \b
    Example:
      deltavc bisect log > search.txt
    """
    search.log()


@bisect.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@pass_search
def replay(search: Search, file: Path) -> None:
    """Begin anew with the marks in FILE, which `bisect log` printed.

    \b
    Example:
      deltavc bisect replay search.txt
    """
    search.replay(file)


@bisect.command()
@pass_search
def view(search: Search) -> None:
    """Show the versions that may be the first bad one, newest first.

    \b
    Example:
      deltavc bisect view
    """
    search.view()


@bisect.command()
@pass_search
def reset(search: Search) -> None:
    """End the search and forget its marks. A directory that was named with --into stays.

    \b
    Example:
      deltavc bisect reset
    """
    search.reset()
