"""Compact: any version within bounds, nothing changed, whatever interrupts it, and no more written than is needed."""

import contextlib
import itertools
import secrets

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import deltavc
from deltavc import Bounds
from deltavc.errors import DatabaseNeeded, StoreError
from deltavc.lineage import bundles
from deltavc.lineage.index import Index
from deltavc.lineage.links import Link, Links
from deltavc.lineage.plan import plan
from deltavc.upkeep import bundle
from deltavc.upkeep.ways import Ways, spans
from tests import faults, states
from tests.upkeep.stores import grown, state_at

SMALL = Bounds(max_edges=5, max_ratio=1e9, max_work=1e9, span=2)


def within(repo, bounds, version):
    """Whether a checkout of this version walks as few edges as the bounds say."""
    first, *deltas = plan(repo._index, version, forward_only=True).steps
    assert first.edge.base is None
    return (
        len(deltas) <= bounds.max_edges
        and sum(step.edge.nbytes for step in deltas) <= bounds.max_ratio * first.edge.nbytes
        and sum(step.edge.changes for step in deltas) <= bounds.max_work * first.edge.changes
    )


@pytest.fixture
def repo(tmp_path):
    with deltavc.init(tmp_path / "repo") as repo:
        yield repo


def test_every_version_is_within_bounds_and_what_it_was(repo):
    ids = grown(repo, 30)
    repo.branch("side", ids[14])
    ids += grown(repo, 12, "side", first=100)
    seeds = [*range(30), *range(100, 112)]
    expected = repo.compact(SMALL, dry_run=True)
    done = repo.compact(SMALL)
    assert all(within(repo, SMALL, version) for version in ids)
    assert (done.num_edges, done.num_snapshots, done.failed, done.beyond) == (expected.num_edges, 0, {}, [])
    assert done.nbytes > 0
    for version, seed in zip(ids, seeds, strict=True):
        assert states.same(repo.checkout(version), state_at(seed))
    with deltavc.open(repo.url, db="none") as lazy:
        assert lazy.checkout(ids[-1]).version == ids[-1]


def test_what_is_there_is_used(repo):
    grown(repo, 30)
    repo.compact(SMALL)
    before = {edge.id for version in repo.log() for edge in repo.edges(version.id)}
    again = repo.compact(SMALL)
    assert (again.num_edges, again.num_snapshots, again.nbytes) == (0, 0, 0)
    grown(repo, 8, first=30)
    more = repo.compact(SMALL)
    assert 0 < more.num_edges < 12
    after = {edge.id for version in repo.log() for edge in repo.edges(version.id)}
    assert len(after - before) == 8 + more.num_edges
    with deltavc.open(repo.url, db="sqlite://") as other:
        assert other.compact(SMALL, dry_run=True).num_edges == 0


def test_a_short_history_is_left_alone(repo):
    grown(repo, 6)
    done = repo.compact(SMALL)
    assert (done.num_edges, done.num_snapshots, done.num_bundles) == (0, 0, 0)
    assert repo.compact().num_edges == 0


def test_bytes_and_work_are_bounded_by_snapshots(repo):
    ids = grown(repo, 12)  # every lane changes in every step, so each delta is as large as a snapshot
    for bounds in (Bounds(max_ratio=2.5), Bounds(max_work=1.5, max_ratio=1e9)):
        repo.compact(bounds)
        assert all(within(repo, bounds, version) for version in ids)
    assert 3 <= repo.stats().num_snapshots < 12
    for step, version in enumerate(ids):
        assert states.same(repo.checkout(version), state_at(step))


def test_a_dry_run_writes_nothing(repo, monkeypatch):
    monkeypatch.setattr(bundle, "MIN_MOVES", 8)
    grown(repo, 30)
    there = {item.key for item in repo._store.list() if not item.key.startswith("refs/")}
    expected = repo.compact(SMALL, dry_run=True)
    assert expected.num_edges > 0
    assert expected.num_bundles == 1
    assert {item.key for item in repo._store.list() if not item.key.startswith("refs/")} == there


