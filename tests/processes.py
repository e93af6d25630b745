"""Processes of tests: a trainer that commits for ever, whether all of it is there, and children that start at once."""

import itertools
import multiprocessing
import os
import signal
import traceback
import warnings

import torch

import deltavc
from deltavc import SnapshotPolicy
from tests.states import generator, same

# A server that has imported everything forks the processes of these tests: they start at once, and single-threaded.
fresh = multiprocessing.get_context("forkserver")
fresh.set_forkserver_preload(["tests.processes", "deltavc.writer", "deltavc.reader", "deltavc.kernels.cpu"])

PATIENCE = 120  # seconds; what takes longer hangs


def state_at(step):
    """Any step's state from its number alone: 2 % of two tensors change a step, and a third one comes and goes."""
    w = torch.randn(300, 700, generator=generator(1)).bfloat16()
    w.view(torch.int16).view(-1)[step % 50 :: 50] = step
    m = torch.randn(5000, generator=generator(2))
    m.view(torch.int32)[step % 50 :: 50] = step
    state = {"w": w, "m": m, "step": torch.tensor(step)}
    if step % 5 == 0:
        state["extra"] = torch.full((3, 4), step / 7, dtype=torch.float64)
    return state


def commit_for_ever(url, tell, keep="host", in_flight=1):
    """Commit step after step to main, telling of each that was committed."""
    repo = deltavc.open(url)
    first = repo.version("main").step + 1 if "main" in repo.branches() else 0
    futures = []
    with repo.writer(keep=keep, max_in_flight=in_flight, snapshots=SnapshotPolicy(max_edges=7)) as writer:
        for step in itertools.count(first):
            files = {"rng": b"%d" % step}
            futures.append(writer.commit_async(state_at(step), step=step, metrics={"step": step}, files=files))
            while len(futures) >= in_flight:
                version = futures.pop(0).result()
                tell((version.step, version.id))


def check_version(repo, version):
    assert same(repo.checkout(version.id), state_at(version.step))
    assert repo.read_file(version.id, "rng") == b"%d" % version.step
    assert version.metrics == {"step": version.step}


def check_all(url):
    """The database and one that is made anew agree, and every version of the branch is whole and exact."""
    with deltavc.open(url) as repo, deltavc.open(url, db="sqlite://") as anew:
        found = anew.log("main")
        assert found == repo.log("main")
        assert [version.step for version in found] == list(range(len(found)))[::-1]
        for version in found:
            check_version(anew, version)
        assert anew.branches() == repo.branches()
        assert anew.reflog("main") == repo.reflog("main")
    return len(found)


def in_a_fork(work, *args):
    """Run in a forked child; its exit code, and 0 when all is well."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that threads and fork do not mix is the point
        child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(PATIENCE)
            work(*args)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child
