"""A store that fails, damages or loses what staging reads: live tensors stay as they are, or another way is found."""

import threading

import pytest

from deltavc.errors import CorruptObject, MissingObject, NoPath, StageCancelled, StoreUnavailable
from tests.faults import faulty
from tests.replica.samples import line_of, small_state
from tests.states import copied, random_bits, same
from tests.test_faults import opened


@pytest.fixture
def line(tmp_path):
    """A line of versions with packs too large to be fetched whole, on a store that can fail."""
    state = small_state() | {"wide": random_bits("bfloat16", (2_000_000,), 9)}
    with line_of(tmp_path / "repo", 4, state, 0.1) as (_, versions):
        pass
    with opened(faulty(tmp_path / "repo")) as repo:
        yield repo, versions


def test_a_store_that_dies_at_any_call_of_staging_leaves_the_live_tensors(line):
    repo, versions = line
    first, *_, last = versions
    live = copied(versions[first])
    nth = 0
    with repo.replica(live, at=first) as replica:
        while True:
            nth += 1
            replica._access.objects._layouts.clear()
            with repo._store.failing(nth, "before") as fired:
                try:
                    replica.stage(last).wait()
                except StoreUnavailable:
                    assert replica.state == "serving"
            assert same(live, versions[first])
            if not fired:
                break
            with repo._store.failing(0, "before"):
                replica.stage(first).wait()
        assert nth > 3
        replica.apply()
        assert same(live, versions[last])


def test_closing_cancels_all_that_is_being_staged(line):
    repo, versions = line
    first, second, *_, last = versions
    replica = repo.replica(copied(versions[first]), at=first)
    with repo._store.held(when=lambda key: key.startswith("packs/")):
        staged = [replica.stage(second), replica.stage(last)]
        closing = threading.Thread(target=replica.close)
        closing.start()
        while not all(each.cancelled.is_set() for each in staged):
            closing.join(0.01)
            assert closing.is_alive()
    closing.join()
    for each in staged:
        with pytest.raises(StageCancelled):
            each.wait()


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_a_damaged_pack_is_named_and_nothing_is_staged(line, tmp_path, damage):
    repo, versions = line
    first, *_, last = versions
    (edge,) = [edge for edge in repo.edges(last) if edge.base is not None]
    path = tmp_path / "repo" / edge.packs[0].key
    body = bytearray(path.read_bytes())
    if damage == "flipped":
        body[len(body) // 3] ^= 4
    path.chmod(0o644)
    path.write_bytes(body[: len(body) // 2] if damage == "truncated" else body)
    live = copied(versions[first])
    with repo.replica(live, at=first) as replica:
        with pytest.raises(CorruptObject) as caught:
            replica.move(last)
        assert caught.value.key == edge.packs[0].key
        assert caught.value.version == last
        assert same(live, versions[first])
        replica.move("main~1")
        assert same(live, versions[replica.version])


def test_a_lost_pack_is_missed_and_another_way_is_taken_where_there_is_one(line, tmp_path):
    repo, versions = line
    first, *_, last = versions
    live = copied(versions[first])
    for edge in repo.edges("main~1"):
        (tmp_path / "repo" / edge.packs[0].key).unlink()
    with repo.replica(live, at=first) as replica:
        with pytest.raises((MissingObject, NoPath)):
            replica.move(last)
        assert same(live, versions[first])
        assert replica.state == "serving"
