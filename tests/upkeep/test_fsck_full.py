"""The full check: whatever memory it has, wherever it is interrupted, whoever writes beside it."""

import itertools
import shutil

import pytest
import torch

import deltavc
from deltavc import packing
from deltavc.errors import StoreUnavailable
from deltavc.lineage.drops import DropRecord
from deltavc.upkeep import fsck_walk
from deltavc.upkeep.composing import compose_path
from deltavc.upkeep.fsck_journal import Journal
from tests import states
from tests.faults import faulty

NUM_EDGES = 21


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(fsck_walk, "MANY", 5)


def build(url):
    """Edges of every kind: snapshots inline, skips, side branches, and versions that drop, retype and tie tensors."""
    with deltavc.init(url) as repo:
        state = {f"{dtype}": states.random_bits(dtype, (40, 3), 7) for dtype in ("bfloat16", "int8", "complex128")}
        state |= {"none": torch.zeros(0, 3), "frozen": states.random_bits("float32", (50,), 3)}
        with repo.writer() as writer:
            for step in range(12):
                codec = (None, "raw", "planes", "sparse", "xor-zstd")[step % 5]
                writer.commit(state, step=step, codec=codec, snapshot=step in (5, 9), files={"rng": b"%d" % step})
                state = {**states.stepped(state, step), "frozen": state["frozen"]}
            writer.rollback("step:7")
            writer.commit({**state, "int8": state["int8"].float(), "tied": state["bfloat16"]}, step=8)
            writer.commit({"bfloat16": state["bfloat16"]}, step=9)
        repo.branch("side", "main@{3}~3")
        repo.commit(state, "side")
        access = repo._access(1 << 30)
        compose_path(access, repo.resolve("step:2"), repo.resolve("step:6"))
        compose_path(access, repo.resolve("step:6"), repo.resolve("side"))
    return url


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "FRAME_BYTES", 64)
        return build(tmp_path_factory.mktemp("full") / "repository")


@pytest.fixture
def root(original, tmp_path):
    return shutil.copytree(original, tmp_path / "repository")


@pytest.mark.parametrize("memory", [None, 2, 900])
def test_every_edge_is_walked_whatever_fits_into_memory(root, memory):
    with deltavc.open(root) as repo:
        report = repo.fsck(full=True, memory=memory)
        assert report.ok
        assert report.num_walked == report.counts.num_edges == NUM_EDGES


def test_exactly_the_versions_are_lost_that_no_way_without_damage_leads_to(root):
    with deltavc.open(root) as repo:
        edges = [edge for version in repo.log(all=True) for edge in repo.edges(version.id)]
        for path in sorted((root / "packs").rglob("*.pack")):
            body = path.read_bytes()
            path.write_bytes(body[:70] + bytes([body[70] ^ 4]) + body[71:])
            report = repo.fsck(full=True, anew=True)
            path.write_bytes(body)
            assert {problem.key for problem in report.problems} >= {path.relative_to(root).as_posix()}
            whole = [edge for edge in edges if path.stem not in {use.pack for use in edge.packs}]
            reached, forwards = {None}, {None}
            for _ in whole:
                forwards |= {edge.target for edge in whole if edge.base in forwards}
                reached |= {edge.target for edge in whole if edge.base in reached}
                reached |= {edge.base for edge in whole if edge.target in reached and edge.reversible}
            assert set(report.lost) == {edge.target for edge in edges} - reached
            back = [
                version for found in report.problems if found.kind == "no_way_forward" for version in found.versions
            ]
            assert set(back) == reached - forwards


def interrupting(after):
    """A progress that interrupts the check after so many edges."""
    counter = itertools.count(1)

    def progress(doing, done, total):
        if doing == "walking edges" and next(counter) == after:
            raise KeyboardInterrupt

    return progress


