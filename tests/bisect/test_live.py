"""repo.bisect: what it finds, on whose tensors, and how those are left."""

import pytest
import torch

import deltavc
from deltavc import opening
from deltavc.errors import ForeignWrite, MarksContradict, StoreUnavailable, UnknownRef, WrongWeights
from deltavc.lineage.settings import Policy
from tests import states
from tests.faults import faulty
from tests.upkeep.stores import NO_SNAPSHOTS, ClockedStore, opened

FIRST_BAD = 11


def state_at(step):
    return {"w": torch.arange(1000.0) + step, "step": torch.tensor(step), "same": torch.ones(50)}


@pytest.fixture(scope="module")
def repo():
    with deltavc.init("memory://bisect-live", db="sqlite://") as repo, repo.writer("main") as writer:
        for step in range(20):
            writer.commit(state_at(step), step=step)
        yield repo


def is_bad(state, version):
    assert states.same(dict(state), state_at(version.step))
    return int(state["step"]) >= FIRST_BAD


def test_the_first_bad_version_is_found_and_what_changed_in_it(repo):
    found = repo.bisect(is_bad, "step:0")
    assert found.first_bad.step == FIRST_BAD
    assert found.suspects == (found.first_bad,)
    assert found.before.step == FIRST_BAD - 1
    assert [each.verdict for each in found.evaluations] == [
        "bad" if each.version.step >= FIRST_BAD else "good" for each in found.evaluations
    ]
    assert len(found.evaluations) <= 5
    changed = {tensor.name: tensor.status for tensor in found.changed.tensors}
    assert changed == {"w": "changed", "step": "changed", "same": "same"}


def test_without_a_good_version_all_of_history_is_searched(repo):
    assert repo.bisect(is_bad, bad="step:15").first_bad.step == FIRST_BAD
    first = repo.bisect(lambda state, version: True)
    assert (first.first_bad.step, first.before, first.changed) == (0, None, None)


def test_a_live_model_is_moved_and_put_back(repo):
    live = {name: tensor.clone() for name, tensor in repo.checkout("step:4").items()}
    places = {name: tensor.data_ptr() for name, tensor in live.items()}

    def looked_at(model, version):
        assert model is live
        return is_bad(model, version)

    assert repo.bisect(looked_at, ["step:0", "step:2"], into=live).first_bad.step == FIRST_BAD
    assert states.same(live, state_at(4))
    assert {name: tensor.data_ptr() for name, tensor in live.items()} == places


@pytest.mark.parametrize("staging_bytes", [None, 512], ids=["staged", "rewritten"])
def test_a_replica_is_taken_and_stays_open(repo, staging_bytes):
    live = repo.checkout("step:4")
    with repo.replica(live, at="step:4", staging_bytes=staging_bytes) as replica:
        assert replica.fits("step:5") == (staging_bytes is None)
        found = repo.bisect(lambda replica, version: is_bad(live, version), "step:0", into=replica)
        assert found.first_bad.step == FIRST_BAD
        assert replica.version == repo.resolve("step:4")
        replica.move("step:5", allow_long_pause=True)
    assert states.same(dict(live), state_at(5))


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_after_an_exception_a_live_model_is_put_back(repo, error):
    live = repo.checkout("step:4")

    def fails(model, version):
        raise error

    with pytest.raises(error):
        repo.bisect(fails, "step:0", into=live)
    assert states.same(dict(live), state_at(4))


@pytest.mark.parametrize("when", ["moving on", "moving back"])
def test_when_the_store_goes_away_it_is_said_at_which_version_a_live_model_is_left(tmp_path, monkeypatch, when):
    store = faulty(str(tmp_path / "repo"))
    monkeypatch.setattr(opening, "open_store", lambda *args: store)
    with deltavc.init(tmp_path / "repo") as repo:
        with repo.writer("main", snapshots=NO_SNAPSHOTS) as writer:
            for step in range(20):
                writer.commit(state_at(step), step=step)
        live = repo.checkout("step:4")
        left = []

        def goes_away(model, version):
            left.append(version)
            store._plan = lambda name, args: "before" if name.startswith("get") else None
            if when == "moving back":
                raise ZeroDivisionError
            return False

        with pytest.raises(StoreUnavailable) as caught:
            repo.bisect(goes_away, "step:0", into=live)
        store._plan = None
        assert states.same(dict(live), state_at(left[0].step))
        assert left[0].id in caught.value.__notes__[-1]
        assert repo.resolve("step:4") in caught.value.__notes__[-1]


