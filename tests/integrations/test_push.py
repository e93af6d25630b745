"""A push brings all workers of all engines to a version, bit for bit, or leaves all where they were and says why."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from deltavc.cli.main import main

import deltavc
from deltavc.errors import (
    EngineRefused,
    EngineStopped,
    EngineUnfit,
    EngineUnreachable,
    EngineVersionUnknown,
    WorkerFailed,
)
from deltavc.integrations.engines import Order
from deltavc.integrations.engines_http import Http
from deltavc.integrations.engines_push import push
from deltavc.integrations.sglang_client import SGLang
from deltavc.integrations.vllm_client import VLLM
from tests.integrations.standin_engine import engine
from tests.integrations.standin_layers import Shape, checkpoint

CLIENTS = {"sglang": SGLang, "vllm": VLLM}
STAGES = Shape(layers=2, stages=2)
"""A pipeline of two stages, of one worker each."""

KV_ON_TWO = Shape(kv_heads=1, tied=True)
"""A key-value head that both ranks hold, and an embedding that is the head of the model too."""


@pytest.fixture(scope="module")
def repo(tmp_path_factory):
    with deltavc.init(tmp_path_factory.mktemp("push") / "runs", db="sqlite://") as repo:
        for branch, shape, first in (("main", Shape(), 0), ("tied", KV_ON_TWO, 10), ("stages", STAGES, 20)):
            if branch != "main":
                repo.branch(branch, "main")
            with repo.writer(branch) as writer:
                for step in range(4):
                    writer.commit(checkpoint(shape, step), step=first + step)
        yield repo


@pytest.fixture(scope="module")
def engines():
    """One of each, at whatever version the tests before left them."""
    with engine("sglang") as sglang, engine("vllm") as vllm:
        yield {"sglang": sglang, "vllm": vllm}


@pytest.fixture(params=["sglang", "vllm"])
def served(request, engines):
    return engines[request.param]


class _CutOff:
    """A client whose network is gone as soon as the engine has swapped."""

    def flush(self, running):
        self._http = Http("http://127.0.0.1:1", 1)
        super().flush(running)


class _Interrupted:
    """A client that is interrupted when its engine has swapped."""

    def stamp(self, version):
        if not getattr(self, "interrupted", False):
            self.interrupted = True
            raise KeyboardInterrupt
        super().stamp(version)


class _Crossed:
    """A client whose staging another push ends, by one of its own or by cancelling."""

    between = None

    def order(self, order):
        report = super().order(order)
        if order.action == "stage":
            super().order(replace(order, **self.between))
        return report


def crossed(**between):
    return {name: type("Crossed", (_Crossed, client), {"between": between}) for name, client in CLIENTS.items()}


CUT_OFF = {name: type("CutOff", (_CutOff, client), {}) for name, client in CLIENTS.items()}
INTERRUPTED = {name: type("Interrupted", (_Interrupted, client), {}) for name, client in CLIENTS.items()}


def pushed(repo, ref, *served, at="step:0", timeout=20.0, running="requeue", clients=CLIENTS, **options):
    clients = [clients[each.engine](each.url, 60) for each in served]
    order = Order("stage", **{"repository": repo.url, "timeout": timeout} | options)
    return push(repo, ref, clients, order, at=at, running=running)


def is_at(served, repo, step, ref=None):
    """Whether an engine serves the checkpoint of a step, all of it, and says so."""
    named = served.state("label") in ("default", repo.resolve(ref or f"step:{step}"))
    return served.holds(checkpoint(served.shape, step)) and named and served.state("paused") is None


def test_a_push_forwards_and_back_is_exact_on_every_worker(repo, served):
    assert is_at(served, repo, 0)
    done = pushed(repo, "step:3", served)
    assert is_at(served, repo, 3)
    assert done.version == repo.resolve("step:3")
    assert all(worker.changed_lanes for worker in done.engines[served.url].workers)
    pushed(repo, "step:1", served, at=None)  # the engine says which version it is at
    assert is_at(served, repo, 1)
    pushed(repo, "step:1", served, at=None)  # to where it is
    assert is_at(served, repo, 1)


@pytest.mark.parametrize(
    ("name", "shape", "branch"),
    [("sglang", KV_ON_TWO, "tied"), ("vllm", KV_ON_TWO, "tied"), ("vllm", STAGES, "stages")],
)
def test_copied_heads_tied_embeddings_and_pipelines_move_too(repo, name, shape, branch):
    with engine(name, shape) as served:
        pushed(repo, branch, served, at=f"{branch}~3")
        assert is_at(served, repo, 3, branch)


def test_nothing_waits_for_requests_before_all_have_staged(repo, engines):
    real_pauses = {"sglang": ("/pause_generation", {"mode": "retract"}), "vllm": ("/pause", {"mode": "keep"})}
    for name, served in engines.items():
        served.state("asked", [])
        pushed(repo, "step:2", served)
        asked = served.state("asked")
        orders = [body for path, body in asked if path in ("/update_weights_from_tensor", "/collective_rpc")]
        paused = asked.index(real_pauses[name])
        before = [body for path, body in asked[:paused] if path in ("/update_weights_from_tensor", "/collective_rpc")]
        assert len(orders) == len(before) + 1 >= 3  # stage and looks before, and the swap after
        ending = [path for path, _ in asked[paused + 1 :]]
        assert ending.index("/update_weight_version") < len(ending) - 1
        assert ending[-1] in ("/continue_generation", "/resume")


def test_requests_that_are_kept_keep_their_caches(repo, engines):
    for served in engines.values():
        served.state("asked", [])
        pushed(repo, "step:1", served, running="keep")
        assert is_at(served, repo, 1)
        assert not {"/flush_cache", "/reset_prefix_cache"} & {path for path, _ in served.state("asked")}


def test_a_version_that_cannot_be_fetched_leaves_all_as_they_were(repo, engines):
    pushed(repo, "step:1", *engines.values())
    packs = [use.pack for edge in repo.edges("step:3") for use in edge.packs]
    paths = [path for path in (Path(repo.url) / "packs").rglob("*.pack") if path.stem in packs]
    assert paths
    for path in paths:
        path.rename(path.with_suffix(".away"))
    try:
        with pytest.raises(WorkerFailed, match="pack"):
            pushed(repo, "step:3", *engines.values())
    finally:
        for path in paths:
            path.with_suffix(".away").rename(path)
    assert all(is_at(served, repo, 1) for served in engines.values())


def test_when_one_engine_cannot_finish_all_are_put_back(repo, engines):
    pushed(repo, "step:1", *engines.values())
    engines["vllm"].state("refuse", "/reset_prefix_cache")
    with pytest.raises(EngineRefused, match="told to refuse"):
        pushed(repo, "step:3", *engines.values())
    assert all(is_at(served, repo, 1) for served in engines.values())


def test_an_interrupt_in_the_pause_puts_all_back(repo, engines):
    pushed(repo, "step:1", *engines.values())
    with pytest.raises(KeyboardInterrupt):
        pushed(repo, "step:3", *engines.values(), clients=INTERRUPTED)
    assert all(is_at(served, repo, 1) for served in engines.values())


def test_every_engine_serves_again_but_the_one_that_cannot(repo, engines):
    sglang, vllm = engines.values()
    pushed(repo, "step:1", sglang, vllm)
    vllm.state("refuse", "/resume")
    with pytest.raises(EngineStopped, match="told to refuse"):
        pushed(repo, "step:3", vllm, sglang)
    assert vllm.state("paused")
    assert is_at(sglang, repo, 3)
    pushed(repo, "step:3", vllm, sglang)
    assert is_at(vllm, repo, 3)


def test_a_push_that_another_one_crosses_ends_before_anything_is_paused(repo, served):
    pushed(repo, "step:1", served)
    other = repo.resolve("step:2")
    for between in ({"action": "cancel"}, {"version": other}):
        served.state("asked", [])
        with pytest.raises(WorkerFailed, match="another push"):
            pushed(repo, "step:3", served, clients=crossed(**between))
        assert not {"retract", "keep"} & {body.get("mode") for _, body in served.state("asked")}
    assert is_at(served, repo, 1)
    client = CLIENTS[served.engine](served.url, 60)
    client.check()
    looks = client.order(Order("status", repo.url)).workers
    assert {worker.staged for worker in looks} == {other}  # the other's is not cancelled


def test_a_worker_whose_weights_were_written_to_is_found_beside_serving(repo, served):
    pushed(repo, "step:1", served)
    served.do("spoil", "model.norm.weight", rank=1)
    served.state("asked", [])
    with pytest.raises(WorkerFailed) as caught:
        pushed(repo, "step:2", served)
    assert (caught.value.rank, caught.value.failure) == (1, "wrong_weights")
    assert not {("/pause_generation", "retract"), ("/pause", "keep")} & {
        (path, body.get("mode")) for path, body in served.state("asked")
    }
    pushed(repo, "step:2", served, long_pause=True)
    assert is_at(served, repo, 2)


def test_a_worker_that_fails_in_the_pause_stops_that_engine_and_puts_the_others_back(repo, engines):
    sglang, vllm = engines.values()
    pushed(repo, "step:1", sglang, vllm)
    vllm.do("spoil_next", "model.norm.weight", rank=1)
    with pytest.raises(EngineStopped, match="not as version"):
        pushed(repo, "step:3", sglang, vllm)
    assert is_at(sglang, repo, 1)
    assert vllm.state("paused")
    assert vllm.state("label") == repo.resolve("step:1")
    with pytest.raises(WorkerFailed, match="unusable"):
        pushed(repo, "step:3", sglang, vllm)
    assert vllm.state("paused")
    pushed(repo, "step:3", sglang, vllm, long_pause=True)
    assert is_at(sglang, repo, 3)
    assert is_at(vllm, repo, 3)


@pytest.mark.parametrize("fails", [False, True])
def test_a_push_that_was_killed_is_made_good_by_the_next(repo, engines, fails):
    """Cut off when the engines had swapped, and not dropped their caches: none serves before they are dropped."""
    pushed(repo, "step:1", *engines.values())
    with pytest.raises(EngineStopped):
        pushed(repo, "step:3", *engines.values(), clients=CUT_OFF)
    for served in engines.values():
        assert served.state("paused")
        served.state("asked", [])
    engines["sglang"].state("session", True)
    if fails:
        engines["vllm"].state("refuse", "/update_weight_version")
        with pytest.raises(EngineRefused):
            pushed(repo, "step:2", *engines.values())
    else:
        pushed(repo, "step:2", *engines.values())
    for served in engines.values():
        assert is_at(served, repo, 3 if fails else 2)
        asked = [path for path, _ in served.state("asked")]
        flushed = {"/flush_cache", "/reset_prefix_cache"}
        assert {"/continue_generation", "/resume"} & {*asked} == {asked[-1]}
        assert flushed & {*asked}


def test_what_an_engine_was_not_started_with_is_told(repo, engines, served):
    served.state("plain", True)
    with pytest.raises(EngineUnfit, match="started without"):
        pushed(repo, "main", *engines.values())
    served.state("plain", 0)
    engines["sglang"].state("without_plugin", True)
    with pytest.raises(EngineUnfit, match="plugin"):
        pushed(repo, "main", *engines.values())
    engines["sglang"].state("without_plugin", 0)
    assert all(served.state("paused") is None for served in engines.values())


def test_weights_that_are_not_shown_to_be_a_version_are_not_moved(repo):
    with engine("sglang") as served:
        with pytest.raises(EngineVersionUnknown, match="default"):
            pushed(repo, "main", served, at=None)
        with pytest.raises(WorkerFailed, match="not those of version"):
            pushed(repo, "main", served, at="step:2")
        assert is_at(served, repo, 0)
        pushed(repo, "main", served)
        assert is_at(served, repo, 3)


def test_one_worker_that_cannot_stage_keeps_all_from_moving(repo):
    with engine("vllm") as served:
        served.do("change_directory", str(Path(repo.url).parent), rank=0)
        with pytest.raises(WorkerFailed) as caught:
            pushed(repo, "main", served, repository="runs")
        assert (caught.value.rank, caught.value.failure) == (1, "no_repository")
        with pytest.raises(WorkerFailed, match="staging memory"):
            pushed(repo, "main", served, staging_bytes=64)
        assert is_at(served, repo, 0)
        pushed(repo, "step:1", served, long_pause=True)
        assert is_at(served, repo, 1)
        pushed(repo, "main", served, staging_bytes=1 << 20)
        assert is_at(served, repo, 3)


@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_an_engine_whose_worker_died_is_told_of(repo, name):
    with engine(name) as served:
        pushed(repo, "step:1", served)
        assert isinstance(served.do("die", rank=1)[0], EOFError)
        with pytest.raises((EngineUnreachable, EngineStopped)):
            pushed(repo, "step:2", served, timeout=0.2)


def test_the_command_says_what_it_did_and_why_it_did_not(repo, engines):
    sglang, vllm = engines.values()
    options = ["--repo", repo.url, "--json"]
    both = ["--sglang", sglang.url, "--vllm", vllm.url, "--timeout", "20s"]
    run = CliRunner().invoke
    result = run(main, ["push", "step:1", *both, "--at", "step:0", *options])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["version"] == repo.resolve("step:1")
    assert [len(workers) for workers in told["engines"].values()] == [2, 2]
    assert is_at(sglang, repo, 1)
    text = run(main, ["push", "step:2", *both, "--repo", repo.url])
    assert "2 workers" in text.stdout
    for arguments, code, kind in (
        (["main"], 2, "usage"),
        (["main", "--vllm", "http://127.0.0.1:1"], 1, "engine_unreachable"),
        (["main", "--vllm", sglang.url], 1, "engine_unfit"),
        (["main", "--sglang", "localhost:1"], 1, "bad_metadata"),
        (["nothing", *both], 1, "unknown_ref"),
    ):
        result = run(main, ["push", *arguments, *options])
        assert (result.exit_code, json.loads(result.stderr)["kind"]) == (code, kind), result.output