def test_it_goes_on_where_it_was_interrupted(tmp_path):
    store = faults.faulty(tmp_path / "repo")
    deltavc.init(tmp_path / "repo").close()
    with deltavc.open(tmp_path / "repo") as opened:
        ids = grown(opened, 20)
        repo = deltavc.Repo(store, Index(opened._index.engine, store, opened.id), opened.id)
        for nth in itertools.count(1, 7):
            how = ("before", "after", KeyboardInterrupt())[nth % 3]
            with store.failing(nth, how) as fired, contextlib.suppress(StoreError, KeyboardInterrupt):
                repo.compact(SMALL)
            for version in ids[::5]:
                assert opened.checkout(version).version == version
            if not fired:
                break
        assert all(within(opened, SMALL, version) for version in ids)
        assert repo.compact(SMALL).num_edges == 0
        assert sum(edge.origin == "compact" for version in ids for edge in opened.edges(version)) < 20


def test_a_damaged_version_is_told_and_does_not_stop_it(repo, tmp_path):
    ids = grown(repo, 20)
    repo.branch("side", ids[2])
    side = grown(repo, 20, "side", first=100)
    pack = tmp_path / "repo" / repo.edges(ids[10])[0].packs[0].key
    pack.write_bytes(b"damaged" + pack.read_bytes()[7:])
    done = repo.compact(SMALL)
    assert done.failed
    assert all("is damaged" in why or pack.name in why for why in done.failed.values())
    assert all(within(repo, SMALL, version) for version in side)


def test_writers_go_on_beside_it(repo):
    grown(repo, 20)
    committed = []

    def commit(doing, done, total):
        if doing == "shortening ways" and done % 7 == 0:
            committed.append(repo.commit(state_at(1000 + done)).id)

    repo.compact(SMALL, progress=commit)
    assert len(committed) == 2
    assert states.same(repo.checkout(), state_at(1014))
    repo.compact(SMALL)
    assert all(within(repo, SMALL, version.id) for version in repo.log())


def test_it_needs_a_database(repo):
    with deltavc.open(repo.url, db="none") as lazy, pytest.raises(DatabaseNeeded):
        lazy.compact()


def test_bundles_are_written_when_enough_has_happened(repo, monkeypatch):
    monkeypatch.setattr(bundle, "MIN_MOVES", 8)
    grown(repo, 7)
    assert repo.compact().num_bundles == 0
    grown(repo, 1)
    assert repo.compact(dry_run=True).num_bundles == repo.compact().num_bundles == 1
    assert repo.compact().num_bundles == 0
    [first] = repo._store.list(bundles.BUNDLES)
    grown(repo, 8)
    assert repo.compact().num_bundles == 1
    [second] = repo._store.list(bundles.BUNDLES)
    assert first.key != second.key
    with deltavc.open(repo.url, db="sqlite://") as fresh:
        assert fresh.log() == repo.log()


@settings(max_examples=100)
@given(
    length=st.integers(1, 400),
    snapshots=st.sets(st.integers(1, 399), max_size=3),
    span=st.integers(2, 20),
    max_edges=st.integers(10, 60),
)
def test_spans_shorten_any_chain_to_their_digits(length, snapshots, span, max_edges):
    ids = [secrets.token_hex(8) for _ in range(length)]
    links = Links(ids)
    for number, version in enumerate(ids):
        if number == 0 or number in snapshots:
            links.into[version].append(Link(None, 10**9, 1))
        if number:
            links.into[version].append(Link(ids[number - 1], 10, 1))
    ways = Ways(links)
    for version in ids:
        ways.look(version)
        chain = ways.chain(version)
        assert ids.index(chain[-1]) - ids.index(chain[0]) == len(chain) - 1
    chain = ways.chain(ids[-1])
    for places in spans(chain, span):
        for start, end in places:
            assert end < len(chain)
            ways.add(chain[end], Link(chain[start], 10 * (end - start), 1))
    for place, version in enumerate(chain):
        digits, rest = 0, place
        while rest:
            rest, digit = divmod(rest, span)
            digits += digit
        assert ways.look(version).num_edges <= max(digits, place and 1)