def test_an_interrupted_check_goes_on_where_it_was(root):
    seen = []
    with deltavc.open(root) as repo:
        for edges in (3, 4):
            with pytest.raises(KeyboardInterrupt):
                repo.fsck(full=True, progress=interrupting(edges))
        report = repo.fsck(full=True, progress=lambda doing, *_: seen.append(doing))
    assert report.ok
    assert report.num_walked == NUM_EDGES
    assert report.since is not None
    assert seen.count("walking edges") == NUM_EDGES - 3 - 4 + 2  # the last of each was walked, and not yet noted


def test_a_check_anew_relies_on_nothing(root):
    with deltavc.open(root) as repo:
        assert repo.fsck(full=True).since is None
        assert repo.fsck(full=True).since is not None
        seen = []
        assert repo.fsck(full=True, anew=True, progress=lambda doing, *_: seen.append(doing)).since is None
        assert seen.count("walking edges") == NUM_EDGES


def test_a_journal_forgets_after_a_week_and_passes_over_what_is_torn(tmp_path):
    path = tmp_path / "journal"
    path.write_text("2020-01-02T03:04:05Z old\nnonsense\n2999-01-02T03:04:05Z new\n2999-01-02T03:04:05Z to")
    journal = Journal(path)
    assert ("old" in journal, "new" in journal, "to" in journal) == (False, True, False)
    journal.add("more")
    journal.close()
    again = Journal(path)
    assert "more" in again
    again.close()


def test_a_journal_that_cannot_be_written_fails_nothing(root, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with deltavc.open(root) as repo:
        assert repo.fsck(full=True).ok


def test_commits_made_meanwhile_are_no_problem(root):
    state = {"bfloat16": torch.zeros(40, 3).bfloat16()}
    with deltavc.open(root) as other, other.writer("side") as writer, deltavc.open(root) as repo:
        counter = itertools.count()

        def commit(*_):
            if next(counter) % 6 == 0:
                state["bfloat16"] += 1
                writer.commit(state, snapshot=True, files={"rng": b"%d" % next(counter)})

        report = repo.fsck(full=True, progress=commit)
        assert next(counter) > 12
        assert report.ok
        assert not report.problems


class CleanUp:
    """A progress that drops an edge and deletes its packs when it is called for the nth time."""

    def __init__(self, root, edge, moment):
        self.root, self.edge, self.left = root, edge, moment

    def __call__(self, *_):
        self.left -= 1
        if self.left == 0:
            record = DropRecord.of(self.edge, "somebody", "expire")
            (self.root / record.key).parent.mkdir(parents=True)
            (self.root / record.key).write_bytes(record.body)
            for use in self.edge.packs:
                (self.root / use.key).unlink()


@pytest.mark.long
def test_clean_up_made_meanwhile_is_no_problem(root, tmp_path):
    with deltavc.open(root) as repo:
        target = repo.resolve("main@{3}~2")  # step 9, which has a snapshot too
        (edge,) = (edge for edge in repo.edges(target) if edge.base is not None)
    for moment in itertools.count(1):
        copy = shutil.copytree(root, tmp_path / f"copy{moment}")
        clean_up = CleanUp(copy, edge, moment)
        with deltavc.open(copy) as repo:
            report = repo.fsck(full=True, progress=clean_up)
        assert report.ok, report.problems
        if clean_up.left > 0:
            break
    assert moment > 20


def test_nothing_is_dropped_when_all_packs_are_away(root, tmp_path):
    """As when a disk was not mounted: what is dropped now would be deleted when it is back."""
    (root / "packs").rename(tmp_path / "away")
    with deltavc.open(root) as repo:
        report = repo.fsck(repair=True)
        assert not report.ok
        assert not (root / "drops").exists()
        (tmp_path / "away").rename(root / "packs")
        assert repo.fsck(full=True).ok


def test_a_store_that_cannot_be_asked_is_no_damage(root):
    store = faulty(root)
    with deltavc.open(root) as repo:
        repo._store = store
        for nth in itertools.count(1, 13):
            with store.failing(nth, "before") as fired:
                try:
                    report = repo.fsck(full=True, anew=True)
                except StoreUnavailable:
                    assert fired
                else:
                    assert report.ok
                    assert not fired
                    break
    assert nth > 100
