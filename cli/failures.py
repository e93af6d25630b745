"""How a command that fails says so: one sentence, a hint at the next step, an exit code.

    error: unknown ref 'mian': no branch, tag or version answers to it; did you mean main?
    hint: List what there is with `deltavc log --all`, `deltavc branch` and `deltavc tag`.

With --json the same is one line of JSON on stderr: {"kind", "message", "hint", "facts", "exit_code"}.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from dataclasses import asdict, dataclass, field
from typing import Any

import click

from deltavc.errors import DeltavcError

from .texts import plain

INTERRUPTED = 130
USAGE = 2
FAILED = 1
CORRUPT = 20


class OutputClosed(Exception):
    """Whoever read our standard output has seen enough: `deltavc log | head`."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What is said about an error. `usage` is a line for people who mistyped a command."""

    kind: str
    message: str
    hint: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    exit_code: int = FAILED
    usage: str = ""


def report(error: BaseException, *, as_json: bool, verbose: bool) -> int:
    """Say on stderr what went wrong, without secrets, and return the exit code."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else FAILED
    if isinstance(error, OutputClosed):
        # What is still buffered has no reader, and must not fail when the interpreter flushes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    from deltavc.store.urls import redact

    failure = describe(error)
    said = ""
    if verbose and failure.kind in ("internal", "os_error"):
        said = redact("".join(traceback.format_exception(error)))
    if as_json:
        facts = {name: value for name, value in asdict(failure).items() if name != "usage"}
        said += json.dumps(_redacted(facts))
    else:
        sentence = plain(" ".join(failure.message.split()))
        lines = [failure.usage, f"error: {sentence}", failure.hint and f"hint: {failure.hint}"]
        said += redact("\n".join(line for line in lines if line))
    with contextlib.suppress(OSError):  # stderr may be closed or full; the exit code still tells
        click.echo(said, err=True)
    return failure.exit_code


def describe(error: BaseException) -> Failure:
    """What to say about any error that a command can end with."""
    match error:
        case DeltavcError():
            return _ours(error)
        case click.UsageError():
            return _usage(error)
        case click.ClickException():
            return Failure("usage", error.format_message(), exit_code=error.exit_code)
        case KeyboardInterrupt() | click.Abort(__cause__=KeyboardInterrupt()):
            return Failure("interrupted", "interrupted", exit_code=INTERRUPTED)
        case ModuleNotFoundError(name="s3fs" | "botocore" | "aiobotocore"):
            return Failure("missing_package", "S3 needs the package s3fs", "Install it: pip install 'deltavc[s3]'")
        case ModuleNotFoundError(name="matplotlib"):
            return Failure("missing_package", "plots need matplotlib", "Install it: pip install 'deltavc[plot]'")
        case MemoryError():
            return Failure("out_of_memory", "this machine has not enough memory for that")
        case OSError():
            where = f"{error.filename}: " if error.filename is not None else ""
            return Failure("os_error", f"{where}{error.strerror or error}", "Run it again with -v to see where.")
    cause = error.__cause__ if isinstance(error, click.Abort) and error.__cause__ else error
    return Failure(
        "internal",
        f"{type(cause).__name__}: {cause}. This is a bug in deltavc",
        "Run it again with -v, and report it with the traceback.",
    )


def _ours(error: DeltavcError) -> Failure:
    message = " ".join([str(error), *getattr(error, "__notes__", [])])
    return Failure(error.kind, message, error.hint, error.facts(), error.exit_code)


def _usage(error: click.UsageError) -> Failure:
    if type(error).__name__ == "NoArgsIsHelpError":  # click 8.2 and later: its message is the help
        return Failure("usage", "no command was named", exit_code=USAGE, usage=f"{error.format_message()}\n")
    usage, hint = "", ""
    if error.ctx is not None:
        usage = error.ctx.get_usage()
        hint = f"`{error.ctx.command_path} --help` tells how it is used."
    return Failure("usage", error.format_message(), hint, exit_code=USAGE, usage=usage)


def _redacted(value: Any) -> Any:
    """A JSON-able value without secrets in any of its texts."""
    from deltavc.store.urls import redact

    match value:
        case dict():
            return {str(name): _redacted(item) for name, item in value.items()}
        case list() | tuple():
            return [_redacted(item) for item in value]
        case bool() | int() | float() | None:
            return value
    return redact(str(value))
