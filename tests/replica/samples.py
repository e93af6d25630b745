"""Small repositories for replicas to move about in."""

import contextlib

import deltavc
from tests.states import copied, random_bits, stepped


def small_state(seed=0):
    return {
        "embed": random_bits("bfloat16", (300, 64), seed),
        "norm": random_bits("float32", (64,), seed + 1),
        "scale": random_bits("float16", (), seed + 2),
        "weight": random_bits("bfloat16", (64, 96), seed + 3),
    }


@contextlib.contextmanager
def line_of(path, num_versions=5, state=None, density=0.02, **told):
    """A repository with a line of versions, and their states by id."""
    with deltavc.init(path) as repo:
        state, versions = small_state() if state is None else state, {}
        with repo.writer("main", **told) as writer:
            for step in range(num_versions):
                versions[writer.commit(state, step=step).id] = copied(state)
                state = stepped(state, step + 1, density)
        yield repo, versions
