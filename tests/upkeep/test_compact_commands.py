"""`deltavc compact` and `deltavc reindex`: what they say, to people and to programs."""

import deltavc
from deltavc.errors import TooLate
from deltavc.freshness import Freshness
from tests.cli.conftest import checkpoints, folder, run  # noqa: F401
from tests.upkeep.stores import grown


def repository(where):
    with deltavc.init(where / "long") as repo:
        grown(repo, 60)
    return str(where / "long")


def test_compact_says_what_it_would_write_and_what_it_wrote(run, tmp_path):  # noqa: F811
    url = repository(tmp_path)
    assert "would write" in run("compact", "--dry-run", "--repo", url).stdout
    assert run("compact", "--dry-run", "--repo", url, "--json").json["dry_run"]
    done = run("compact", "--repo", url, "--json").json
    assert done["num_edges"] + done["num_snapshots"] > 0
    assert run("compact", "--repo", url).stdout == "every version is within bounds; no edge is needed\n"
    assert run("compact", "--repo", url, "--db", "none", code=1).stderr


def test_compact_names_what_is_in_the_way_and_ends_with_20(run, tmp_path):  # noqa: F811
    url = repository(tmp_path)
    with deltavc.open(url) as repo:
        pack = tmp_path / "long" / repo.edges("main~30")[0].packs[0].key
    pack.write_bytes(b"damaged" + pack.read_bytes()[7:])
    out = run("compact", "--repo", url, code=20).stdout
    assert pack.name in out
    assert "fsck --full" in out


def test_compact_that_was_too_slow_ends_with_1_and_says_to_run_it_again(run, tmp_path, monkeypatch):  # noqa: F811
    url = repository(tmp_path)

    def too_slow(self, mark, what):
        raise TooLate(what, 60.0, 30.0)

    with monkeypatch.context() as patch:
        patch.setattr(Freshness, "check", too_slow)
        assert "compact again" in run("compact", "--repo", url, code=1).stdout
        assert run("compact", "--repo", url, "--json", code=1).json["damaged"] == []
    run("compact", "--repo", url)


def test_reindex_tells_what_the_database_holds(run, tmp_path):  # noqa: F811
    url = repository(tmp_path)
    assert run("reindex", "--repo", url).stdout == run("stats", "--repo", url).stdout
    assert run("reindex", "--repo", url, "--json").json["num_versions"] == 60
    assert "--db" in run("reindex", "--repo", url, "--db", "none", code=1).stderr
