"""Copies between two repositories that go on, clean up, lose objects and are interrupted, in any order."""

import itertools
import os

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import deltavc
from deltavc import Bounds, Policy, SnapshotPolicy
from deltavc.errors import DeltavcError, HistoriesDiffer, NoPath
from tests.faults import WRITES, FaultyStore
from tests.states import generator, same
from tests.upkeep.stores import ClockedStore, opened

BRANCHES = st.sampled_from(["main", "other"])


def state_at(number):
    w = torch.randn(40, generator=generator(1))
    w.view(torch.int32)[number % 9 :: 9] = number
    return {"w": w, "n": torch.tensor(number)}


class Copies(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.clock = [ClockedStore(), ClockedStore()]
        self.clock[1].url = "memory://other-place"
        self.stores = [FaultyStore(store) for store in self.clock]
        self.repos = [opened(store) for store in self.stores]
        self.numbers = itertools.count()
        self.commit("main", 2)
        self.source.branch("other", "main")

    def teardown(self):
        for repo in self.repos:
            repo.close()

    @property
    def source(self):
        return self.repos[0]

    @property
    def target(self):
        return self.repos[1]

    @rule(branch=BRANCHES, count=st.integers(1, 4))
    def commit(self, branch, count):
        with self.source.writer(branch, keep="host", snapshots=SnapshotPolicy(max_edges=3)) as writer:
            for _ in range(count):
                number = next(self.numbers)
                writer.commit(state_at(number), step=number, files={"rng": b"%d" % number})

    @rule(branch=BRANCHES, back=st.integers(1, 3))
    def roll_back(self, branch, back):
        history = self.source.log(branch, first_parent=True)
        to = history[min(back, len(history) - 1)]
        if to.weights:
            self.source.rollback(branch, to=to.id)

    @rule(which=st.integers(0, 1), keep=st.integers(1, 3))
    def clean_up(self, which, keep):
        self.repos[which].set_policy(Policy(keep_last=keep))
        self.repos[which].expire()
        self.clock[which].wait(days=2)
        self.repos[which].gc()
        self.repos[which].close()  # it would take the time that it was told before for that of now
        self.repos[which] = opened(self.stores[which])

    @rule(which=st.integers(0, 1))
    def compact(self, which):
        self.repos[which].compact(Bounds(max_edges=2))

    @rule(nth=st.integers(1, 30), how=st.sampled_from(["before", "after"]))
    def copy_interrupted(self, nth, how):
        with self.stores[1].failing(nth, how, names=WRITES):
            try:
                deltavc.copy(self.source, self.target)
            except DeltavcError:
                return

    @rule(nth=st.integers(0, 20))
    def lose_a_pack(self, nth):
        keys = sorted(self.clock[1].keys("packs/"))
        if keys and self.copied():
            self.clock[1].delete(keys[nth % len(keys)])
            self.copy()

    @rule()
    def copy(self):
        try:
            deltavc.copy(self.source, self.target)
        except (HistoriesDiffer, NoPath):
            return
        assert self.copied()
        for branch in ("main", "other"):
            head = self.target.version(branch)
            assert head.id == self.source.resolve(branch)
            assert same(self.target.checkout(branch), state_at(head.step))
            assert self.target.read_file(branch, "rng") == b"%d" % head.step
        assert not self.target.fsck(full=True).problems

    def copied(self):
        return self.target.branches() == self.source.branches()


TestCopies = Copies.TestCase
TestCopies.settings = settings(
    max_examples=60 if os.environ.get("HYPOTHESIS_PROFILE") == "long" else 4, stateful_step_count=12, deadline=None
)