def test_a_model_that_is_no_version_is_refused_and_not_touched(repo):
    live = state_at(4)
    live["w"][3] = -1
    before = states.copied(live)
    with pytest.raises(UnknownRef, match="no version"):
        repo.bisect(is_bad, "step:0", into=live)
    assert states.same(live, before)


@pytest.mark.parametrize("name", ["w", "same"])
@pytest.mark.parametrize("given", [False, True])
def test_who_writes_to_the_weights_is_told_so_and_a_live_model_is_put_back(repo, name, given):
    live = repo.checkout("step:4") if given else None

    def writes(state, version):
        state[name][7] += 1
        return version.step >= FIRST_BAD

    with pytest.raises((WrongWeights, ForeignWrite)) as caught:
        repo.bisect(writes, "step:0", into=live)
    assert "is_bad" in caught.value.__notes__[0]
    assert live is None or states.same(dict(live), state_at(4))


def test_what_cannot_be_told_leaves_suspects(repo):
    found = repo.bisect(lambda state, version: None if 8 <= version.step <= 13 else version.step > FIRST_BAD, "step:0")
    assert found.first_bad is None
    assert found.changed is None
    assert [version.step for version in found.suspects] == list(range(8, 15))


def test_good_and_bad_mixed_up_are_refused_before_anything_is_tried(repo):
    with pytest.raises(MarksContradict):
        repo.bisect(lambda state, version: pytest.fail("tried"), good="main", bad="step:0")


def test_versions_with_other_tensors_are_tried_too_but_not_in_a_model_that_cannot_hold_them(caplog):
    state = {"w": torch.zeros(10)}
    with deltavc.init("memory://bisect-layouts", db="sqlite://") as repo, repo.writer("main") as writer:
        for step in range(8):
            state = {**state, "w": state["w"] + 1} | ({"new": torch.ones(3)} if step == 5 else {})
            writer.commit(state, step=step)
        assert repo.bisect(lambda state, version: state["w"][0] > 6).first_bad.step == 6
        live = repo.checkout("step:2")
        found = repo.bisect(lambda state, version: state["w"][0] > 6, into=live)
        assert [version.step for version in found.suspects] == [5, 6, 7]
        assert live["w"][0] == 3
    assert "cannot be tried and is skipped" in caplog.text


def test_versions_without_weights_are_passed_over():
    """Of twenty versions every fourth keeps its weights: the four of which one is bad are what is left."""
    store = ClockedStore()
    with opened(store) as repo:
        with repo.writer("main", snapshots=NO_SNAPSHOTS) as writer:
            for step in range(20):
                writer.commit(state_at(step), step=step)
        repo.set_policy(Policy(keep_every=4))
        repo.expire()
        kept = {version.step for version in repo.log("main") if version.weights}
        assert kept == {0, 4, 8, 12, 16, 19}
        found = repo.bisect(is_bad, "step:0")
        assert [version.step for version in found.suspects] == [9, 10, 11, 12]
        assert {each.version.step for each in found.evaluations} <= kept


def test_damaged_weights_are_passed_over(tmp_path, caplog):
    with deltavc.init(tmp_path / "repo") as repo:
        with repo.writer("main") as writer:
            for step in range(8):
                writer.commit(state_at(step), step=step, snapshot=step == 5)
        for edge in [*repo.edges("step:4"), *repo.edges("step:5")]:
            if edge.base is not None:
                (tmp_path / "repo" / edge.packs[0].key).unlink()
        found = repo.bisect(lambda state, version: int(state["step"]) >= 5, "step:0")
        assert [version.step for version in found.suspects] == [4, 5]
    assert "cannot be tried" in caplog.text
