"""The repository's settings: which versions keep their weights, and how long what nobody needs stays.

    refs/<hash of "settings">/000000000002.json     new: <id> ──> settings/<2>/<id>.json

They move like a branch: a settings object is named by its content, and the last entry of the ref `settings` names
the one that holds. Where there is none, DEFAULT holds. All entries are kept: who changed what, when.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any

from deltavc import canonical
from deltavc.errors import BadMetadata, BadPayload, CorruptObject
from deltavc.lineage.bucket import Bucket, read
from deltavc.lineage.fields import ID, integer, json_object, match, members, typed
from deltavc.lineage.names import SETTINGS
from deltavc.lineage.records import MAX_METRIC_NAME, RefEntry
from deltavc.lineage.refs import Refs

DAY = 86_400


@dataclass(frozen=True)
class Policy:
    """Which versions keep their weights, as a union of rules, and the grace.

    Versions are never removed. One that no rule keeps may lose its weights: it says so, and cannot be checked out.
    As long as no rule but keep_tagged is given, every version is kept. Versions that branches are at always are, since
    writers go on from them; and those that branches were at until less than the grace ago, but for a move to a child.

    keep_last: the last so many versions of every branch, along first parents.
    keep_every: versions of every branch, along first parents, whose step is a multiple of this.
    keep_best: metric to a number: that many versions of every branch where it is best, along first parents.
    keep_days: versions committed in the last so many days.
    keep_tagged: where tags are.
    grace_seconds: how long what was dropped, or uploaded and never named, stays in the store. Twice as long as a
        commit may take from its first upload to its landing: a writer that took longer refuses to publish.
    """

    keep_last: int | None = None
    keep_every: int | None = None
    keep_best: Mapping[str, int] = field(default_factory=dict)
    keep_days: int | None = None
    keep_tagged: bool = True
    grace_seconds: int = DAY

    def __post_init__(self) -> None:
        """Raises BadMetadata for what makes no sense."""
        for name, value in self._numbers().items():
            if type(value) is not int or not 1 <= value <= canonical.MAX_INTEGER // 1_000_000:
                raise BadMetadata(name, f"{value!r} is not a whole number of at least 1")
        if type(self.keep_tagged) is not bool:
            raise BadMetadata("keep_tagged", f"{self.keep_tagged!r} is neither true nor false")
        for metric in self.keep_best:
            if not isinstance(metric, str) or not 1 <= len(metric) <= MAX_METRIC_NAME:
                raise BadMetadata("keep_best", f"{str(metric)[:40]!r} is not the name of a metric")

    @property
    def grace(self) -> timedelta:
        """`grace_seconds` as a length of time."""
        return timedelta(seconds=self.grace_seconds)

    @property
    def keeps_all(self) -> bool:
        """Whether nothing says which versions may lose their weights."""
        return not (self.keep_last or self.keep_every or self.keep_best or self.keep_days)

    @functools.cached_property
    def body(self) -> bytes:
        return canonical.dumps(self.as_json(), "policy")

    @functools.cached_property
    def id(self) -> str:
        return canonical.content_id(self.body)

    @property
    def key(self) -> str:
        """Where the bucket has it."""
        return settings_key(self.id)

    def as_json(self) -> dict[str, Any]:
        """The members of the stored object."""
        told = {item.name: getattr(self, item.name) for item in fields(self)}
        return told | {"keep_best": dict(self.keep_best)}

    @classmethod
    def parse(cls, body: bytes) -> Policy:
        """Read a stored settings object. Raises BadPayload, also for one that a later release wrote."""
        item = json_object(body, "policy")
        try:
            if unknown := item.keys() - {known.name for known in fields(cls)}:
                raise ValueError(f"{min(unknown)!r} is not known to this release")
            policy = cls(
                keep_last=None if item["keep_last"] is None else integer(item["keep_last"]),
                keep_every=None if item["keep_every"] is None else integer(item["keep_every"]),
                keep_best=members(item["keep_best"]),
                keep_days=None if item["keep_days"] is None else integer(item["keep_days"]),
                keep_tagged=typed(bool, item["keep_tagged"]),
                grace_seconds=integer(item["grace_seconds"]),
            )
        except (KeyError, ValueError, BadMetadata) as error:
            raise BadPayload(f"not settings: {error}") from error
        if policy.body != bytes(body):
            raise BadPayload("not settings: they are not in canonical form")
        return policy

    def _numbers(self) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in ("keep_last", "keep_every", "keep_days")}
        found = {name: value for name, value in given.items() if value is not None}
        best = {f"keep_best {metric}": value for metric, value in self.keep_best.items()}
        return found | best | {"grace_seconds": self.grace_seconds}


DEFAULT = Policy()


class SettingsRef:
    """Follows the settings of one repository; a look costs one request when they have not changed."""

    def __init__(self, bucket: Bucket, refs: Refs) -> None:
        self._bucket = bucket
        self._refs = refs
        self._lock = threading.Lock()
        self._entries: list[RefEntry] | None = None
        self._policies: dict[str, Policy] = {}

    def follow(self) -> int:
        """How often settings were made until now. Raises CorruptObject, MissingObject."""
        with self._lock:
            if self._entries is None:
                self._entries = list(self._refs.entries(SETTINGS))
            while (entry := self._refs.after(SETTINGS, self._entries[-1] if self._entries else None)) is not None:
                self._entries.append(entry)
            return len(self._entries)

    def policy(self, number: int) -> Policy:
        """What was set the `number`-th time; 0 is what holds before that.

        Raises:
            CorruptObject, MissingObject: it is damaged or gone, or was set by a later release.
        """
        entry = self._entries[number - 1] if number and self._entries else None
        return DEFAULT if entry is None or entry.new is None else self._policy(entry.new)

    def newest(self) -> Policy:
        """What holds now. Raises what `policy` raises."""
        return self.policy(self.follow())

    def set(self, policy: Policy, who: str, why: str) -> None:
        """Let a policy hold from now on.

        Raises:
            BranchMoved: somebody else set one at the same time.
            StoreError; CommitInDoubt: the store did not say whether it holds now.
        """
        self.follow()
        self._bucket.put(policy.key, policy.body)
        self._refs.move(SETTINGS, self._entries[-1] if self._entries else None, policy.id, who, why)

    def _policy(self, policy: str) -> Policy:
        if policy not in self._policies:
            self._policies[policy] = read_policy(self._bucket, policy)
        return self._policies[policy]


def read_policy(bucket: Bucket, policy: str) -> Policy:
    """A settings object by its id. Raises CorruptObject, MissingObject."""
    found = read(bucket, settings_key(policy), Policy.parse)
    if found.id != policy:
        raise CorruptObject(settings_key(policy), "its content is not what its name says")
    return found


def settings_key(policy: str) -> str:
    return f"settings/{policy[:2]}/{match(ID, policy)}.json"
