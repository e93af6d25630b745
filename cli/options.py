"""What commands share: options that may stand before or after a command's name, and the open repository.

@click.command()
@click.argument("ref")
@pass_repo                                    # adds --repo, --db, --json, -q, -v; opens and closes
def command(repo: Repo, out: Output, ref: str) -> None:
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import click

from .output import Output

if TYPE_CHECKING:
    from deltavc.repo import Repo

P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(slots=True)
class Settings:
    """What the shared options said, wherever they stood."""

    repo: str | None = None
    db: str | None = None
    storage_options: dict[str, Any] = field(default_factory=dict)
    json: bool = False
    quiet: bool = False
    verbose: int = 0


def pass_output(command: Callable[Concatenate[Settings, Output, P], None]) -> Callable[P, None]:
    """Call a command with the settings and the output. For commands that open no repository."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        settings = click.get_current_context().ensure_object(Settings)
        command(
            settings, Output(as_json=settings.json, quiet=settings.quiet, verbose=settings.verbose), *args, **kwargs
        )

    return repo_options(run)


def pass_repo(command: Callable[Concatenate[Repo, Output, P], None]) -> Callable[P, None]:
    """Open the repository, call the command with it and the output, and close it."""

    @functools.wraps(command)
    def run(settings: Settings, out: Output, /, *args: P.args, **kwargs: P.kwargs) -> None:
        from .config import open_repo

        with open_repo(settings) as repo:
            command(repo, out, *args, **kwargs)

    return pass_output(run)


def repo_options(command: F) -> F:
    """Add the options that every command has."""
    for option in reversed(_SHARED):
        command = option(command)
    return command


def pairs(what: str) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], dict[str, str]]:
    """A callback that reads NAME=VALUE, given any number of times, into a dict; `what` names a NAME."""

    def read(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
        found: dict[str, str] = {}
        for text in given:
            name, equals, value = text.partition("=")
            if not name or not equals:
                raise click.BadParameter(f"{text!r} is not of the form {param.metavar}", ctx, param)
            if name in found:
                raise click.BadParameter(f"{what} {name!r} is given twice", ctx, param)
            found[name] = value
        return found

    return read


def seconds(ctx: click.Context, param: click.Parameter, text: str) -> float:
    """A callback that reads a length of time, such as 2s, as seconds: more than 0."""
    from deltavc.durations import duration

    try:
        seconds = duration(text).total_seconds()
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None
    if not seconds:
        raise click.BadParameter("it has to be more than no time at all", ctx, param)
    return seconds


def ask(out: Output, preview: Iterable[str], question: str) -> None:
    """Before something that cannot be undone: show what it would do and ask; end the command if the answer is no.

    Raises:
        UsageError: nobody is there to ask.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask at; --dry-run shows what it would do, and --yes does it")
    for line in preview:
        out.note(line)
    if not click.confirm(question, err=True):
        out.note("nothing was changed")
        click.get_current_context().exit(1)


def json_or_text(text: str) -> Any:
    """A value on the command line: JSON where it is that, text otherwise."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Keep an option where the command finds it; one that was not given leaves what stood before the command."""
    if value and param.name is not None:
        setattr(ctx.ensure_object(Settings), param.name, value)


def _remember_storage_options(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> None:
    given = pairs("storage option")(ctx, param, value)
    # Only what cannot be meant as text is read as JSON: an access key may well be all digits.
    read = {name: json_or_text(text) if text[:1] in "{[" or text in _FLAGS else text for name, text in given.items()}
    ctx.ensure_object(Settings).storage_options |= read


_FLAGS = ("true", "false")
_kept = functools.partial(click.option, expose_value=False, callback=_remember)
_SHARED = (
    _kept("--repo", metavar="URL", help="Repository: a path or s3://bucket/prefix.  [env: DELTAVC_REPO]"),
    _kept("--db", metavar="URL", help="Database: sqlite:///path or postgresql://host/name.  [env: DELTAVC_DB]"),
    click.option(
        "--storage-option",
        multiple=True,
        metavar="NAME=VALUE",
        expose_value=False,
        callback=_remember_storage_options,
        help="For S3, an option of s3fs: endpoint_url=http://host:port. May be repeated.",
    ),
    _kept("--json", is_flag=True, help="Print results as JSON on stdout, errors as JSON on stderr."),
    _kept("-q", "--quiet", is_flag=True, help="No progress and no notes on stderr."),
    _kept("-v", "--verbose", count=True, help="Log to stderr; -vv logs more. Shows tracebacks of internal errors."),
)
