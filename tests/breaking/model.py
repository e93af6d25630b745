"""A model of a repository: plain dicts of what was committed, where refs are, and which weights were let go of."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

import torch
from hypothesis import strategies as st

from deltavc import Policy
from deltavc.delta import codecs
from tests import states
from tests.breaking.operations import GRACE

CAST = (torch.bfloat16, torch.float16, torch.float32, torch.float64)

tellings = st.fixed_dictionaries(
    {},
    optional={
        "step": st.integers(0, 12),
        "message": st.text(max_size=5),
        "metrics": st.dictionaries(st.sampled_from(["reward", "loss"]), st.floats(), max_size=2),
        "meta": st.dictionaries(st.text(max_size=3), st.integers(-9, 9), max_size=2),
        "files": st.dictionaries(st.sampled_from(["rng", "tok/x"]), st.binary(max_size=9), max_size=2),
        "author": st.just("somebody else"),
        "snapshot": st.sampled_from([None, True, False]),
        "codec": st.sampled_from([None, *codecs.names()]),
        "dtype": st.sampled_from([None, "bfloat16", torch.float32]),
    },
)
policies = st.builds(
    Policy,
    keep_last=st.none() | st.integers(1, 4),
    keep_every=st.none() | st.integers(2, 5),
    keep_best=st.dictionaries(st.sampled_from(["reward", "loss"]), st.integers(1, 2), max_size=1),
    keep_days=st.none() | st.just(1),
    keep_tagged=st.booleans(),
    grace_seconds=st.sampled_from([GRACE, GRACE * 2]),
)


@dataclass
class Told:
    """One version: its state, and what its commit was told. at: when, by the committing machine's clock."""

    state: dict
    parents: tuple
    at: datetime
    told: dict


@dataclass
class Model:
    """versions by id, in the order of their commits; refs to ids. left: when refs moved away from versions.

    without: versions that have no weights any more.
    """

    versions: dict = field(default_factory=dict)
    branches: dict = field(default_factory=dict)
    tags: dict = field(default_factory=dict)
    left: list = field(default_factory=list)
    without: set = field(default_factory=set)
    policy: Policy = field(default_factory=Policy)

    @property
    def whole(self):
        """Versions that have weights."""
        return [version for version in self.versions if version not in self.without]

    def move(self, branch, version, now):
        """Move a branch other than to a child."""
        self.left.append((self.branches[branch], now))
        if version is None:
            del self.branches[branch]
        else:
            self.branches[branch] = version

    def kept(self, now):
        """Versions that have to keep their weights, if they have any; `now` by the store's clock."""
        policy = self.policy
        if policy.keeps_all:
            return set(self.versions)
        found = set(self.branches.values())
        found |= {version for version, when in self.left if when >= now - policy.grace}
        if policy.keep_tagged:
            found |= set(self.tags.values())
        if policy.keep_days:
            found |= {version for version, one in self.versions.items() if one.at >= now - timedelta(policy.keep_days)}
        for head in self.branches.values():
            found |= self._kept_of(self._first_parents(head))
        return found

    def _kept_of(self, chain):
        policy = self.policy
        found = set(chain[: policy.keep_last or 0])
        for version in chain:
            step = self.versions[version].told.get("step")
            if policy.keep_every and step is not None and step % policy.keep_every == 0:
                found.add(version)
        for metric, number in policy.keep_best.items():
            values = {version: self.versions[version].told.get("metrics", {}).get(metric) for version in chain}
            ranked = [
                version for version in chain if values[version] is not None and abs(values[version]) < float("inf")
            ]
            found |= set(sorted(ranked, key=lambda version: values[version], reverse=metric == "reward")[:number])
        return found

    def _first_parents(self, version):
        chain = []
        while version is not None:
            chain.append(version)
            version = next(iter(self.versions[version].parents), None)
        return chain


def as_stored(state, dtype):
    """A state as it is committed with `dtype=`."""
    if dtype is None:
        return states.copied(state)
    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    cast = {}
    return {
        name: cast.setdefault(id(tensor), (tensor.to(dtype) if tensor.dtype in CAST else tensor).clone())
        for name, tensor in state.items()
    }
