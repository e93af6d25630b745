"""Completion: of branches and tags, and installed by one command, once, without harm to what is there."""

import os
import subprocess
import sysconfig

import pytest
from click.shell_completion import ShellComplete
from deltavc.cli.main import main
from deltavc.cli.options import Settings


@pytest.fixture
def home(folder, monkeypatch):
    place = folder / "home of mine"
    place.mkdir()
    monkeypatch.setenv("HOME", str(place))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR", "SHELL"):
        monkeypatch.delenv(name, raising=False)
    return place


def offered(*words):
    *args, incomplete = words
    found = ShellComplete(main, {"obj": Settings()}, "deltavc", "_DELTAVC_COMPLETE")
    return [item.value for item in found.get_completions(list(args), incomplete)]


@pytest.fixture
def refs(run, project):
    run("branch", "experiment")
    run("tag", "exact", "step:1")
    return project


@pytest.mark.parametrize(
    "words",
    [
        ["show", "ex"],
        ["checkout", "ex"],
        ["diff", "main", "ex"],
        ["rollback", "main", "--to", "ex"],
        ["bisect", "start", "main", "ex"],
        ["bisect", "skip", "ex"],
        ["--json", "audit", "ex"],
    ],
    ids=" ".join,
)
def test_branches_and_tags_are_offered_where_a_ref_is_taken(refs, words):
    assert offered(*words) == ["exact", "experiment"]


def test_both_ends_of_a_range_are_offered(refs):
    assert offered("log", "main..exa") == ["main..exact"]


def test_the_repository_that_the_line_names_is_asked(refs, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert offered("show", "ex") == []
    assert offered("--repo", str(refs), "show", "ex") == ["exact", "experiment"]
    assert offered("show", "--repo", str(refs), "ex") == ["exact", "experiment"]


def test_nothing_is_offered_and_nothing_said_where_it_would_take_a_network_or_there_is_nothing(folder, capfd):
    for repo in ("s3://bucket/run", "nowhere", "memory://x"):
        assert offered("--repo", repo, "show", "") == []
    assert capfd.readouterr() == ("", "")
    assert not (folder / "nowhere").exists()


def test_bash_completes_after_one_command(run, refs, home):
    (home / ".bashrc").write_text("export MINE=1\n")
    (home / ".bashrc").chmod(0o640)
    told = run("completion", "bash", "--install").stdout
    assert told.splitlines()[:2] == [
        f"wrote {home}/.local/share/deltavc/completion.bash",
        f"wrote a line to {home}/.bashrc, which reads it",
    ]
    assert (home / ".bashrc").read_text().startswith("export MINE=1\n[ -r ")
    assert (home / ".bashrc").stat().st_mode & 0o777 == 0o640
    script = "COMP_WORDS=(deltavc show exa); COMP_CWORD=2; _deltavc_completion deltavc; echo $MINE ${COMPREPLY[@]}"
    environment = os.environ | {"PATH": f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--noprofile", "-c", f". ~/.bashrc; complete -p deltavc; {script}"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert "-F _deltavc_completion deltavc" in done.stdout
    assert done.stdout.splitlines()[-1] == "1 exact"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_installing_again_changes_nothing(run, home, monkeypatch, shell):
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    first = run("completion", "--install", "--json").json
    assert first["shell"] == shell
    assert first["changed"] == [path for path in (first["script"], first["rc"]) if path is not None]
    assert all(path.startswith(str(home)) for path in first["changed"])
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    assert "is installed already" in run("completion", "--install").stdout
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before
    assert len(before) == len(first["changed"])


def test_our_line_is_replaced_and_others_stay(run, home, folder):
    (folder / "dotfiles").mkdir()
    (folder / "dotfiles" / "zshrc").write_bytes(b"one\n. /old/place  # deltavc completion\ntwo \xff\x0c\n\n")
    (home / ".zshrc").symlink_to(folder / "dotfiles" / "zshrc")
    run("completion", "zsh", "--install")
    assert (home / ".zshrc").is_symlink()
    one, line, *rest = (home / ".zshrc").read_bytes().split(b"\n")
    assert (one, rest) == (b"one", [b"two \xff\x0c", b"", b""])
    assert line.startswith(b"[[ -r '" + str(home).encode())


def test_a_shell_that_is_not_known_has_to_be_named(run, home, monkeypatch):
    assert "SHELL does not say" in run("completion", "--install", code=2).stderr
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert "your shell is tcsh" in run("completion", code=2).stderr
    assert list(home.iterdir()) == []


def test_a_home_that_may_not_be_written_to_is_an_error(run, home):
    (home / ".local").write_text("in the way")
    assert "Traceback" not in run("completion", "bash", "--install", code=1).stderr
    assert not (home / ".bashrc").exists()
