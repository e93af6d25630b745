"""Which repository a command means, and that nothing secret is ever written down."""

import os
import tomllib

import pytest
from deltavc.cli import config
from deltavc.cli.config import Place

import deltavc


@pytest.fixture
def inside(folder, monkeypatch):
    """Go to a folder below the working folder."""

    def inside(name):
        (folder / name).mkdir(parents=True, exist_ok=True)
        monkeypatch.chdir(folder / name)

    return inside


def test_a_command_in_a_folder_below_finds_the_repository(run, project, inside):
    inside("deep/down")
    assert len(run("log", "--json").json) == 3


def test_repository_and_configuration_may_move_together(run, project, folder, monkeypatch):
    (folder / "elsewhere").mkdir()
    for name in ("runs", ".deltavc"):
        (folder / name).rename(folder / "elsewhere" / name)
    monkeypatch.chdir(folder / "elsewhere")
    assert len(run("log", "--json").json) == 3


def test_a_path_is_shown_as_it_is_written(run, folder):
    out = run("init", "räpo mit 模型").stdout
    assert f"database sqlite:///{folder}/räpo mit 模型/lineage.db" in out
    assert run("status", "--json").json["database"] in out


def test_a_repository_outside_the_folder_is_named_by_its_whole_path(run, folder, inside):
    inside("work")
    run("init", "../elsewhere")
    assert tomllib.loads((folder / "work" / config.FILE).read_text())["repo"] == str(folder / "elsewhere")


def test_a_database_file_is_found_from_folders_below(run, folder, inside):
    run("init", "repo", "--db", "sqlite:///index.db")
    assert (folder / "index.db").exists()
    inside("below")
    assert run("status", "--json").json["database"] == f"sqlite:///{folder / 'index.db'}"


def test_the_command_line_wins_over_the_environment_and_that_over_the_configuration(run, project, folder, monkeypatch):
    for name in ("one", "two"):
        deltavc.init(folder / name).close()
    monkeypatch.setenv("DELTAVC_REPO", str(folder / "one"))
    assert run("status", "--json").json["repository"] == str(folder / "one")
    assert run("status", "--repo", folder / "two", "--json").json["repository"] == str(folder / "two")
    monkeypatch.setenv("DELTAVC_DB", f"sqlite:///{folder / 'env.db'}")
    assert run("status", "--json").json["database"].endswith("env.db")
    assert run("status", "--db", f"sqlite:///{folder / 'line.db'}", "--json").json["database"].endswith("line.db")


def test_the_configured_database_is_not_taken_for_another_repository(run, folder):
    run("init", "repo", "--db", "sqlite:///index.db")
    deltavc.init(folder / "other").close()
    assert run("status", "--repo", "other", "--json").json["database"].endswith("other/lineage.db")


@pytest.mark.parametrize(
    ("place", "secrets"),
    [
        (Place("s3://id:S3CRET@bucket/run", "postgresql://me:S3CRET@host/db"), 2),
        (Place("s3://bucket", "postgresql://me@host/db?password=S3CRET&sslmode=require"), 1),
        (Place("s3://bucket", "sqlite:///x.db", {"key": "S3CRET", "secret": "S3CRET", "token": "S3CRET"}), 3),
        (Place("s3://bucket", None, {"client_kwargs": {"aws_secret_access_key": "S3CRET"}}), 1),
        (Place("s3://bucket", None, {"endpoint_url": "http://me:S3CRET@host"}), 1),
    ],
)
def test_secrets_are_left_out_and_named(tmp_path, place, secrets):
    left_out = config.write(tmp_path, place)
    assert "S3CRET" not in (tmp_path / config.FILE).read_text()
    assert len(left_out) == secrets
    assert not any("S3CRET" in what for what in left_out)


def test_what_is_written_is_read_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {"endpoint_url": 'http://h"\\é', "anon": True, "client_kwargs": {"region_name": "x", "n": [1]}}
    assert config.write(tmp_path, Place("s3://bucket/a b", "postgresql://me@h/d?sslmode=require", options)) == []
    assert config.read(tmp_path) == Place("s3://bucket/a b", "postgresql://me@h/d?sslmode=require", options)
    config.write(tmp_path, Place("file:///data/repo", "sqlite://"))
    assert config.read(tmp_path) == Place("/data/repo", "sqlite://")


@pytest.mark.parametrize(
    "text", ["repo = ", "", 'repo = ""', "repo = 3", 'repo = "x"\ndb = 1', 'repo = "x"\nstorage_options = 1', "\x00"]
)
def test_a_configuration_that_makes_no_sense_is_named(run, folder, text):
    (folder / ".deltavc").mkdir()
    (folder / config.FILE).write_text(text)
    assert str(folder / config.FILE) in run("log", code=2).stderr


def test_init_does_not_replace_a_configuration(run, project, folder):
    before = (folder / config.FILE).read_text()
    said = run("init", "another", code=2).stderr
    assert f"config.toml is there already, and names {project}" in said
    assert "--no-config" in said
    assert not (folder / "another").exists()
    assert run("init", "another", "--no-config").stdout.splitlines()[1:] == [
        f"database sqlite:///{folder / 'another' / 'lineage.db'}"
    ]
    assert (folder / config.FILE).read_text() == before
    run("commit", "step1", "--repo", "another")


def test_init_without_a_configuration_leaves_the_folder_alone(run, folder):
    assert run("init", "runs/demo", "--no-config", "--json").json["config"] is None
    assert not (folder / config.FILE).parent.exists()
    assert not (folder / "another").exists()


def test_init_refuses_a_repository_that_would_end_with_it(run, folder):
    run("init", "memory://x", code=2)
    assert not (folder / ".deltavc").exists()


def test_storage_options_are_text_unless_they_cannot_be(run, folder):
    given = ["key=0123", "anon=true", 'client_kwargs={"region_name": "x"}', "endpoint_url=http://h"]
    run("init", "repo", *(part for option in given for part in ("--storage-option", option)))
    assert config.read(folder).storage_options == {
        "anon": True,
        "client_kwargs": {"region_name": "x"},
        "endpoint_url": "http://h",
    }


@pytest.mark.servers
def test_a_bucket_and_a_server_database_with_credentials_from_the_environment(run, folder, s3, postgres, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    url, db = s3.new_bucket(), postgres.new_database()
    options = ["--storage-option", f"endpoint_url={s3.endpoint}"]
    secret = s3.storage_options["secret"]
    with_secret = f"s3://{s3.storage_options['key']}:{secret}@{url.removeprefix('s3://')}/run"
    made = run("init", with_secret, "--db", db, *options)
    assert secret not in made.stdout + made.stderr + (folder / config.FILE).read_text()
    assert "credentials in the repository's URL" in made.stderr
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.storage_options["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    run("commit", "step1", "-m", "from afar")
    run("checkout", "main", "-o", "out")
    assert os.path.exists("out/config.json")
    assert "from afar" in run("log").stdout
    denied = run("log", "--storage-option", "secret=wrong", "--storage-option", "key=writer", code=1)
    assert "denies" in denied.stderr
