"""A bucket behind S3 and an index in PostgreSQL are checked, whatever the local cache remembers of them."""

import pytest

import deltavc
from deltavc.store.objects import open_store
from tests import states

pytestmark = pytest.mark.servers


@pytest.fixture
def place(s3, postgres, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return {
        "url": f"{s3.new_bucket()}/team/run-7",
        "db": postgres.new_database(),
        "storage_options": s3.storage_options,
    }


@pytest.mark.long
def test_damage_in_a_bucket_is_found_behind_the_cache_and_repaired(place):
    with deltavc.init(**place) as repo:
        state = states.of_every_dtype()
        for step in range(5):
            repo.commit(state, step=step, files={"rng": b"%d" % step}, snapshot=step == 4)
            state = states.stepped(state, step)
        for version in repo.log():
            repo.checkout(version.id)
        assert repo.fsck(full=True).ok
        assert repo.verify("main~1").ok
        store = open_store(place["url"], place["storage_options"])
        (edge,) = repo.edges("main~2")
        body = store.get(edge.packs[0].key)
        store.put(edge.packs[0].key, body[:80] + bytes([body[80] ^ 1]) + body[81:])
        version = f"versions/{repo.resolve('main~3')[:2]}/{repo.resolve('main~3')}.json"
        store.delete(version)
        repo.checkout("main~2")  # from the cache
        report = repo.fsck(full=True, anew=True)
        assert {problem.kind for problem in report.problems} >= {"damaged_pack", "missing_version"}
        assert not repo.verify("main~2").ok
        report = repo.fsck(full=True, repair=True, anew=True)
        assert not report.lost
        assert report.ok, report.problems
        assert repo.fsck(full=True, anew=True).ok
    with deltavc.open(place["url"], "sqlite://", place["storage_options"]) as repo:
        assert [version.step for version in repo.log()] == [4, 3, 2, 1, 0]
        for version in repo.log():
            assert repo.verify(version.id).ok


def test_without_a_database_everything_in_the_bucket_is_checked(place):
    with deltavc.init(**place) as repo:
        repo.commit({"w": states.random_bits("bfloat16", (40,))}, step=1)
    with deltavc.open(place["url"], storage_options=place["storage_options"]) as repo:
        assert repo.database is None
        assert repo.fsck(full=True).ok
        assert repo.verify("main").ok
        assert repo.match({"w": states.random_bits("bfloat16", (40,))}, "main").ok
