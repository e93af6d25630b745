"""git itself as the oracle: the same history in a real git repository."""

import os
import random
import subprocess

import pytest
from hypothesis import given, settings

from deltavc.bisect.search import Found, num_steps, reaches
from tests.bisect.histories import histories, is_after, line, searched, suspects_of
from tests.servers import temporary_directory


def git(folder, *args, **options):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        ["git", *args], cwd=folder, env=environment, capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def built(folder, parents):
    """The history as commits; their hashes, and versions by hash."""
    git(folder, "init", "-q", "-b", "main")
    marks = {version: mark for mark, version in enumerate(parents, 1)}
    script = []
    for version, among in parents.items():
        script += [
            "commit refs/heads/main",
            f"mark :{marks[version]}",
            f"committer a <a@b> {1000 + marks[version]} +0000",
        ]
        script += [f"data {len(version)}", version]
        if not among and marks[version] > 1:
            script += ["from " + "0" * 40]
        script += [f"{'merge' if number else 'from'} :{marks[parent]}" for number, parent in enumerate(among)]
        script += [f"M 644 inline it\ndata {len(version)}\n{version}", ""]
    git(folder, "fast-import", "--quiet", "--force", "--export-marks=marks", input="\n".join(script))
    rows = (row.split() for row in (folder / "marks").read_text().splitlines())
    hashes = {int(mark[1:]): commit for mark, commit in rows}
    return {version: hashes[mark] for version, mark in marks.items()}


@settings(max_examples=8)
@given(histories())
def test_distances_are_those_of_git(parents):
    with temporary_directory("bisect-") as folder:
        hashes = built(folder, parents)
        bad = list(parents)[-1]
        printed = git(folder, "rev-list", "--bisect-all", hashes[bad]).splitlines()
        told = {row.split()[0]: int(row.partition("dist=")[2].rstrip(")").split(",")[0]) for row in printed}
        ours = reaches(parents)
        assert told == {hashes[v]: min(count, len(parents) - count) for v, count in ours.items()}
        variables = git(folder, "rev-list", "--bisect-vars", hashes[bad]).splitlines()
        assert f"bisect_steps={num_steps(len(parents))}" in variables


def by_git(folder, parents, good, bad, culprit):
    """What `git bisect run` finds, and after how many tries."""
    hashes = built(folder, parents)
    of = {commit: version for version, commit in hashes.items()}
    broken = [hashes[version] for version in parents if is_after(parents, version, culprit)]
    (folder / "broken").write_text("\n".join(broken))
    git(folder, "checkout", "-q", hashes[bad])
    git(folder, "bisect", "start", hashes[bad], hashes[good])
    said = git(folder, "bisect", "run", "sh", "-c", "if grep -q $(git rev-parse HEAD) broken; then exit 1; fi")
    first = next(row.split()[0] for row in said.splitlines() if row.endswith("is the first bad commit"))
    return of[first], said.count("running")


def with_merges(size, seed):
    chance = random.Random(seed)
    parents = {"0": (), "1": ("0",)}
    for number in range(2, size):
        count = 2 if chance.random() < 0.3 else 1
        older = chance.sample(range(max(0, number - 5), number), min(count, number))
        parents[str(number)] = tuple(map(str, sorted(older, reverse=True)))
    behind = {parent for some in parents.values() for parent in some}
    parents[str(size)] = tuple(version for version in parents if version not in behind)
    return parents


@pytest.mark.parametrize(
    "parents",
    [line(6), with_merges(12, 1), *(pytest.param(with_merges(60, seed), marks=pytest.mark.long) for seed in range(8))],
    ids=lambda parents: str(len(parents)),
)
def test_git_bisect_run_finds_the_same_in_as_many_tries_give_or_take_one(parents, tmp_path):
    bad = list(parents)[-1]
    culprit = random.Random(len(parents)).choice(list(suspects_of(parents, bad, ["0"])))
    first, count = by_git(tmp_path, parents, "0", bad, culprit)
    choice, tried = searched(parents, bad, ["0"], lambda v: "bad" if is_after(parents, v, culprit) else "good")
    assert choice == Found(first)
    assert first == culprit
    assert abs(len(tried) - count) <= 1  # of equally good versions to try, git may take another
