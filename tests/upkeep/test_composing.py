"""Composing: one edge gives exactly what the way it stands for gives, and an interrupted one harms nothing."""

import contextlib
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import deltavc
from deltavc import walk
from deltavc.base import Base
from deltavc.errors import CorruptObject, StoreError
from deltavc.held import HeldLanes, fresh
from deltavc.lineage.index import Index
from deltavc.lineage.plan import Plan, Step
from deltavc.lineage.records import EdgeRecord
from deltavc.moving import move_base
from deltavc.timings import Timings
from deltavc.upkeep.composing import Composer, compose_path
from tests import faults, states

MEMORY = 1 << 26


def first_state():
    return {
        "w": states.random_bits("bfloat16", (13, 7)),
        "m": states.random_bits("float32", (5, 3, 4)),
        "c": states.random_bits("complex128", (6,)),
        "s": states.random_bits("float8_e5m2", ()),
        "e": states.random_bits("int64", (0, 3)),
    }


def chain(repo, length, *, codecs=(None,), restructure=(), seed=0):
    """A chain of commits; ids and states of its versions."""
    made = {}
    state = first_state()
    with repo.writer(snapshots=deltavc.SnapshotPolicy(max_ratio=1e9)) as writer:
        for number in range(length):
            if number:
                state = states.stepped(state, seed + number, 0.2)
            if number in restructure:
                state = states.restructured(state, seed + number)
            version = writer.commit(state, codec=codecs[number % len(codecs)], step=number)
            made[version.id] = states.copied(state)
    return made


def walked(repo, edge, base_id, forward=True):
    """What walking this one edge from a version gives: fingerprints by name."""
    access = repo._access(MEMORY)
    base = Base(HeldLanes(fresh("cpu")))
    move_base(access, base, base_id)
    step = Step(edge, forward)
    walk.walk(walk.legs(Plan(step.to, base_id, (step,), 0, 0), access.objects), base.lanes, access.objects, Timings())
    return {name: base.lanes[name] for name in base.lanes}


def lanes_of(repo, version):
    base = Base(HeldLanes(fresh("cpu")))
    move_base(repo._access(MEMORY), base, version)
    return {name: base.lanes[name] for name in base.lanes}


def is_at(found, repo, version):
    return states.same(found, lanes_of(repo, version))


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    ends=st.tuples(st.integers(-1, 6), st.integers(0, 6)).filter(lambda ends: ends[0] != ends[1]),
    codecs=st.lists(st.sampled_from([None, "sparse", "xor-zstd", "planes"]), min_size=1, max_size=3),
    restructure=st.sets(st.integers(1, 6), max_size=2),
    memory=st.sampled_from([0, MEMORY]),
)
def test_a_composed_edge_leads_from_its_base_to_its_target_and_back(
    seed, ends, codecs, restructure, memory, tmp_path_factory
):
    with deltavc.init(tmp_path_factory.mktemp("repo") / "repo") as repo:
        made = chain(repo, 7, codecs=codecs, restructure=restructure, seed=seed)
        ids = list(made)
        base, target = None if ends[0] < 0 else ids[ends[0]], ids[ends[1]]
        edge = compose_path(repo._access(memory), base, target)
        assert (edge.base, edge.target, edge.origin) == (base, target, "compact")
        assert EdgeRecord.parse(repo._store.get(edge.key)) == edge
        assert edge.id in {known.id for known in repo.edges(target)}
        assert is_at(walked(repo, edge, base), repo, target)
        if edge.reversible:
            assert is_at(walked(repo, edge, target, forward=False), repo, base)
        for version, state in made.items():
            assert states.same(repo.checkout(version), state)


def test_a_chain_of_edges_is_composed_reading_each_version_once(tmp_path):
    store = faults.faulty(tmp_path / "repo")
    deltavc.init(tmp_path / "repo").close()
    with deltavc.open(tmp_path / "repo") as opened:
        repo = deltavc.Repo(store, Index(opened._index.engine, store, opened.id), opened.id)
        ids = list(chain(repo, 13))
        store.calls.clear()
        with Composer(repo._access(MEMORY)) as composer:
            for base, target in itertools.pairwise(ids[::4]):
                composer.compose(base, target)
        reads = [key for name, key in store.calls if name == "get" and key.startswith("packs/")]
        assert len(reads) == len(set(reads)) == 13
        with deltavc.open(tmp_path / "repo", db="sqlite://") as other:
            other.checkout("main")


def test_frames_of_the_last_snapshot_are_used_again(tmp_path):
    with deltavc.init(tmp_path / "repo") as repo:
        state = {"big": states.random_bits("float32", (5000,)), "small": states.random_bits("float32", (5,))}
        repo.commit(state)
        state["small"] = states.random_bits("float32", (5,), 1)
        head = repo.commit(state)
        edge = compose_path(repo._access(MEMORY), None, head.id)
        assert sum(use.nbytes for use in edge.packs if use.frames is None) < 5000
        assert is_at(walked(repo, edge, None), repo, head.id)


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_failed_composition_leaves_versions_as_they_were_and_can_be_repeated(tmp_path, how):
    store = faults.faulty(tmp_path / "repo")
    deltavc.init(tmp_path / "repo").close()
    with deltavc.open(tmp_path / "repo") as opened:
        made = chain(opened, 5)
        base, target = list(made)[1], list(made)[-1]
        repo = deltavc.Repo(store, Index(opened._index.engine, store, opened.id), opened.id)
        for nth in itertools.count(1):
            with store.failing(nth, how) as fired, contextlib.suppress(StoreError):
                compose_path(repo._access(MEMORY), base, target)
            for version, state in made.items():
                assert states.same(opened.checkout(version), state)
            if not fired:
                break
        assert nth > 5
        assert any(edge.base == base for edge in opened.edges(target))


def test_a_damaged_way_ends_in_an_error_and_writes_no_edge(tmp_path):
    with deltavc.init(tmp_path / "repo") as repo:
        ids = list(chain(repo, 4))
        pack = tmp_path / "repo" / repo.edges(ids[2])[0].packs[0].key
        body = bytearray(pack.read_bytes())
        body[70] ^= 1
        pack.write_bytes(body)
        with pytest.raises(CorruptObject, match=pack.name):
            compose_path(repo._access(MEMORY), ids[0], ids[3])
        assert [edge.origin for edge in repo.edges(ids[3])] == ["commit"]
