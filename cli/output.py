"""Where results and remarks go: results to stdout as text or JSON, everything else to stderr.

Each kind of result has one method here, which knows its two forms; `texts` writes the text.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from . import exchanged, findings, keeping, texts, watching
from .failures import OutputClosed

if TYPE_CHECKING:
    from rich.progress import TaskID

    from deltavc.diff import Diff
    from deltavc.following import Moved
    from deltavc.integrations.engines_push import Pushed
    from deltavc.interchange.copying import Copied
    from deltavc.interchange.export_deltas import Exported
    from deltavc.interchange.importing import Imported
    from deltavc.lineage.history import Totals
    from deltavc.lineage.records import EdgeRecord, RefEntry
    from deltavc.lineage.settings import Policy
    from deltavc.series import Series
    from deltavc.tail import BranchMove
    from deltavc.upkeep.audit import Audit
    from deltavc.upkeep.compact import Compacted
    from deltavc.upkeep.expire import Expiry
    from deltavc.upkeep.fsck_report import Report
    from deltavc.upkeep.gc import Collected
    from deltavc.upkeep.verify import Verification
    from deltavc.upkeep.verify_files import Match
    from deltavc.version import Version

    from .completion_install import Installed

_LINES = 256
"""Lines of a long result that are printed at once."""


class Output:
    """Prints results of commands.

    as_json: as one JSON document. quiet: no progress and no notes. verbose: 1 logs what is done, 2 how.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False, verbose: int = 0) -> None:
        self._as_json = as_json
        self._quiet = quiet
        self._color = sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        _log_to_stderr(logging.ERROR if quiet else [logging.WARNING, logging.INFO, logging.DEBUG][min(verbose, 2)])

    # --- results ---

    def initialized(self, url: str, database: str | None, config: str | None) -> None:
        """A new repository, and the configuration that leads to it, if one was written."""
        wrote = [] if config is None else [f"wrote {config}"]
        self._print(
            {"repository": url, "database": database, "config": config},
            [f"new repository at {url}", f"database {database or 'none'}", *wrote],
        )

    def committed(self, version: Version) -> None:
        """A version that was just made."""
        self._print(version.as_json() | {"timings": dict(version.timings)}, texts.committed(version))

    def moved(self, branch: str, version: Version) -> None:
        """A branch that was moved to a version, or made at it."""
        self._print({"branch": branch, "version": version.as_json()}, [f"{branch} is at {texts.brief(version)}"])

    def tagged(self, tag: str, version: Version) -> None:
        """A tag that was made."""
        self._print({"tag": tag, "version": version.as_json()}, [f"{tag} names {texts.brief(version)}"])

    def deleted(self, what: str, name: str, was: str | None) -> None:
        """A branch or tag that is no more, and the version it was at."""
        at = f", which was at {was[:12]}" if was else ""
        self._print({"deleted": name, "version": was}, [f"deleted {what} {texts.plain(name)}{at}"])

    def checked_out(self, version: str, directory: str, timings: Mapping[str, float]) -> None:
        """A version that was written to a directory."""
        self._print(
            {"version": version, "directory": directory, "timings": dict(timings)},
            [f"{version[:12]} is in {texts.plain(directory)}"],
        )

    def followed(self, moved: Moved) -> None:
        """A directory that was brought to a version: a line for each, since there may be no end of them."""
        self._write(json.dumps(moved.as_json()) if self._as_json else texts.followed(moved))

    def pushed(self, pushed: Pushed) -> None:
        """A version that engines were brought to."""
        self._print(pushed.as_json(), texts.pushed(pushed))

    def imported(self, done: Imported) -> None:
        """Checkpoints of other people that became versions."""
        self._print(done.as_json(), exchanged.imported(done))

    def exported(self, done: Exported) -> None:
        """A version, or a change, that was written for other software."""
        self._print(done.as_json(), [exchanged.exported(done)])

    def copied(self, done: Copied) -> None:
        """What was carried over to another repository."""
        self._print(done.as_json(), exchanged.copied(done))

    def log(
        self, versions: Iterable[Version], names: Mapping[str, Sequence[str]], *, oneline: bool, graph: bool
    ) -> None:
        """A history, printed as it is read; `names` are the refs at each version."""
        if self._as_json:
            told = (version.as_json() | {"refs": list(names.get(version.id, ()))} for version in versions)
            self._stream(_json_list(told))
        else:
            self._stream(texts.log(versions, names, oneline=oneline, graph=graph))

    def branch_moved(self, move: BranchMove, *, oneline: bool) -> None:
        """A move of a branch that is watched: with JSON a line for each, since there may be no end of them."""
        self._stream([json.dumps(move.as_json())] if self._as_json else watching.moved(move, oneline=oneline))

    def show(
        self,
        version: Version,
        names: Sequence[str],
        edges: Sequence[EdgeRecord],
        layout: Sequence[Mapping[str, Any]],
        *,
        tensors: bool,
    ) -> None:
        """Everything that is known of a version; `tensors` lists them one by one."""
        told = version.as_json() | {
            "refs": list(names),
            "num_tensors": len(layout),
            "edges": [
                {"id": edge.id, "base": edge.base, "nbytes": edge.nbytes, "changed_lanes": edge.changes}
                for edge in edges
            ],
        }
        if tensors:
            told["tensors"] = list(layout)
        self._print(told, texts.show(version, names, edges, layout, tensors=tensors))

    def diff(self, diff: Diff, *, all_tensors: bool) -> None:
        """Two versions compared."""
        self._print(diff.as_json(), texts.diff(diff, all_tensors=all_tensors))

    def diff_by_layer(self, diff: Diff, *, all_layers: bool) -> None:
        """Two versions compared, their tensors summed up by layer."""
        found = diff.by_layer()
        told = diff.as_json()
        told = {"a": told["a"], "b": told["b"], "layers": [layer.as_json() for layer in found], "total": told["total"]}
        self._print(told, watching.layers(diff, found, all_layers=all_layers))

    def searched(self, told: Any, lines: Iterable[str]) -> None:
        """Where a search for the first bad version stands, or what it found; `bisecting` makes both forms."""
        self._print(told, lines)

    def refs(self, refs: Mapping[str, Version]) -> None:
        """Branches or tags, and where they are."""
        self._print([{"name": name, "version": version.as_json()} for name, version in refs.items()], texts.refs(refs))

    def reflog(self, branch: str, entries: Sequence[RefEntry]) -> None:
        """The moves of a branch, newest first."""
        told = [
            {"sequence": entry.sequence, "old": entry.old, "new": entry.new}
            | {"who": entry.who, "when": entry.when, "why": entry.why}
            for entry in entries
        ]
        self._print(told, texts.reflog(branch, entries))

    def identified(self, versions: Sequence[Version]) -> None:
        """Versions that hold the weights that were asked for."""
        self._print([version.as_json() for version in versions], [texts.brief(version) for version in versions])

    def status(
        self,
        repository: Mapping[str, str | None],
        behind: Sequence[str],
        branches: Mapping[str, Version],
        tags: Mapping[str, Version],
    ) -> None:
        """A repository (its URL, id and database), the refs that its database had not heard of, its heads."""
        told: dict[str, Any] = {**repository, "behind": list(behind)}
        for what, refs in (("branches", branches), ("tags", tags)):
            told[what] = {name: version.as_json() for name, version in refs.items()}
        self._print(told, texts.status(repository, behind, branches, tags))

    def stats(self, totals: Totals) -> None:
        """How much there is."""
        self._print(dataclasses.asdict(totals), texts.stats(totals))

    def plotted(self, totals: Totals, series: Series, metrics: Sequence[str], path: str) -> None:
        """How much there is, and a picture of how it came about that was written to a file."""
        told = dataclasses.asdict(totals) | {"plot": {"path": path, "drawn": list(metrics)} | series.as_json()}
        self._print(told, [*texts.stats(totals), *watching.plotted(series, metrics, path)])

    def compacted(self, done: Compacted) -> None:
        """A repository that was compacted, or would be."""
        self._print(done.as_json(), texts.compacted(done))

    def checked(self, report: Report) -> None:
        """A repository that was checked."""
        self._print(report.as_json(), findings.checked(report))

    def verified(self, found: Verification) -> None:
        """A version that was proven, or not."""
        self._print(found.as_json(), findings.verified(found))

    def matched(self, path: str, found: Match) -> None:
        """A checkpoint that was compared with a version."""
        self._print(found.as_json(), findings.matched(path, found))

    def audited(self, found: Audit) -> None:
        """All about one version."""
        self._print(found.as_json(), findings.audited(found))

    def policy(self, policy: Policy) -> None:
        """Which versions keep their weights."""
        self._print(policy.as_json(), keeping.policy(policy))

    def expired(self, report: Expiry) -> None:
        """Versions that lost their weights, or would."""
        self._print(report.as_json(), keeping.expired(report))

    def collected(self, report: Collected) -> None:
        """What was deleted, or would be."""
        self._print(report.as_json(), keeping.collected(report))

    def upgraded(self, before: str | None, after: str) -> None:
        """A database whose schema was brought up to date."""
        said = f"the schema is {after}" + (" already" if before == after else f", was {before or 'none'}")
        self._print({"before": before, "after": after}, [said])

    def completion_installed(self, found: Installed) -> None:
        """Completion that was installed for a shell, or was there already."""
        self._print(found.as_json(), texts.completion_installed(found))

    def raw(self, text: str) -> None:
        """Text that has no other form: a completion script."""
        self._write(text)

    # --- remarks ---

    def note(self, text: str) -> None:
        """Something worth knowing that is no result."""
        if not self._quiet:
            click.echo(text, err=True)

    @contextlib.contextmanager
    def progress(self, doing: str) -> Iterator[None]:
        """Show on a terminal that something takes its time."""
        if self._quiet or sys.stderr is None or not sys.stderr.isatty():
            yield
            return
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            bar.add_task(texts.plain(doing), total=None)
            yield

    @contextlib.contextmanager
    def steps(self) -> Iterator[Callable[[str, int, int], None]]:
        """Show on a terminal what is being done, how much of it is done and how long it will take."""
        if self._quiet or sys.stderr is None or not sys.stderr.isatty():
            yield lambda doing, done, total: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            tasks: dict[str, TaskID] = {}

            def show(doing: str, done: int, total: int) -> None:
                if doing not in tasks:
                    tasks[doing] = bar.add_task(texts.plain(doing), total=None)
                bar.update(tasks[doing], completed=done, total=total or None)

            yield show

    # --- inside ---

    def _print(self, value: Any, lines: Iterable[str]) -> None:
        # ASCII, so that any terminal and any locale takes it.
        self._write(json.dumps(value, indent=2) if self._as_json else "\n".join(lines))

    def _stream(self, lines: Iterable[str]) -> None:
        """Print lines, some at a time, while the rest is still to be read."""
        rest = iter(lines)
        while some := list(islice(rest, _LINES)):
            self._echo("\n".join(some))

    def _write(self, text: str) -> None:
        if text:
            self._echo(text)

    def _echo(self, text: str) -> None:
        try:
            click.echo(text, color=self._color)
        except BrokenPipeError as error:
            raise OutputClosed from error


def _json_list(items: Iterable[Any]) -> Iterator[str]:
    """The lines of a list as `json.dumps(list, indent=2)` writes it, each item as it comes."""
    before = "["
    for item in items:
        yield before
        *lines, before = json.dumps([item], indent=2).splitlines()[1:-1]
        yield from lines
        before += ","
    yield from ["[]"] if before == "[" else [before.removesuffix(","), "]"]


class _Stderr(logging.Handler):
    """Logs to whatever standard error is at the time, which a progress display replaces; without secrets."""

    def emit(self, record: logging.LogRecord) -> None:
        from deltavc.store.urls import redact

        print(redact(self.format(record)), file=sys.stderr)


def _log_to_stderr(level: int) -> None:
    """Show our own log. Other libraries' may hold secrets, and stay as Python leaves them: warnings only."""
    handler = _Stderr()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("deltavc")
    logger.handlers = [handler]
    logger.setLevel(level)
