"""Bad input gets an error that names it, with a kind to rely on, and leaves the repository as it was."""

import logging
import resource
import sqlite3
import traceback
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import deltavc
from deltavc.errors import (
    BadCheckpoint,
    BadMetadata,
    BadState,
    BranchMoved,
    CorruptObject,
    DatabaseNeeded,
    DatabaseUnavailable,
    DeltavcError,
    FormatUnsupported,
    NotARepository,
    RepositoryExists,
    SchemaOutdated,
    SchemaTooNew,
    StoreFull,
    StoreUnfit,
    UnknownCodec,
    UnknownRef,
    UnsupportedDtype,
    WrongDatabase,
)
from deltavc.opening import upgrade_database
from tests import states

STATE = {"w": torch.arange(12.0)}


@pytest.fixture
def repo(tmp_path):
    with deltavc.init(tmp_path / "repo") as repo:
        repo.commit(STATE, step=0)
        yield repo


def listing(root):
    """Every object but hints, and the empty files by which the time is told, which come and go when there is time."""
    passing = ("lineage.db", "last", "now.tmp-")
    paths = [path for path in root.rglob("*") if path.is_file() and not path.name.startswith(passing)]
    return {path: path.read_bytes() for path in paths}


class Scripted(torch.Tensor):
    """A subclass that intercepts operations."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def broken_checkpoints(tmp_path):
    empty, incomplete, junk = tmp_path / "empty", tmp_path / "incomplete", tmp_path / "junk.safetensors"
    empty.mkdir()
    incomplete.mkdir()
    save_file(STATE, incomplete / "one.safetensors")
    (incomplete / "model.safetensors.index.json").write_text('{"weight_map": {"w": "one.safetensors", "x": "two"}}')
    junk.write_bytes(b"\x08\0\0\0\0\0\0\0not json")
    return {"absent": tmp_path / "absent", "empty": empty, "incomplete": incomplete, "junk": junk}


TELLING = {
    "meta tensor": ({"w": torch.zeros(3, device="meta")}, {}, BadState, "'w' is on the meta device"),
    "dtype": ({"w": torch.ones(2), "q": torch.empty(2, dtype=torch.bits16)}, {}, UnsupportedDtype, "bits16.*'q'"),
    "sparse": ({"w": torch.ones(2).to_sparse()}, {}, BadState, "'w' is not dense"),
    "quantised": ({"w": torch.zeros(2).bool(), "n": 5}, {}, BadState, "'n' is not a tensor but a int"),
    "no tensors": ({}, {}, BadState, "no tensors"),
    "no state": (5, {}, BadState, "int is not a state"),
    "name": ({"": torch.ones(1)}, {}, BadState, "0 characters"),
    "long name": ({"n" * 1001: torch.ones(1)}, {}, BadState, "1001 characters"),
    "surrogate": ({"\udc80": torch.ones(1)}, {}, BadState, "UTF-8"),
    "number as name": ({5: torch.ones(1)}, {}, BadState, "5 is not a name"),
    "codec": (STATE, {"codec": "gzip"}, UnknownCodec, "known are sparse"),
    "cast": (STATE, {"dtype": torch.int8}, BadState, "not int8"),
    "step": (STATE, {"step": 1.5}, BadMetadata, "step: 1.5"),
    "huge step": (STATE, {"step": 2**53}, BadMetadata, "step"),
    "message": (STATE, {"message": b"bytes"}, BadMetadata, "message"),
    "metric": (STATE, {"metrics": {"loss": "low"}}, BadMetadata, "'loss'.*'low' is not a number"),
    "metric name": (STATE, {"metrics": {"m" * 201: 1}}, BadMetadata, "1 to 200 characters"),
    "metrics": (STATE, {"metrics": [("loss", 1)]}, BadMetadata, "a list is not a mapping"),
    "meta": (STATE, {"meta": {"x": torch.ones(1)}}, BadMetadata, "meta.*Tensor"),
    "meta not JSON": (STATE, {"meta": {"x": float("nan")}}, BadMetadata, "meta"),
    "author": (STATE, {"author": 5}, BadMetadata, "author"),
    "file name": (STATE, {"files": {"../x": b""}}, BadMetadata, "starts with a dot"),
    "weight file": (STATE, {"files": {"model.safetensors": b""}}, BadMetadata, "taken by the weights"),
    "file type": (STATE, {"files": {"x": 5}}, BadMetadata, "neither bytes nor a path"),
    "files": (STATE, {"files": [("x", b"")]}, BadMetadata, "a list is not a mapping"),
    "absent file": (STATE, {"files": {"x": "/nonexistent/file"}}, BadMetadata, "/nonexistent/file"),
    "parent": (STATE, {"parents": ["nowhere"]}, UnknownRef, "nowhere"),
    "old parent": (STATE, {"parents": []}, BranchMoved, "main"),
    "subclass": ({"w": torch.ones(2).as_subclass(Scripted)}, {}, BadState, "Scripted"),
}


@pytest.mark.parametrize("case", TELLING)
def test_a_commit_that_cannot_be_writes_nothing(repo, tmp_path, case):
    state, told, error, reason = TELLING[case]
    before = listing(tmp_path / "repo")
    with repo.writer() as writer:
        for commit in (repo.commit, writer.commit):
            with pytest.raises(error, match=reason) as raised:
                commit(state, **told)
            assert raised.value.kind
            assert raised.value.hint
        assert listing(tmp_path / "repo") == before
        writer.commit({"w": torch.ones(12)})
    assert torch.equal(repo.checkout()["w"], torch.ones(12))


@pytest.mark.parametrize("case", ["absent", "empty", "incomplete", "junk"])
def test_a_path_that_is_no_checkpoint_is_named(repo, tmp_path, case):
    path = broken_checkpoints(tmp_path)[case]
    before = listing(tmp_path / "repo")
    for use in (repo.commit, repo.identify):
        with pytest.raises(BadCheckpoint) as raised:
            use(path)
        assert raised.value.path.startswith(str(path))
    assert listing(tmp_path / "repo") == before


def test_an_index_that_names_absent_tensors_says_which(repo, tmp_path):
    save_file(STATE, tmp_path / "one.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(
        '{"weight_map": {"w": "one.safetensors", "x": "one.safetensors"}}'
    )
    with pytest.raises(BadCheckpoint, match="no file has: x"):
        repo.commit(tmp_path)


def test_a_base_that_a_full_disk_cannot_hold_is_an_error_and_nothing_is_committed(repo, tmp_path):
    before = listing(tmp_path / "repo")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with repo.writer(keep="disk") as writer:
        large = {"w": torch.arange(12.0), "large": torch.zeros(500_000)}
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
        try:
            with pytest.raises(StoreFull, match="keeping the base"):
                writer.commit(large)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert listing(tmp_path / "repo") == before
        writer.commit(large)
    assert states.same(repo.checkout(), large)


# --- repositories and databases ---


def test_a_place_without_a_repository_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path, tmp_path / "absent", tmp_path / "file", "memory://nothing-here"):
        with pytest.raises(NotARepository) as raised:
            deltavc.open(place)
        assert raised.value.exit_code == 10
    for place in ("", "ftp://host/x", "s3://", "memory://", "file://host/x"):
        with pytest.raises(StoreUnfit):
            deltavc.open(place)
    assert not (tmp_path / "absent").exists()


def test_a_repository_that_lost_its_marker_is_told_to_restore_it(repo, tmp_path):
    root = Path(repo.url)
    (root / "deltavc.json").rename(tmp_path / "marker")
    with pytest.raises(NotARepository, match=r"but deltavc\.json is gone: restore that object"):
        deltavc.open(root)
    (tmp_path / "marker").rename(root / "deltavc.json")
    deltavc.open(root).close()


def test_init_takes_no_place_that_is_taken(repo, tmp_path):
    with pytest.raises(RepositoryExists):
        deltavc.init(repo.url)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    with pytest.raises(RepositoryExists, match=r"cat\.jpg"):
        deltavc.init(tmp_path / "photos")
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cat.jpg"]


@pytest.mark.parametrize(
    ("marker", "error"),
    [
        (b'{"format":2,"repository":"x"}', FormatUnsupported),
        (b'{"format":0,"repository":"x"}', FormatUnsupported),
        (b'{"format":true,"repository":"x"}', FormatUnsupported),
        (b'{"format":"1","repository":"x"}', FormatUnsupported),
        (b'{"format":1}', CorruptObject),
        (b'{"format":1,"repository":5}', CorruptObject),
        (b"[]", CorruptObject),
        (b"", CorruptObject),
    ],
)
def test_a_repository_of_another_format_is_left_alone(repo, tmp_path, marker, error):
    (tmp_path / "repo" / "deltavc.json").write_bytes(marker)
    before = listing(tmp_path / "repo")
    for use in (deltavc.open, deltavc.init):
        with pytest.raises(error):
            use(repo.url)
    assert listing(tmp_path / "repo") == before


@pytest.mark.parametrize(("revision", "error"), [("0000", SchemaOutdated), ("9999", SchemaTooNew)])
def test_a_database_of_another_release_is_named_with_the_command_to_run(repo, tmp_path, revision, error):
    repo.close()
    database = sqlite3.connect(tmp_path / "repo" / "lineage.db", isolation_level=None)
    database.execute("UPDATE deltavc_schema SET version_num = ?", (revision,))
    database.close()
    with pytest.raises(error) as raised:
        deltavc.open(repo.url)
    assert raised.value.found == revision
    assert "deltavc" in raised.value.hint
    if error is SchemaTooNew:
        with pytest.raises(SchemaTooNew):
            upgrade_database(repo.url)
    with deltavc.open(repo.url, db=f"sqlite:///{tmp_path}/another.db") as other:
        assert states.same(other.checkout(), STATE)


def test_a_database_of_another_repository_is_refused(repo, tmp_path):
    database = f"sqlite:///{tmp_path}/repo/lineage.db"
    with pytest.raises(WrongDatabase) as raised:
        deltavc.init(tmp_path / "second", db=database)
    assert raised.value.found == repo.id
    deltavc.init(tmp_path / "third").close()
    with pytest.raises(WrongDatabase):
        deltavc.open(tmp_path / "third", db=database)


def test_a_database_that_cannot_be_is_named(repo, tmp_path):
    (tmp_path / "text.db").write_text("no database" * 500)
    for url in (
        "nonsense",
        "mysql://host/x",
        f"sqlite:///{tmp_path}/no/such/folder/x.db",
        f"sqlite:///{tmp_path}/text.db",
    ):
        with pytest.raises(DatabaseUnavailable):
            deltavc.open(repo.url, db=url)


def test_what_needs_a_database_says_how_to_name_one(repo):
    with deltavc.open(repo.url, db="none") as without, pytest.raises(DatabaseNeeded) as raised:
        without.resolve("best:loss")
    assert "--db" in raised.value.hint


def test_a_repository_may_lie_below_any_name(tmp_path):
    for name in ("what?mode=ro", "50%", "a#b", "sp ace", "%41", "a&b=c", "ü", "x@y:z"):
        with deltavc.init(tmp_path / name) as repo:
            repo.commit(STATE)
        assert "lineage.db" in {path.name for path in (tmp_path / name).iterdir()}
        with deltavc.open(tmp_path / name) as repo:
            assert states.same(repo.checkout(), STATE)
    assert len(list(tmp_path.iterdir())) == 8


# --- secrets ---

SECRETS = ("AKIDSECRETID", "hunter2", "p%40ss", "p@ss")


def test_credentials_never_show(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    shown = []
    for url, db in (
        ("s3://AKIDSECRETID:hunter2@bucket/run?x=1", "sqlite://"),
        ("ftp://AKIDSECRETID:hunter2@host/run", None),
        ("s3://AKIDSECRETID:hunter2@", None),
        ("memory://secrets", "postgresql://me:hunter2@127.0.0.1:9/db"),
        ("memory://secrets", "postgresql://me:p%40ss@127.0.0.1:9/db"),
        ("memory://secrets", "postgresql://127.0.0.1:9/db?user=me&password=hunter2"),
        ("memory://secrets", "mysql://me:hunter2@host/db"),
        ("memory://secrets", "postgres ql://me:hunter2@host/db"),
    ):
        with pytest.raises(DeltavcError) as raised:
            deltavc.init(url, db=db)
        error = raised.value
        shown += [str(error), repr(error), repr(error.args), repr(error.facts()), *traceback.format_exception(error)]
    shown += [record.getMessage() for record in caplog.records]
    assert not any(secret in text for text in shown for secret in SECRETS)
