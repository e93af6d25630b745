"""Memory: beside the state and the kept base, commits and checkouts take what `memory=` says and little more.

One process does it all, after a warm-up that loads torch and compiled kernels. Of the most it was seen to hold
during an operation, what it held before is subtracted, and what the operation has to leave: base or tensors.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux tells of a process's memory")

MIB = 1 << 20
BUDGET = 256
SLACK = 200
"""MiB beside the budget: what the allocator keeps per thread, decoded indexes, Python's own."""

STATE = 512
LENGTHS = [STATE // 2, *[STATE // 16] * 7, *[STATE // 256] * 15, 1, 1]  # MiB of each tensor


def held(field):
    """MiB of this process's memory: VmRSS is all of it, RssAnon what no file stands behind."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+) kB", status)[1]) / 1024


class Peaks:
    """The most that is held during each block, in MiB beyond what was held before it and `made` by it."""

    def __init__(self):
        self.start = held("VmRSS")
        self.found = {}

    @contextlib.contextmanager
    def of(self, name, made=0, field="VmRSS"):
        before = peak = held(field)
        done = threading.Event()

        def watch():
            nonlocal peak
            while not done.wait(0.002):
                peak = max(peak, held(field))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()
        self.found[name] = round(peak - before - made)


def measure(directory):
    """Commit and check out a state of 512 MiB in every way, and print the peaks as JSON."""
    import torch

    import deltavc

    state = {"x": torch.randn(3_000_000).bfloat16()}
    with deltavc.init(f"{directory}/repo") as repo:
        with repo.writer(keep="host") as writer:
            for _ in range(3):
                writer.commit(state)
                state["x"].view(torch.int16)[::50] += 1
        repo.checkout()
        peaks = Peaks()
        state = {
            f"x.{place}": torch.empty(length * MIB // 2, dtype=torch.bfloat16).normal_(0, 0.02)
            for place, length in enumerate(LENGTHS)
        }
        bits = [tensor.view(torch.int16) for tensor in state.values()]
        options = {"memory": BUDGET * MIB}
        with repo.writer(keep="host", **options) as writer:
            with peaks.of("first", STATE):
                writer.commit(state, snapshot=True)
            for lanes in bits:
                lanes.bitwise_xor_(5)
            with peaks.of("all changed"):
                writer.commit(state, snapshot=False)
            for lanes in bits:
                lanes[::100] += 1
            with peaks.of("1 %"):
                writer.commit(state, snapshot=False)
            with peaks.of("1 % and snapshot"):
                writer.commit(state, snapshot=True)
        with peaks.of("checkout", STATE):
            repo.checkout(**options)
        with peaks.of("checkout in place"):
            repo.checkout("main~1", into=state, **options)
        with repo.writer(keep="disk", **options) as writer:
            for name in ("disk, opening", "disk"):
                for lanes in bits:
                    lanes[::100] += 1
                with peaks.of(name, field="RssAnon"):
                    writer.commit(state, snapshot=False)
        peaks.found["left"] = round(held("VmRSS") - peaks.start - STATE)
        with repo.replica(state, at="main", **options) as replica, peaks.of("stage, 1 %", STATE // 8):
            replica.stage("main~2").wait()
        options["staging_bytes"] = 3 * STATE * MIB
        with repo.replica(state, at="main", **options) as replica, peaks.of("stage, all changed", 2 * STATE):
            replica.stage("main~5").wait()
    print(json.dumps(peaks.found))


def keep_many_tensors(directory):
    """Keep a base of more tensors on disk than this process may have files; files left there."""
    import resource

    import torch

    import deltavc

    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    state = {f"x.{place}": torch.full((20_000 + place,), place) for place in range(400)}
    with deltavc.init(f"{directory}/repo") as repo, repo.writer(keep="disk") as writer:
        writer.commit(state)
        state["x.7"][5:50] = 1
        writer.commit(state)
        assert all(torch.equal(tensor, state[name]) for name, tensor in repo.checkout().items())
        print(sum(len(files) for _, _, files in os.walk(tempfile.gettempdir())))


def run(function, directory):
    """What a function of this module prints, as JSON, in a process with the directory as its temporary one."""
    code = f"from tests.test_memory import {function.__name__} as f; f({str(directory)!r})"
    environment = {**os.environ, "TMPDIR": str(directory / "tmp")}
    (directory / "tmp").mkdir()
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_base_on_disk_may_have_more_tensors_than_a_process_may_have_files(tmp_path):
    assert run(keep_many_tensors, tmp_path) == 0


@pytest.fixture(scope="module")
def peaks(tmp_path_factory):
    return run(measure, tmp_path_factory.mktemp("memory"))


@pytest.mark.parametrize("name", ["first", "all changed", "1 %", "1 % and snapshot", "disk, opening", "disk"])
def test_a_commit_takes_its_budget_beside_the_state_and_the_base(peaks, name):
    assert peaks[name] <= BUDGET + SLACK


def test_what_stays_behind_is_no_more_than_one_operation_takes(peaks):
    assert peaks["left"] <= BUDGET + SLACK


@pytest.mark.parametrize("name", ["checkout", "checkout in place"])
def test_a_checkout_takes_its_budget_beside_the_tensors(peaks, name):
    assert peaks[name] <= BUDGET + SLACK


@pytest.mark.parametrize("name", ["stage, 1 %", "stage, all changed"])
def test_staging_takes_its_budget_beside_the_arena(peaks, name):
    assert peaks[name] <= BUDGET + SLACK
