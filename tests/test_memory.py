"""Memory: beside the state and the kept base, commits and checkouts take what `memory=` says and little more.

One process does it all, after a warm-up that loads torch and compiled kernels. Of the most it was seen to hold
during an operation, what it held before is subtracted, and what the operation has to leave: base or tensors.
"""

import contextlib
import json
import re
import subprocess
import sys
import threading
import time
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
    print(json.dumps(peaks.found))


@pytest.fixture(scope="module")
def peaks(tmp_path_factory):
    directory = tmp_path_factory.mktemp("memory")
    code = f"from tests.test_memory import measure; measure({str(directory)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["first", "all changed", "1 %", "1 % and snapshot", "disk, opening", "disk"])
def test_a_commit_takes_its_budget_beside_the_state_and_the_base(peaks, name):
    assert peaks[name] <= BUDGET + SLACK


def test_what_stays_behind_is_no_more_than_one_operation_takes(peaks):
    assert peaks["left"] <= BUDGET + SLACK


@pytest.mark.parametrize("name", ["checkout", "checkout in place"])
def test_a_checkout_takes_its_budget_beside_the_tensors(peaks, name):
    assert peaks[name] <= BUDGET + SLACK
