"""The examples' own runs, smaller: what they show is so."""

import importlib
from pathlib import Path

import pytest

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
    from rich.console import Console

    console = Console(width=100)
    with console.capture() as capture:
        console.print(table)
    return capture.get()
