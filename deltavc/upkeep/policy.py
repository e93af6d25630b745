"""The policy applied: which versions keep their weights, and by which rule.

main   v0 ─ v1 ─ v2 ─ … ─ v98 ─ v99 ─ v100      keep_last=2       v99, v100
             └─ a2 ─ a3   (deleted)             keep_every=50     steps 0, 50, 100
                                                keep_tagged       wherever tags are
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

from deltavc.lineage import choosing
from deltavc.lineage.history import History
from deltavc.lineage.resolve import less_is_better
from deltavc.lineage.settings import Policy


def kept(history: History, policy: Policy, now: datetime) -> dict[str, set[str]]:
    """Versions that keep their weights, with the rules that keep them.

    Args:
        history: caught up, so that it knows where refs are.
        now: by the store's clock.

    Raises:
        DatabaseUnavailable
    """
    found: dict[str, set[str]] = defaultdict(set)

    def keep(ids: Iterable[str], rule: str) -> None:
        for version in ids:
            found[version].add(rule)

    if policy.keeps_all:
        keep(choosing.committed(history), "all")
        return dict(found)
    branches = history.branches()
    keep(branches.values(), "head")
    keep(choosing.left(history, _text(now - policy.grace)), "head until lately")
    if policy.keep_tagged:
        keep(history.tags().values(), "tag")
    if policy.keep_days is not None:
        keep(choosing.since(history, _text(now - timedelta(days=policy.keep_days))), "days")
    for head in sorted(set(branches.values())):
        chain = choosing.first_parents(history, head)
        ids = [version for version, _ in chain]
        if policy.keep_last is not None:
            keep(ids[: policy.keep_last], "last")
        if (every := policy.keep_every) is not None:
            keep((version for version, step in chain if step is not None and step % every == 0), "every")
        for metric, number in policy.keep_best.items():
            values = choosing.metric_values(history, metric, ids)
            newest_first = [version for version in ids if version in values]
            ranked = sorted(newest_first, key=lambda version: values[version], reverse=not less_is_better(metric))
            keep(ranked[:number], f"best {metric}")
    return dict(found)


def _text(time: datetime) -> str:
    """A time as records keep it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
