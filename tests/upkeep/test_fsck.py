"""fsck finds every kind of damage there is a golden broken repository of, names it, and repairs what can be."""

import re
import shutil
from pathlib import Path

import pytest
import torch

import deltavc
from deltavc.errors import Corruption, NoPath
from deltavc.lineage.settings import Policy
from deltavc.upkeep.fsck_report import KINDS
from tests.broken import repository
from tests.broken.make_broken import GOLDEN, VERSIONS

ROOT = Path(__file__).parents[2]
UNREADABLE = {f"{how}_{what}" for how in ("damaged", "missing") for what in ("version", "layout", "edge", "ref")}
UNREADABLE.add("broken_ref")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module", params=repository.NAMES)
def broken(request, tmp_path_factory):
    """What is told of a broken repository, where it is, and what a quick and a full check find."""
    root = repository.place(request.param, tmp_path_factory.mktemp(request.param) / "repository")
    with pytest.MonkeyPatch.context() as patch, deltavc.open(root) as repo:
        patch.setenv("XDG_CACHE_HOME", str(root.parent / "cache"))
        return repository.told(request.param), root, repo.fsck(), repo.fsck(full=True)


def test_a_whole_repository_is_found_whole(tmp_path):
    with deltavc.open(shutil.copytree(GOLDEN, tmp_path / "repository")) as repo:
        for full in (False, True):
            report = repo.fsck(full)
            assert report.ok
            assert not report.problems
            assert not report.lost
        assert report.counts.num_versions == len(VERSIONS)
        assert report.num_walked == report.counts.num_edges


def test_versions_whose_edges_go_round_are_led_to_again(tmp_path):
    """A repaired edge leads from step 4 to step 2; later all snapshots are lost, and a new one is behind step 5."""
    root = tmp_path / "repository"
    state = {"w": torch.randn(64)}

    def lose(edges):
        for edge in edges:
            (root / edge.packs[0].key).unlink(missing_ok=True)

    with deltavc.init(root) as repo:
        with repo.writer("main") as writer:
            for step in range(6):
                state["w"][step] += 1
                writer.commit(state, step=step, snapshot=step == 4)
            lose(repo.edges("step:2"))
            assert not repo.fsck(repair=True).lost
            assert {edge.base for edge in repo.edges("step:2")} == {repo.resolve("step:4")}
            lose(edge for version in repo.log() for edge in repo.edges(version.id) if edge.base is None)
            assert len(repo.fsck(repair=True).lost) == 6
            writer.commit(state, step=6, snapshot=True)
        (problem,) = repo.fsck(repair=True).problems
        assert problem.kind == "no_way_forward"
        assert set(problem.versions) == {repo.resolve(f"step:{step}") for step in (2, 3, 4, 5)}
        assert repo.fsck(full=True).ok
        for step in range(2, 7):
            assert repo.checkout(f"step:{step}")["w"].shape == (64,)


def test_a_repository_with_a_policy_is_whole(tmp_path):
    with deltavc.open(shutil.copytree(GOLDEN, tmp_path / "repository")) as repo:
        for number in (1, 2):
            repo._settings.set(Policy(keep_last=number), "me", "why")
        report = repo.fsck()
        assert not report.problems
        assert report.orphans.num_unknown == 0


def test_there_is_a_broken_repository_for_every_kind_and_each_is_explained():
    told = {repository.told(name)["kind"] for name in repository.NAMES}
    page = (ROOT / "docs/troubleshooting.md").read_text().partition("## What fsck finds")[2]
    explained = set(re.findall(r"^\| `(\w+)` \|", page.partition("\n## ")[0], flags=re.MULTILINE))
    assert told == KINDS.keys() == explained


def test_what_is_broken_is_named_with_the_versions_that_are_lost(broken):
    told, _, quick, full = broken
    for report in (full,) if told["full"] else (quick, full):
        assert not report.ok
        found = [problem for problem in report.problems if problem.kind == told["kind"]]
        assert any(problem.key.startswith(told["key"]) for problem in found)
        assert set(report.lost) >= repository.ids(told["lost"])
    if told["full"]:
        assert quick.ok


def test_of_what_hangs_on_an_unreadable_version_or_layout_nothing_false_is_said(broken):
    told, _, quick, full = broken
    if told["kind"].endswith(("version", "layout")):
        assert {problem.kind for report in (quick, full) for problem in report.problems} == {told["kind"]}


def test_exactly_those_versions_are_lost_that_cannot_be_checked_out_any_more(broken):
    told, root, _, report = broken
    if told["kind"] in UNREADABLE:
        return  # no database can be filled from such a bucket
    roundabout = {version for found in report.problems if found.kind == "no_way_forward" for version in found.versions}
    with deltavc.open(root, db="sqlite://") as repo:
        for version in VERSIONS.values():
            try:
                repo.checkout(version)
            except (NoPath, Corruption):
                assert version in {*report.lost, *roundabout, *repository.ids(told["given_up"])}
            else:
                assert version not in report.lost


def test_after_a_repair_everything_is_whole_but_what_was_lost(broken, tmp_path):
    told, root, _, before = broken
    with deltavc.open(shutil.copytree(root, tmp_path / "repository")) as repo:
        report = repo.fsck(full=True, repair=True)
        solved = {problem.kind for problem in report.problems if problem.repaired}
        assert report.ok == (bool(told["repaired"]) and not told["lost"])
        if not told["repaired"]:
            assert told["kind"] not in solved
            return
        assert told["kind"] in solved
        assert all(problem.repaired for problem in report.problems)
        assert set(report.lost) <= set(before.lost)
        assert not repo.fsck(full=True).problems
        for version in set(VERSIONS.values()) - set(report.lost) - repository.ids(told["given_up"]):
            repo.checkout(version)
