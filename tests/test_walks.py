"""Any sequence of commits, branches, moves and rollbacks leaves every version as a plain model says it is."""

import itertools
import shutil
import tempfile

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import deltavc
from deltavc import SnapshotPolicy, packing
from deltavc.delta import codecs
from tests import states

seeds = st.integers(0, 10_000)
places = st.integers(0, 10**6)


class RandomWalk(RuleBasedStateMachine):
    """The model: a dict of version ids to states, one of branches to ids, and where the writer stands."""

    @initialize(
        codec=st.sampled_from([None, *codecs.names()]),
        keep=st.sampled_from(["device", "host", "disk"]),
        max_edges=st.integers(1, 6),
        frame_bytes=st.sampled_from([8, 24, 1000, 16 << 20]),
        memory=st.sampled_from([0, 1 << 28]),
    )
    def start(self, codec, keep, max_edges, frame_bytes, memory):
        self.directory = tempfile.mkdtemp()
        self.frame_bytes, packing.FRAME_BYTES = packing.FRAME_BYTES, frame_bytes
        self.repo = deltavc.init(f"{self.directory}/repo")
        self.options = {"codec": codec, "keep": keep, "memory": memory}
        self.policy = SnapshotPolicy(max_edges=max_edges, max_ratio=1e9)
        self.model, self.branches = {}, {}
        self.state = {
            "w": states.random_bits("bfloat16", (13, 7)),
            "m": states.random_bits("float32", (5, 3, 4)),
            "c": states.random_bits("complex128", (6,)),
            "s": states.random_bits("float8_e5m2", ()),
            "e": states.random_bits("int64", (0, 3)),
        }
        self.branch, self.writer = "main", self.repo.writer(snapshots=self.policy, **self.options)
        self.numbers = itertools.count()
        self.commit(1, None)

    def version(self, place):
        return list(self.model)[place % len(self.model)]

    @rule(seed=seeds, snapshot=st.sampled_from([None, True, False]))
    def commit(self, seed, snapshot):
        if self.model and self.writer.version != self.branches[self.branch]:
            self.writer.move(self.branch)
        self.state = states.stepped(self.state, seed, 0.2)
        version = self.writer.commit(self.state, snapshot=snapshot)
        self.model[version.id] = states.copied(self.state)
        self.branches[self.branch] = version.id

    @rule(seed=seeds)
    def restructure(self, seed):
        self.state = states.restructured(self.state, seed)

    @rule(place=places)
    def move(self, place):
        target = self.version(place)
        live = states.stepped(states.copied(self.model[target]), place, 1.0)
        self.writer.move(target, into=live)
        assert states.same(live, self.model[target])

    @rule(place=places)
    def roll_back(self, place):
        target = self.version(place)
        self.state = states.stepped(states.copied(self.model[target]), place, 1.0)
        if self.writer.version != self.branches[self.branch]:
            self.writer.move(self.branch)
        self.writer.rollback(target, reason="a test", into=self.state)
        assert states.same(self.state, self.model[target])
        self.branches[self.branch] = target

    @rule(place=places)
    def branch_off(self, place):
        target = self.version(place)
        self.branch = f"branch-{next(self.numbers)}"
        self.repo.branch(self.branch, target)
        self.branches[self.branch] = target
        self.reopen()

    @precondition(lambda self: len(self.branches) > 1)
    @rule(place=places)
    def switch(self, place):
        self.branch = sorted(self.branches)[place % len(self.branches)]
        self.reopen()

    @rule()
    def reopen(self):
        self.writer.close()
        self.writer = self.repo.writer(self.branch, snapshots=self.policy, **self.options)

    @rule(place=places)
    def check_out(self, place):
        target = self.version(place)
        found = self.repo.checkout(target)
        assert states.same(found, self.model[target])
        tied = {name: id(tensor) for name, tensor in self.model[target].items() if tensor.numel()}
        assert len(set(tied.values())) == len({id(found[name]) for name in tied})

    @invariant()
    def branches_are_where_they_were_moved(self):
        if hasattr(self, "repo"):
            assert self.repo.branches() == dict(sorted(self.branches.items()))

    def teardown(self):
        if not hasattr(self, "repo"):
            return
        self.writer.close()
        with deltavc.open(self.repo.url, db="sqlite://") as fresh:
            assert {version.id for version in fresh.log(all=True)} == set(self.model)
            for version, state in self.model.items():
                assert states.same(fresh.checkout(version), state)
        self.repo.close()
        packing.FRAME_BYTES = self.frame_bytes
        shutil.rmtree(self.directory)


TestRandomWalk = RandomWalk.TestCase
TestRandomWalk.settings = settings(max_examples=12, stateful_step_count=25)
