"""`deltavc compact` and `deltavc reindex`: what they say, to people and to programs."""

import deltavc
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


def test_reindex_tells_what_the_database_holds(run, tmp_path):  # noqa: F811
    url = repository(tmp_path)
    assert run("reindex", "--repo", url).stdout == run("stats", "--repo", url).stdout
    assert run("reindex", "--repo", url, "--json").json["num_versions"] == 60
    assert "--db" in run("reindex", "--repo", url, "--db", "none", code=1).stderr
