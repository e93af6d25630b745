"""What the bench tried, counted over all processes of a run, and told at its end: a table for docs/reliability.md.

count(kills=1)        ...        | processes killed | 312 |
"""

from collections import Counter
from pathlib import Path

import pytest

TABLE = Path(__file__).parents[2] / "build" / "breaking.md"

TOLD = {
    "commits": "commits tried",
    "operations": "other operations tried: branch, tag, delete, rollback, expire, gc, compact, reindex, repair, init",
    "calls": "calls of the store that failed, before or after they took effect",
    "statements": "SQL statements and COMMITs that failed, before or after they took effect",
    "requests": "HTTP requests that were refused, reset, delayed, or whose answer was lost or cut",
    "kills": "processes killed",
    "stops": "processes stopped past the grace, and resumed",
    "restarts": "servers killed and started again",
    "full": "writes that met a full disk",
    "damaged": "records damaged and repaired",
    "compared": "checkouts compared bit for bit with what was committed",
    "checked": "versions proven by a full fsck",
    "lost": "versions lost or wrong",
}

_tally = Counter()


def count(**numbers):
    """Add to the tally, under the names of TOLD."""
    assert numbers.keys() <= TOLD.keys()
    _tally.update(numbers)


def table():
    """The tally in Markdown."""
    return "\n".join(
        ["| in one run | |", "|---|---:|", *(f"| {what} | {_tally[name]:,} |" for name, what in TOLD.items())]
    )


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):  # of pytest-xdist
        session.config.workeroutput["breaking"] = dict(_tally)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    _tally.update(getattr(node, "workeroutput", {}).get("breaking", {}))


def pytest_terminal_summary(terminalreporter, config):
    if not _tally:
        return
    terminalreporter.section("the breaking bench")
    terminalreporter.write_line(table())
    if "not long" not in config.option.markexpr:
        TABLE.parent.mkdir(exist_ok=True)
        TABLE.write_text(table() + "\n")
