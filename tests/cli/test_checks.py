"""fsck, verify and audit on the command line: what they print, as text and as JSON, and exit codes."""

import pytest

import deltavc


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def damaged(project):
    """The project, with one pack gone; its key."""
    path = max((project / "packs").rglob("*.pack"), key=lambda path: path.stat().st_mtime_ns)
    path.unlink()
    return path.relative_to(project).as_posix()


def test_fsck_of_a_whole_repository_says_what_it_looked_at(run, project):
    out = run("fsck").stdout
    assert "3 versions, 3 edges" in out
    assert out.endswith("no problems\n")
    assert "walked 3 of 3 edges" in run("fsck", "--full").stdout
    assert "some of them by an earlier check" in run("fsck", "--full").stdout
    assert "earlier" not in run("fsck", "--full", "--anew").stdout
    assert run("fsck", "--json").json["ok"]


def test_fsck_names_what_is_wrong_and_ends_with_20(run, project, damaged):
    out = run("fsck", code=20).stdout
    head = run("show", "--json").json["id"]
    assert f"missing_pack  {damaged}" in out
    assert f"lost: the weights of 1 version: {head[:12]}" in out
    assert "deltavc fsck --repair" in out
    found = run("fsck", "--json", code=20).json
    assert found["lost"] == [head]
    (problem,) = found["problems"]
    assert (problem["kind"], problem["key"], problem["versions"]) == ("missing_pack", damaged, [head])


def test_fsck_repairs_what_can_be_and_says_what_is_lost(run, project, damaged):
    out = run("fsck", "--repair", code=20).stdout
    assert "repaired: the edges that need it were dropped" in out
    assert "lost: the weights of 1 version" in out
    out = run("fsck").stdout
    assert "1 version without weights" in out
    assert out.endswith("no problems\n")


def test_verify_proves_a_version_or_names_what_is_wrong(run, project):
    assert "2 records compared" in run("verify", "step:2").stdout
    assert run("verify", "--json").json["ok"]
    for path in (project / "packs").rglob("*.pack"):
        path.write_bytes(b"damaged")
    out = run("verify", "step:2", code=20).stdout
    assert "is not as it should be" in out
    assert "damaged_pack  packs/" in out
    assert not run("verify", "--json", code=20).json["ok"]
    run("verify", "nothing", code=1)


def test_verify_compares_a_checkpoint_with_a_version(run, project):
    assert "step2 holds exactly" in run("verify", "step2", "--against", "step:2").stdout
    out = run("verify", "step3", "--against", "step:2", code=20).stdout
    assert "tensor 'layer.weight' has other values" in out
    found = run("verify", "step3", "--against", "step:2", "--json", code=20).json
    assert [difference["name"] for difference in found["tensors"]] == ["layer.weight"]
    run("verify", "nothing", "--against", "step:2", code=1)
    assert "add --against REF" in run("verify", "step2", code=1).stderr  # a checkpoint, not a version
    assert "--against" not in run("verify", "step9", code=1).stderr


def test_audit_tells_all_on_a_page(run, project):
    run("rollback", "main", "--to", "step:2", "--reason", "three was bad")
    out = run("audit", "step:2").stdout
    assert "Message      Step 2" in out
    assert "loss=0.5" in out
    assert "three was bad" in out
    assert "not walked" in out
    assert "walked 2 edges" in run("audit", "step:2", "--full").stdout
    found = run("audit", "main@{1}", "--json").json
    assert found["contained_in"] == []
    assert [move["what"] for move in found["moves"]] == ["to", "away"]


def test_a_branch_whose_only_snapshot_is_lost_goes_on_from_a_checkpoint(run, project):
    with deltavc.open(project) as repo:
        lost = {edge.packs[0].key for version in repo.log() for edge in repo.edges(version.id) if edge.base is None}
    for key in lost:
        (project / key).unlink()
    run("commit", "step4", code=20)
    run("fsck", "--full", "--repair", code=20)
    assert "no_path" in run("commit", "step4", "--json", code=1).stderr
    assert "cannot be reached" in run("gc", "--yes", code=1).stderr
    run("branch", "-d", "main")
    run("commit", "step4", "--orphan", "-m", "from a checkpoint")
    run("verify")
    run("policy", "--keep-last", 1)
    run("expire", "--yes")
    run("gc", "--yes")
    assert run("fsck", "--full").stdout.endswith("no problems\n")
    run("commit", "step3")
    assert len(run("log", "--json").json) == 2
    assert len(run("log", "--all", "--json").json) == 5
    run("commit", "step3", "--orphan", code=11)


def test_weights_that_the_policy_gave_up_are_no_damage(run, project):
    run("commit", "step4", "-m", "Step 4", "--snapshot")
    run("policy", "--keep-last", 1)
    run("expire", "--yes")
    out = run("verify", "step:2", code=1).stdout
    assert "is what its id says, and its weights were given up" in out
    assert "2 records compared" in out
    assert run("verify", "step:2", "--json", code=1).json["problems"] == []
    assert "its weights were given up" in run("audit", "step:2", code=1).stdout
    run("verify")


def test_a_long_history_is_shown_by_its_ends(run, project):
    for number in range(25):
        run("commit", f"step{number % 2 + 1}", "-m", f"more {number}")
    out = run("audit").stdout
    assert "...                 8 more" in out
    assert len(run("audit", "--json").json["history"]) == 28
