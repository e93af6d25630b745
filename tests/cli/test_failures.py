"""Every way a command can fail: exit code, what it says, and that nothing secret or half done is left."""

import errno
import json
import threading

import click
import pytest
from deltavc.cli import failures

import deltavc
from deltavc.errors import DatabaseUnavailable


def test_an_unknown_ref_lists_what_is_near(run, project):
    said = run("log", "mian", code=1).stderr
    assert said.startswith("error: unknown ref 'mian'")
    assert "did you mean main?" in said
    assert "\nhint: " in said


def test_an_ambiguous_ref_lists_its_candidates(run, project):
    run("commit", "step4", "--step", "3")
    ids = [version["id"] for version in run("log", "--json").json][:2]
    said = run("show", "step:3", code=1).stderr
    assert all(version in said for version in ids)


def test_no_repository_is_10(run, folder):
    assert "deltavc init" in run("log", code=10).stderr
    assert run("log", "--repo", folder / "nothing", code=10).stdout == ""
    run("db", "upgrade", "--repo", folder, code=10)
    assert not (folder / "lineage.db").exists()


def test_no_repository_says_what_named_it(run, folder, monkeypatch):
    assert "(--repo names it)" in run("log", "--repo", "runs/nothing", code=10).stderr
    run("init", "runs/moved")
    (folder / "runs" / "moved").rename(folder / "runs" / "away")
    assert f"({folder / '.deltavc' / 'config.toml'} names it)" in run("log", code=10).stderr
    monkeypatch.setenv("DELTAVC_REPO", "runs/nothing")
    assert "(DELTAVC_REPO names it)" in run("log", code=10).stderr


def test_a_repository_that_exists_is_not_made_again(run, project, folder, monkeypatch):
    (folder / "other").mkdir()
    monkeypatch.chdir(folder / "other")
    run("init", project, code=1)
    assert not (folder / "other" / ".deltavc").exists()


def test_a_repository_whose_config_cannot_be_written_is_named(run, folder):
    (folder / ".deltavc").touch()
    said = run("init", "runs/demo", code=1).stderr
    assert f"{folder / 'runs' / 'demo'} is made, but {folder / '.deltavc'} cannot be written" in said
    run("commit", "step1", "--repo", "runs/demo")


def test_a_name_that_is_taken_is_11(run, project):
    run("tag", "v1")
    run("tag", "v1", "step:1", code=11)
    run("branch", "main", code=11)


def test_a_branch_that_moved_meanwhile_is_11_and_nothing_is_committed(run, project, rival):
    with rival("step4"):
        failed = run("commit", "step4", "--file", "slow=pipe", "--json", code=11)
    said = json.loads(failed.stderr)
    assert said["kind"] == "branch_moved"
    assert said["facts"]["branch"] == "main"
    assert "w.move" in said["hint"]
    assert [version["message"] for version in run("log", "-n", "2", "--json").json] == ["first", "Step 3"]


@pytest.fixture
def rival(project, folder):
    """Somebody who commits to the same branch while a commit waits for the pipe that it reads a file from."""
    import contextlib
    import os

    @contextlib.contextmanager
    def rival(checkpoint):
        os.mkfifo("pipe")

        def commit():
            with open("pipe", "wb") as pipe, deltavc.open(project) as repo:
                repo.commit(folder / checkpoint, message="first")
                pipe.write(b"content")

        thread = threading.Thread(target=commit)
        thread.start()
        yield
        thread.join()

    return rival


