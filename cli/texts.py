"""Results as lines of text for people. Pure: values in, lines out.

Whatever came from a repository may hold any character; `plain` makes it harmless to a terminal.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from deltavc.amounts import nbytes as nbytes
from deltavc.amounts import share as share

from .graph import draw

if TYPE_CHECKING:
    from deltavc.diff import Diff, TensorDiff
    from deltavc.following import Moved
    from deltavc.integrations.engines_push import Pushed
    from deltavc.lineage.history import Totals
    from deltavc.lineage.records import EdgeRecord, RefEntry
    from deltavc.upkeep.compact import Compacted
    from deltavc.version import Version

    from .completion_install import Installed

SHORT = 12
"""Digits of an id that people are shown."""


# --- versions ---


def brief(version: Version) -> str:
    """A version in a line: id, step, first line of the message."""
    return "  ".join([_id(version.short_id), *_step(version), _subject(version)]).rstrip()


def committed(version: Version) -> Iterator[str]:
    """A version that was just committed."""
    yield f"[{plain(version.branch or '')}] {brief(version)}"
    yield f"{_changed(version)}, {nbytes(version.stored_bytes)} stored"


def followed(moved: Moved) -> str:
    """A directory that was brought to a version."""
    files = f"{len(moved.written)} file{'s' * (len(moved.written) != 1)} written"
    step = [] if moved.step is None else [f"step {moved.step}"]
    took = f"{nbytes(moved.fetched_bytes)} fetched, {files}, {moved.seconds:.2f} s"
    return "  ".join([_id(moved.version[:SHORT]), *step, took])


def pushed(pushed: Pushed) -> Iterator[str]:
    """A version that engines were brought to."""
    yield f"{_id(pushed.version[:SHORT])}  staged in {pushed.stage_seconds:.2f} s, paused {pushed.pause_seconds:.3f} s"
    for url, report in pushed.engines.items():
        lanes = sum(worker.changed_lanes for worker in report.workers)
        fetched = nbytes(sum(worker.nbytes for worker in report.workers))
        workers = f"{len(report.workers)} worker{'s' * (len(report.workers) != 1)}"
        yield f"  {plain(url)}  {workers}, {lanes} elements written, {fetched} fetched"


def log(
    versions: Iterable[Version], names: Mapping[str, Sequence[str]], *, oneline: bool, graph: bool
) -> Iterator[str]:
    """A history, newest first, told as it is read; a drawing needs to know all of it first."""

    def block(version: Version) -> list[str]:
        return _line(version, names) if oneline else [*_block(version, names), ""]

    if not graph:
        for version in versions:
            yield from block(version)
        return
    versions = list(versions)
    rows = draw([(version.id, version.parents) for version in versions])
    for row, version in zip(rows, versions, strict=True):
        yield from row.before
        for place, line in enumerate(block(version)):
            yield f"{row.node if place == 0 else row.rest}{line}".rstrip()
        yield from row.after


def show(
    version: Version,
    names: Sequence[str],
    edges: Sequence[EdgeRecord],
    layout: Sequence[Mapping[str, Any]],
    *,
    tensors: bool,
) -> Iterator[str]:
    """Everything that is known of a version."""
    yield from _block(version, {version.id: names})
    if version.message:
        yield ""
    yield f"Branch:      {plain(version.branch) if version.branch else 'none'}"
    yield f"Parents:     {' '.join(version.parents) or 'none'}"
    yield f"Fingerprint: {version.fingerprint}"
    yield f"Layout:      {version.layout}"
    yield f"Tensors:     {len(layout)}, {version.num_lanes:,} lanes, {version.changed_lanes:,} written"
    for edge in edges:
        way = f"delta from {edge.base[:SHORT]}" if edge.base else "snapshot"
        yield f"Stored as:   {way}, {nbytes(edge.nbytes)}"
    for name, value in version.meta.items():
        yield f"Meta:        {plain(name)} = {plain(json.dumps(value, ensure_ascii=False))}"
    for name, size in version.files.items():
        yield f"File:        {plain(name)}, {nbytes(size)}"
    if tensors:
        yield ""
        yield from table(["tensor", "dtype", "shape", "tied to"], map(_tensor, layout))


def _block(version: Version, names: Mapping[str, Sequence[str]]) -> Iterator[str]:
    yield f"{_id('version ' + version.id)}{_refs_at(version, names)}"
    if len(version.parents) > 1:
        yield f"Merge:   {' '.join(parent[:SHORT] for parent in version.parents)}"
    yield f"Author:  {plain(version.author)}"
    yield f"Date:    {version.time.astimezone():%Y-%m-%d %H:%M:%S %z}"
    if version.step is not None:
        yield f"Step:    {version.step}"
    if version.metrics:
        yield f"Metrics: {_metrics(version)}"
    if version.weights:
        yield f"Size:    {nbytes(version.stored_bytes)} stored, {_changed(version)}"
    else:
        yield "Size:    no weights: they were not kept"
    if version.message:
        yield ""
        yield from (f"    {plain(line)}".rstrip() for line in version.message.splitlines())


def _line(version: Version, names: Mapping[str, Sequence[str]]) -> list[str]:
    parts = [_id(version.short_id) + _refs_at(version, names), *_step(version)]
    if version.metrics:
        parts.append(_metrics(version))
    stored = [nbytes(version.stored_bytes), _changed(version)] if version.weights else ["no weights"]
    return ["  ".join([*parts, *stored, _subject(version)]).rstrip()]


def _id(text: str) -> str:
    return click.style(text, fg="yellow")


def _refs_at(version: Version, names: Mapping[str, Sequence[str]]) -> str:
    kinds = {"branches/": ("", "green"), "tags/": ("tag: ", "magenta")}
    shown = []
    for ref in names.get(version.id, ()):
        kind, _, name = ref.partition("/")
        prefix, color = kinds[f"{kind}/"]
        shown.append(click.style(prefix + plain(name), fg=color))
    return f" ({', '.join(shown)})" if shown else ""


def _step(version: Version) -> list[str]:
    return [] if version.step is None else [f"step {version.step}"]


def _subject(version: Version) -> str:
    return plain(next(iter(version.message.splitlines()), ""))


def _metrics(version: Version) -> str:
    return " ".join(f"{plain(name)}={value:.6g}" for name, value in version.metrics.items())


def _changed(version: Version) -> str:
    return f"{share(version.changed_lanes, version.num_lanes)} changed"


def _tensor(tensor: Mapping[str, Any]) -> list[str]:
    shape = "x".join(map(str, tensor["shape"])) or "scalar"
    return [plain(tensor["name"]), tensor["dtype"], shape, plain(tensor["tie"] or "")]


# --- comparing ---


def diff(diff: Diff, *, all_tensors: bool) -> Iterator[str]:
    """Two versions compared: tensors that differ, those that do not in a line, and a total."""
    shown = [tensor for tensor in diff.tensors if all_tensors or tensor.status != "same"]
    rows = [_compared(plain(tensor.name), tensor) for tensor in shown]
    rows.append(_compared("total", diff.total))
    yield from table(["tensor", "", "changed", "of", "share", "largest step"], rows, right=(2, 3, 4, 5))
    same = len(diff.tensors) - len(shown)
    if same:
        yield f"{same} {'tensor is' if same == 1 else 'tensors are'} unchanged"


def _compared(name: str, tensor: TensorDiff) -> list[str]:
    step = f"{tensor.largest_step:,} ulp" if tensor.largest_step else ""
    return [
        name,
        tensor.status if tensor.status != "changed" else "",
        f"{tensor.changed_elements:,}",
        f"{tensor.num_elements:,}",
        share(tensor.changed_elements, tensor.num_elements),
        step,
    ]


# --- refs and repositories ---


def refs(refs: Mapping[str, Version]) -> Iterator[str]:
    """Branches or tags, and where they are."""
    width = max(map(len, refs), default=0)
    for name, version in refs.items():
        yield f"{plain(name):{width}}  {brief(version)}"


def reflog(branch: str, entries: Sequence[RefEntry]) -> Iterator[str]:
    """The moves of a branch, newest first."""
    rows = []
    for back, entry in enumerate(entries):
        new = entry.new[:SHORT] if entry.new else "deleted"
        when = f"{entry.when[:10]} {entry.when[11:19]}Z"
        rows.append([f"{plain(branch)}@{{{back}}}", new, when, plain(entry.who), plain(entry.why)])
    yield from table(["", "version", "when", "who", "why"], rows)


def status(
    repository: Mapping[str, str | None],
    behind: Sequence[str],
    branches: Mapping[str, Version],
    tags: Mapping[str, Version],
) -> Iterator[str]:
    """A repository, its database and its heads."""
    for name, value in repository.items():
        yield f"{name:10}  {plain(value or 'none')}"
    if repository["database"] is None:
        yield "Without a database, steps, metrics and logs cannot be asked for: --db names one."
    elif behind:
        yield f"The database was behind on {', '.join(map(plain, behind))}; it has caught up now."
    else:
        yield "The database is up to date."
    for what, found in (("branches", branches), ("tags", tags)):
        if found:
            yield f"{what}:"
            yield from (f"  {line}" for line in refs(found))
    if not branches:
        yield "There is no branch yet; `deltavc commit PATH` makes main."


def stats(totals: Totals) -> Iterator[str]:
    """How much there is."""
    rows = [
        ["versions", f"{totals.num_versions:,}"],
        ["branches", f"{totals.num_branches:,}"],
        ["tags", f"{totals.num_tags:,}"],
        ["layouts", f"{totals.num_layouts:,}"],
        ["snapshots", f"{totals.num_snapshots:,}"],
        ["deltas", f"{totals.num_edges - totals.num_snapshots:,}"],
        ["packs", f"{totals.num_packs:,}, {nbytes(totals.pack_bytes)}"],
        ["files", nbytes(totals.file_bytes)],
    ]
    yield from (f"{name:10}  {value}" for name, value in rows)


def compacted(done: Compacted) -> Iterator[str]:
    """What compacting wrote, or would write."""
    counts = ((done.num_edges, "edge that skips", "edges that skip"), (done.num_snapshots, "snapshot", "snapshots"))
    what = " and ".join(f"{count:,} {one if count == 1 else many}" for count, one, many in counts if count)
    if what:
        size = nbytes(done.nbytes)
        yield f"would write {what}, at most {size}" if done.dry_run else f"wrote {what}, {size}"
    elif not done.failed:
        yield "every version is within bounds; no edge is needed"
    if done.num_bundles:
        yield "would bundle the records of all versions" if done.dry_run else "bundled the records of all versions"
    for version, why in done.failed.items():
        yield f"no edge to {version[:SHORT]} could be made: {plain(why)}"
    if done.damaged:
        yield "`deltavc fsck --full` tells what is damaged"
    elif done.failed:
        yield "nothing is damaged by that; compact again"
    if done.beyond:
        yield f"still beyond the bounds: {', '.join(version[:SHORT] for version in done.beyond)}"


def completion_installed(found: Installed) -> Iterator[str]:
    """Where completion was installed."""
    if not found.changed:
        yield f"completion for {found.shell} is installed already: {plain(found.script)}"
    for path in found.changed:
        yield f"wrote {plain(path)}" if path == found.script else f"wrote a line to {plain(path)}, which reads it"
    if found.changed:
        yield "it is there in every new shell"


# --- words ---


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> Iterator[str]:
    """Rows in columns; those in `right` are aligned to the right."""
    lines = [head, *rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
    for line in lines:
        cells = zip(line, widths, range(len(head)), strict=True)
        yield "  ".join(f"{text:{'>' if place in right else '<'}{width}}" for text, width, place in cells).rstrip()


def plain(text: str) -> str:
    """Text in one line that no terminal takes as a command: control characters are spelled out."""
    if text.isprintable():
        return text
    return "".join(
        char if unicodedata.category(char)[0] != "C" else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )
