"""Whatever is done in whatever order, from two machines: what a plain model says is there is there, bit for bit.

Two repositories are opened on one store, with a database each. After every step the model's refs are the repository's,
a full check finds nothing wrong, exactly those versions have no weights that were let go of, and some are checked out.
"""

import itertools
import math
import shutil
import tempfile
from datetime import UTC, datetime

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from deltavc import SnapshotPolicy, packing
from deltavc.delta import codecs
from deltavc.errors import BranchMoved, NoPath, TooLate
from deltavc.lineage import index
from deltavc.lineage.lazy import LazyIndex
from deltavc.lineage.standing import has_way
from deltavc.repo import Repo
from deltavc.upkeep import bundle
from tests import states
from tests.breaking.model import Model, Told, as_stored, policies, tellings
from tests.breaking.operations import GRACE, TIGHT
from tests.breaking.tally import count
from tests.breaking.whole import check, compare
from tests.upkeep.stores import ClockedStore, opened

seeds = st.integers(0, 10_000)
places = st.integers(0, 10**6)
machines = st.integers(0, 1)


def in_time(call):
    """Call again what was refused because the store's clock was turned since it was last asked."""
    for _ in range(3):
        try:
            return call()
        except TooLate:
            pass
    return call()


class Bench(RuleBasedStateMachine):
    """A writer on the first of two machines, and everything else on either."""

    @initialize(
        codec=st.sampled_from([None, *codecs.names()]),
        keep=st.sampled_from(["device", "host", "disk"]),
        max_edges=st.integers(1, 6),
        frame_bytes=st.sampled_from([8, 24, 1000, 16 << 20]),
        memory=st.sampled_from([0, 1 << 28]),
    )
    def start(self, codec, keep, max_edges, frame_bytes, memory):
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(packing, "FRAME_BYTES", frame_bytes)
        self.patch.setattr(bundle, "MIN_MOVES", 8)
        self.patch.setattr(index, "_MANY", 1)
        self.directory = tempfile.mkdtemp()
        self.store = ClockedStore()
        self.repos = [self.opened(machine) for machine in range(2)]
        options = {"codec": codec, "keep": keep, "memory": memory}
        self.options = options | {"snapshots": SnapshotPolicy(max_edges=max_edges, max_ratio=1e9)}
        self.model = Model()
        self.state = {
            "w": states.random_bits("bfloat16", (13, 7)),
            "m": states.random_bits("float32", (5, 3, 4)),
            "c": states.random_bits("complex128", (6,)),
            "s": states.random_bits("float8_e5m2", ()),
            "e": states.random_bits("int64", (0, 3)),
        }
        self.branch, self.writer = "main", self.repos[0].writer(**self.options)
        self.overtaken = False  # whether others moved the writer's branch since it looked
        self.numbers = itertools.count()
        self.commit(1, {}, False, None)

    def opened(self, machine):
        return opened(self.store, f"sqlite:///{self.directory}/{machine}.db")

    def pick(self, place):
        """A version that has weights."""
        return self.model.whole[place % len(self.model.whole)]

    def committed(self, version, state, told, branch):
        told = {name: value for name, value in told.items() if name not in ("snapshot", "codec", "dtype")}
        self.model.versions[version.id] = Told(state, version.parents, datetime.now(UTC), told)
        self.model.branches[branch] = version.id
        count(commits=1)

    # --- commits ---

    @rule(seed=seeds, told=tellings, partial=st.booleans(), merged=st.none() | places)
    def commit(self, seed, told, partial, merged):
        head = self.model.branches.get(self.branch)
        if self.writer.version != head:
            with pytest.raises(BranchMoved):
                in_time(lambda: self.writer.commit(self.state))
        if self.overtaken or self.writer.version != head:
            self.follow()
        self.state = states.stepped(self.state, seed, 0.2)
        given, kept = self.state, {}
        before = self.model.versions[head].state if head else {}
        untied = len({id(tensor) for state in (before, given) for tensor in state.values()}) == len(before) + len(given)
        if partial and before and untied and len(given) > 2:
            given = dict(sorted(given.items())[seed % 3 :])
            kept = {name: tensor for name, tensor in before.items() if name not in given}
        known = [version for version in self.model.versions if version != head]
        parents = None if merged is None or not known else [head, known[merged % len(known)]]
        version = in_time(lambda: self.writer.commit(given, parents=parents, partial=bool(kept), **told))
        self.committed(version, as_stored(given, told.get("dtype")) | states.copied(kept), told, self.branch)
        if kept:
            self.state = states.copied(self.model.versions[version.id].state)

    @rule(seed=seeds, told=tellings, place=places, new=st.booleans())
    def commit_from_the_other_machine(self, seed, told, place, new):
        branch = sorted(self.model.branches)[place % len(self.model.branches)]
        start = None
        if new:
            branch, start = f"branch-{next(self.numbers)}", self.pick(place)
        state = states.stepped(self.model.versions[start or self.model.branches[branch]].state, seed, 0.2)
        parents = [start] if new else None
        version = in_time(lambda: self.repos[1].commit(state, branch, parents=parents, **told))
        self.committed(version, as_stored(state, told.get("dtype")), told, branch)
        self.overtake(branch)

    def follow(self):
        self.writer.move(self.branch)
        self.overtaken = False

    def overtake(self, branch):
        self.overtaken = self.overtaken or branch == self.branch

    @rule(seed=seeds)
    def restructure(self, seed):
        self.state = states.restructured(self.state, seed)

    # --- moves ---

    @rule(place=places)
    def move(self, place):
        target = self.pick(place)
        live = states.stepped(states.copied(self.model.versions[target].state), place, 1.0)
        self.writer.move(target, into=live)
        compare(live, self.model.versions[target].state)
        self.overtaken = False

    @rule(place=places)
    def roll_back(self, place):
        target = self.pick(place)
        self.state = states.stepped(states.copied(self.model.versions[target].state), place, 1.0)
        self.follow()
        self.writer.rollback(target, reason="a test", into=self.state)
        compare(self.state, self.model.versions[target].state)
        self.model.move(self.branch, target, datetime.now(UTC))

    @rule(place=places, machine=machines)
    def roll_a_branch_back(self, place, machine):
        target = self.pick(place)
        branch = sorted(self.model.branches)[place % len(self.model.branches)]
        self.repos[machine].rollback(branch, target, "a test")
        self.model.move(branch, target, datetime.now(UTC))
        self.overtake(branch)

    @precondition(lambda self: self.model.without)
    @rule(place=places, machine=machines)
    def go_back_to_what_has_no_weights(self, place, machine):
        target = sorted(self.model.without)[place % len(self.model.without)]
        for move in (self.repos[machine].rollback, self.repos[machine].branch):
            with pytest.raises(NoPath):
                move(self.branch if move == self.repos[machine].rollback else "no-way", target)

    # --- refs ---

    @rule(place=places, machine=machines)
    def branch_off(self, place, machine):
        name = f"branch-{next(self.numbers)}"
        self.model.branches[name] = self.pick(place)
        self.repos[machine].branch(name, self.model.branches[name])

    @precondition(lambda self: len(self.model.branches) > 1)
    @rule(place=places)
    def switch(self, place):
        self.branch = sorted(self.model.branches)[place % len(self.model.branches)]
        self.reopen(0)

    @precondition(lambda self: len(self.model.branches) > 1)
    @rule(place=places, machine=machines)
    def delete_branch(self, place, machine):
        name = [name for name in sorted(self.model.branches) if name != self.branch][
            place % (len(self.model.branches) - 1)
        ]
        self.repos[machine].delete_branch(name)
        self.model.move(name, None, datetime.now(UTC))

    @rule(place=places, machine=machines)
    def tag(self, place, machine):
        name = f"tag-{next(self.numbers)}"
        self.model.tags[name] = list(self.model.versions)[place % len(self.model.versions)]
        self.repos[machine].tag(name, self.model.tags[name])

    @precondition(lambda self: self.model.tags)
    @rule(place=places, machine=machines)
    def delete_tag(self, place, machine):
        name = sorted(self.model.tags)[place % len(self.model.tags)]
        self.repos[machine].delete_tag(name)
        del self.model.tags[name]

    # --- upkeep ---

    @rule(graces=st.sampled_from([0.2, 0.7, 1.5, 30]))
    def wait(self, graces):
        self.store.wait(seconds=graces * GRACE)

    @rule(policy=policies, machine=machines)
    def set_policy(self, policy, machine):
        self.repos[machine].set_policy(policy)
        self.model.policy = policy

    @rule(machine=machines, policy=st.none() | policies)
    def expire(self, machine, policy):
        if policy is not None:
            self.set_policy(policy, machine)
        repo = self.repos[machine]
        kept = self.model.kept(self.store.now())
        report = in_time(repo.expire)
        gone = {version for version in self.model.versions if not has_way(repo._index, version)}
        lost = gone & kept - self.model.without
        count(operations=1, lost=len(lost))
        assert not lost
        assert set(report.lost) <= gone
        self.model.without = gone

    @rule(machine=machines)
    def gc(self, machine):
        self.repos[machine].gc()
        assert self.repos[machine].gc().nbytes == 0
        count(operations=1)

    @rule(machine=machines)
    def compact(self, machine):
        done = self.repos[machine].compact(TIGHT)
        assert all("not published" in why for why in done.failed.values()), done.failed
        count(operations=1)

    @rule(machine=machines)
    def reindex(self, machine):
        self.repos[machine].reindex()
        count(operations=1)

    @rule(place=places, machine=machines)
    def verify(self, place, machine):
        assert self.repos[machine].verify(self.pick(place)).ok

    @rule(machine=machines)
    def reopen(self, machine):
        if machine == 0:
            self.writer.close()
        self.repos[machine].close()
        self.repos[machine] = self.opened(machine)
        if machine == 0:
            self.writer = self.repos[0].writer(self.branch, **self.options)
            self.overtaken = False

    @rule(place=places, machine=machines, what=st.sampled_from(["version", "layout", "edge"]), gone=st.booleans())
    def damage_and_repair(self, place, machine, what, gone):
        repo, version = self.repos[machine], self.pick(place)
        check(repo)  # which lets the database catch up
        key = {
            "version": f"versions/{version[:2]}/{version}.json",
            "layout": f"layouts/{repo.version(version).layout[:2]}/{repo.version(version).layout}.json",
            "edge": repo.edges(version)[0].key,
        }[what]
        body = self.store.get(key)
        self.store.delete(key)
        if not gone:
            self.store.put(key, body[:-9] + bytes([body[-9] ^ 1]) + body[-8:])
        assert key in {problem.key for problem in repo.fsck().problems}
        assert repo.fsck(repair=True).ok
        assert self.store.get(key) == body
        count(operations=1, damaged=1)

    # --- reading ---

    @rule(place=places, machine=machines)
    def check_out(self, place, machine):
        target = self.pick(place)
        told, repo = self.model.versions[target], self.repos[machine]
        found = repo.checkout(target)
        compare(found, told.state)
        tied = {name: id(tensor) for name, tensor in told.state.items() if tensor.numel()}
        assert len(set(tied.values())) == len({id(found[name]) for name in tied})
        some = sorted(told.state)[: 1 + place % len(told.state)]
        compare(repo.checkout(target, tensors=some), {name: told.state[name] for name in some})
        self.is_as_told(repo, target)

    def is_as_told(self, repo, target):
        one, told = repo.version(target), self.model.versions[target]
        for name in ("step", "message", "meta", "author"):
            if name in told.told:
                assert getattr(one, name) == told.told[name]
        for name, value in told.told.get("metrics", {}).items():
            assert one.metrics[name] == value or (math.isnan(value) and math.isnan(one.metrics[name]))
        for name, body in told.told.get("files", {}).items():
            assert repo.read_file(target, name) == body
        assert one.parents == told.parents

    @rule(place=places)
    def look_without_a_database(self, place):
        with Repo(self.store, LazyIndex(self.store, self.store.url), "0" * 32) as lazy:
            assert (lazy.branches(), lazy.tags()) == (self.model.branches, self.model.tags)
            target = list(self.model.versions)[place % len(self.model.versions)]
            if target in self.model.without:
                with pytest.raises(NoPath):
                    lazy.checkout(target)
            else:
                compare(lazy.checkout(target), self.model.versions[target].state)

    @invariant()
    def nothing_is_lost_or_wrong(self):
        if not hasattr(self, "model"):
            return
        number = next(self.numbers)
        repo = self.repos[number % 2]
        assert check(repo).without_weights == len(self.model.without)
        assert (repo.branches(), repo.tags()) == (self.model.branches, self.model.tags)
        for version in {list(self.model.versions)[-1], list(self.model.versions)[number % len(self.model.versions)]}:
            self.is_there(repo, version)

    def is_there(self, repo, version):
        if version in self.model.without:
            with pytest.raises(NoPath):
                repo.checkout(version)
        else:
            compare(repo.checkout(version), self.model.versions[version].state)

    def teardown(self):
        if not hasattr(self, "model"):
            return
        self.writer.close()
        with opened(self.store) as fresh:
            assert {version.id for version in fresh.log(all=True)} == set(self.model.versions)
            for version in self.model.versions:
                self.is_there(fresh, version)
                self.is_as_told(fresh, version)
        for repo in self.repos:
            repo.close()
        self.patch.undo()
        shutil.rmtree(self.directory)


class LongBench(Bench):
    """More of the same."""


TestBench = pytest.mark.timeout(900)(Bench.TestCase)  # which leaves time to find a shorter example
TestBench.settings = settings(max_examples=8, stateful_step_count=25)
TestLongBench = pytest.mark.long(pytest.mark.timeout(1800)(LongBench.TestCase))
TestLongBench.settings = settings(max_examples=16, stateful_step_count=40)