def test_a_damaged_pack_is_20_and_nothing_is_checked_out(run, project, folder):
    for pack in (project / "packs").rglob("*.pack"):
        content = bytearray(pack.read_bytes())
        content[len(content) // 2] ^= 1
        content[70] ^= 1
        pack.chmod(0o644)
        pack.write_bytes(content)
    failed = run("checkout", "main", "-o", "out", "--json", code=20)
    said = json.loads(failed.stderr)
    assert said["kind"] == "corrupt_object"
    assert said["facts"]["key"].startswith("packs/")
    assert not (folder / "out").exists()


def test_a_missing_pack_is_20(run, project):
    for pack in (project / "packs").rglob("*.pack"):
        pack.unlink()
    assert "missing" in run("checkout", "main", "-o", "out", code=20).stderr


@pytest.mark.parametrize(
    "args",
    [
        ["lgo"],
        ["log", "--nonsense"],
        ["log", "a", "b"],
        ["log", "-n", "-1"],
        ["commit"],
        ["commit", "step4", "--metric", "loss"],
        ["commit", "step4", "--metric", "loss=low"],
        ["commit", "step4", "--metric", "=1"],
        ["commit", "step4", "--metric", "a=1", "--metric", "a=2"],
        ["commit", "step4", "--step", "many"],
        ["commit", "step4", "--meta", "x"],
        ["commit", "step4", "--file", "x"],
        ["checkout", "main"],
        ["rollback", "main", "--to", "step:1"],
        ["branch", "-d"],
        ["branch", "-d", "main", "step:1"],
        ["tag", "-d"],
        ["completion", "tcsh"],
        ["db"],
        ["db", "downgrade"],
        ["log", "--storage-option", "nonsense"],
        [],
    ],
    ids=" ".join,
)
def test_a_command_line_that_makes_no_sense_is_2(run, project, args):
    failed = run(*args, code=2)
    assert failed.stdout == ""
    assert "\nerror: " in failed.stderr
    assert json.loads(run("--json", *args, code=2).stderr)["kind"] == "usage"
    assert len(run("log", "--json").json) == 3


def test_a_mistyped_command_is_guessed(run):
    assert "did you mean log?" in run("lgo", code=2).stderr


@pytest.mark.parametrize(
    ("args", "kind"),
    [
        (["commit", "nowhere"], "bad_checkpoint"),
        (["commit", "step4/config.json"], "bad_checkpoint"),
        (["commit", "runs"], "bad_checkpoint"),
        (["commit", "step4", "--codec", "zip"], "unknown_codec"),
        (["commit", "step4", "--dtype", "float3"], "bad_state"),
        (["commit", "step4", "--step", "99999999999999999999"], "bad_metadata"),
        (["commit", "step4", "--meta", 'x={"y": NaN}'], "bad_metadata"),
        (["commit", "step4", "--file", "../x=step4/config.json"], "bad_metadata"),
        (["commit", "step4", "--file", "x=nothing"], "bad_metadata"),
        (["commit", "step4", "--branch", "a b"], "bad_ref_name"),
        (["commit", "step4", "--branch", "other"], "unknown_ref"),
        (["identify", "nowhere"], "bad_checkpoint"),
        (["checkout", "main", "-o", "step4"], "bad_checkpoint"),
        (["checkout", "main", "-o", "step4/config.json"], "bad_checkpoint"),
        (["branch", "x..y"], "bad_ref_name"),
        (["branch", "-d", "other"], "unknown_ref"),
        (["tag", "v1", "other"], "unknown_ref"),
        (["rollback", "other", "--to", "main", "--reason", "x"], "unknown_ref"),
        (["reflog", "other"], "unknown_ref"),
        (["log", "best:lss"], "unknown_ref"),
        (["status", "--db", "mysql://h/d"], "database_unavailable"),
        (["log", "--repo", "ftp://me:S3CRET@h/x"], "store_unfit"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_1_with_its_kind_and_changes_nothing(run, project, args, kind):
    said = run(*args, "--json", code=1).stderr
    assert json.loads(said)["kind"] == kind
    assert "S3CRET" not in said
    assert run(*args, code=1).stderr.startswith("error: ")
    assert len(run("log", "--all", "--json").json) == 3


def test_a_database_of_another_repository_is_refused(run, project, folder):
    run("init", "x", code=2)
    deltavc.init(folder / "other").close()
    failed = run("log", "--repo", "other", "--db", f"sqlite:///{project / 'lineage.db'}", "--json", code=1)
    assert json.loads(failed.stderr)["kind"] == "wrong_database"


def test_secrets_are_taken_out_of_every_part_of_an_error(capsys):
    error = DatabaseUnavailable("postgresql://me:S3CRET@h/d", "password=S3CRET\nis wrong")
    for as_json in (False, True):
        assert failures.report(error, as_json=as_json, verbose=True) == 1
        said = capsys.readouterr().err
        assert "S3CRET" not in said
        assert "unavailable" in said
    assert json.loads(said)["kind"] == "database_unavailable"


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (RuntimeError("odd"), "internal", 1),
        (OSError(errno.ENOSPC, "No space left on device", "/data/x"), "os_error", 1),
        (MemoryError(), "out_of_memory", 1),
        (KeyboardInterrupt(), "interrupted", 130),
        (ModuleNotFoundError("no", name="s3fs"), "missing_package", 1),
        (click.FileError("x"), "usage", 1),
    ],
)
def test_errors_that_nobody_foresaw_are_one_line(capsys, error, kind, code):
    assert failures.report(error, as_json=True, verbose=False) == code
    assert json.loads(capsys.readouterr().err)["kind"] == kind
    failures.report(error, as_json=False, verbose=False)
    assert "Traceback" not in capsys.readouterr().err


def test_a_bug_shows_its_traceback_when_asked(capsys):
    try:
        raise RuntimeError("odd postgresql://me:S3CRET@h/d")
    except RuntimeError as error:
        failures.report(error, as_json=False, verbose=True)
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "This is a bug" in said
    assert "S3CRET" not in said


def test_an_end_of_file_inside_deltavc_is_a_bug_and_no_interrupt():
    abort = click.Abort()
    abort.__cause__ = EOFError()
    assert failures.describe(abort).kind == "internal"
