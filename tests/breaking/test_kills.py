"""Processes killed with SIGKILL: at any moment, and right before every moment at which something takes effect."""

import itertools
import random
import signal
import time

import pytest

import deltavc
from tests.breaking.boundaries import Child
from tests.breaking.once import names
from tests.breaking.operations import OPERATIONS, after_init, attempt
from tests.breaking.tally import count
from tests.breaking.template import template_on_disk
from tests.breaking.whole import check, lineage, without_weights
from tests.processes import PATIENCE, check_all, check_version, commit_for_ever, fresh, state_at

pytestmark = pytest.mark.usefixtures("clocked")

# --- at every moment ---


def run(tell, name, url):
    with deltavc.open(url) as repo:
        error = attempt(OPERATIONS[name], repo)
    assert error is None


@pytest.mark.parametrize("every", [13, pytest.param(1, marks=[pytest.mark.long, pytest.mark.timeout(1200)])])
@names
def test_what_is_killed_at_any_moment_is_done_or_not_and_can_be_repeated(name, every, tmp_path, directory):
    operation, made = OPERATIONS[name], template_on_disk(name, directory)
    for nth in itertools.count(1 + len(name) % min(4, every), every):
        store = made.copy(tmp_path / str(nth))
        child = Child(nth, signal.SIGKILL, store.url, run, name, store.url)
        count(kills=child.killed, **{"commits" if name.startswith("commit") else "operations": 1})
        told = child.told()
        with deltavc.open(store.url) as repo:
            found = lineage(repo)
            assert found in (made.before, made.after), told
            done = found == made.after
            with deltavc.open(store.url, None if operation.breaks else "sqlite://") as stranger:
                assert lineage(stranger) == found
                assert without_weights(stranger) <= made.without
                operation.breaks or check(stranger)
            if not (operation.once and done):
                assert attempt(operation, repo) is None
            assert check(repo).without_weights <= len(made.without)
            assert lineage(repo) == made.after
        if not child.killed:
            break


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.long)])
def test_init_that_is_killed_at_any_moment_can_be_done_again(tmp_path, every):
    for nth in itertools.count(1, every):
        url = str(tmp_path / str(nth))
        child = Child(nth, signal.SIGKILL, url, lambda tell, url: deltavc.init(url).close(), url)
        count(kills=child.killed, operations=1)
        after_init(url)
        if not child.killed:
            break
    assert nth > 5


# --- at any time ---


def kill_at_random(url, delays, **options):
    """Start committing and kill it after the delay (seconds), again and again; versions that were told of."""
    reported = {}
    for delay in delays:
        ours, theirs = fresh.Pipe()
        process = fresh.Process(target=commit_for_ever, args=(url, theirs.send), kwargs=options)
        process.start()
        theirs.close()
        assert ours.poll(PATIENCE)
        told = [ours.recv()]
        time.sleep(delay)
        process.kill()
        process.join()
        count(kills=1)
        while True:
            try:
                told.append(ours.recv())
            except EOFError:
                break
        reported.update(told)
        count(commits=len(told))
        with deltavc.open(url) as repo:
            found = {version.step: version for version in repo.log("main")}
            assert {step: found[step].id for step in reported} == reported
            head = max(found)
            assert head - max(reported) <= options.get("in_flight", 1)
            for step in range(told[0][0], head + 1):
                check_version(repo, found[step])
            repo.commit(
                state_at(head + 1), step=head + 1, metrics={"step": head + 1}, files={"rng": b"%d" % (head + 1)}
            )
    return reported


@pytest.mark.parametrize(("keep", "in_flight"), [pytest.param("host", 1, marks=pytest.mark.long), ("disk", 3)])
def test_whatever_moment_a_committing_process_is_killed_at_nothing_is_lost(tmp_path, keep, in_flight):
    url = str(tmp_path / "repo")
    deltavc.init(url).close()
    moments = random.Random(in_flight)
    reported = kill_at_random(url, [moments.uniform(0, 0.4) for _ in range(6)], keep=keep, in_flight=in_flight)
    assert check_all(url) >= len(reported) + 6


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_forty_kills_lose_nothing(tmp_path):
    url = str(tmp_path / "repo")
    deltavc.init(url).close()
    moments = random.Random(0)
    kill_at_random(url, [moments.uniform(0, 0.1) for _ in range(40)], in_flight=2)
    check_all(url)
