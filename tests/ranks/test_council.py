"""Whatever ranks vote, and whenever, each learns the one decision; and nothing piles up in the store."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from deltavc.errors import GroupBroken, PeerFailed, UnknownRef
from deltavc.ranks.council import Council


def councils(size, timeout=20.0):
    store = dist.HashStore()
    return store, [Council(dist.PrefixStore("group", store), rank, size, timeout) for rank in range(size)]


def on_all(made, call):
    """What a call returned or raised on each rank, each on a thread."""
    with ThreadPoolExecutor(len(made)) as pool:
        futures = [pool.submit(call, council) for council in made]
        return [future.exception() or future.result() for future in futures]


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0, 0.01)), min_size=1, max_size=4))
def test_all_ranks_pass_the_same_steps_and_those_that_every_rank_voted_for(ranks):
    _, made = councils(len(ranks))

    def vote(council):
        """Vote for so many of four steps, and fail before the next one."""
        steps, pause = ranks[council.rank]
        with council.call("test") as call:
            try:
                for step in range(4):
                    time.sleep(pause)
                    if step == steps:
                        raise ValueError("no")
                    call.agree(final=step == 3)
            except (ValueError, PeerFailed) as error:
                call.stop(error)
            return call.passed, call.made, call.stopped

    outcomes = on_all(made, vote)
    least = min(steps for steps, _ in ranks)
    for passed, final, stopped in outcomes:
        assert (passed, final) == (least, least == 4)
        assert (stopped is None) == (least == 4)
        assert stopped is None or stopped == outcomes[0][2]
        assert stopped is None or ranks[stopped.rank][0] == least


def test_whoever_is_silent_is_named():
    _, made = councils(3, timeout=0.2)
    others = [council for council in made if council.rank != 1]
    for error in on_all(others, lambda council: council.call("apply").agree()):
        assert isinstance(error, GroupBroken)
        assert error.ranks == (1,)
    with pytest.raises(GroupBroken):  # late, it finds what was decided without it
        made[1].call("apply").agree()


def test_rank_0_tells_and_what_it_does_not_find_nobody_finds():
    _, made = councils(3)

    def find():
        raise UnknownRef("main")

    assert on_all(made, lambda council: council.call("stage").told(lambda: f"rank {council.rank}")) == ["rank 0"] * 3
    first, *others = on_all(made, lambda council: council.call("stage").told(find))
    assert isinstance(first, UnknownRef)
    assert all((error.rank, error.failure) == (0, UnknownRef.kind) for error in others)


def test_calls_that_every_rank_has_left_leave_nothing_behind():
    store, made = councils(2)

    def make(council):
        for number in range(40):
            with council.call("stage") as call:
                call.told(lambda: "version")
                call.agree()
                if number % 3 == 0:
                    call.stop(ValueError("no"))
                else:
                    call.agree(final=True)

    assert on_all(made, make) == [None, None]
    made[0].front.ask(lambda store: None)  # what was told it before is done
    assert store.num_keys() < 30
