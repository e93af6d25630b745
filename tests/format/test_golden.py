"""Repositories that earlier releases wrote stay readable: by the library, and by a reader made from the page alone."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from blake3 import blake3

import deltavc
from deltavc.errors import Corruption
from deltavc.lanes import lanes
from tests.format.independent_reader import Refused, Repository

GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.json"))


@pytest.fixture(params=NAMES, ids=lambda name: f"golden-{name}")
def golden(request):
    return GOLDEN / request.param


@pytest.fixture
def expected(golden):
    return json.loads(golden.with_name(f"{golden.name}.json").read_text())


@pytest.fixture
def copy(golden, tmp_path):
    return shutil.copytree(golden, tmp_path / "repository")


def digest(data):
    return blake3(data).hexdigest(length=16)


def seen_by_page(state):
    return {name: f"{dtype} {list(shape)} {digest(data)}" for name, (dtype, shape, data) in state.items()}


def seen_by_library(state):
    return {
        name: f"{str(tensor.dtype)[6:]} {list(tensor.shape)} {digest(lanes(tensor).contiguous().numpy().tobytes())}"
        for name, tensor in state.items()
    }


def test_there_is_a_golden_repository():
    assert NAMES


def test_the_page_reads_every_version(golden, expected):
    repo = Repository(golden)
    for version, told in expected["versions"].items():
        assert seen_by_page(repo.read(version)) == told["tensors"]
        assert repo.version(version)["message"] == told["message"]
        assert repo.version(version)["parents"] == told["parents"]
        assert {name: digest(repo.file(version, name)) for name in repo.version(version)["files"]} == told["files"]


def test_the_page_walks_every_edge_both_ways(golden, expected):
    repo = Repository(golden)
    made = {version: repo.lanes(version) for version in expected["versions"]} | {None: {}}
    back = 0
    for version, told in expected["versions"].items():
        for edge in repo.edges(version):
            assert seen_by_page(repo.state(version, repo.walk(edge, made[edge["base"]]))) == told["tensors"]
            if edge["reversible"]:
                base = repo.walk(edge, made[version], forward=False)
                wanted = expected["versions"][edge["base"]]["tensors"]
                assert seen_by_page(repo.state(edge["base"], base)) == wanted
                back += 1
    assert back


def test_the_page_resolves_every_ref(golden, expected):
    repo = Repository(golden)
    assert repo.refs() == expected["refs"]
    for ref, version in expected["refs"].items():
        assert repo.resolve(ref.partition("/")[2]) == version
    parents = {version: told["parents"] for version, told in expected["versions"].items()}
    assert repo.resolve("main~2") == parents[parents[expected["refs"]["branches/main"]][0]][0]
    assert repo.resolve("v1.0~~1") == repo.resolve("v1.0~2")


def test_the_library_reads_every_version_into_a_new_database(copy, expected):
    with deltavc.open(copy) as repo:
        branches, tags = repo.branches(), repo.tags()
        assert {f"branches/{n}": at for n, at in branches.items()} | {f"tags/{n}": at for n, at in tags.items()} == (
            expected["refs"]
        )
        assert {version.id for version in repo.log(all=True)} == expected["versions"].keys()
        for version, told in expected["versions"].items():
            assert seen_by_library(repo.checkout(version)) == told["tensors"]
            assert repo.version(version).message == told["message"]
            assert list(repo.version(version).parents) == told["parents"]
            files = repo.version(version).files
            assert {name: digest(repo.read_file(version, name)) for name in files} == told["files"]


def test_the_library_walks_every_step_of_a_branch_back(copy, expected):
    with deltavc.open(copy) as repo, repo.writer("main") as w:
        live = repo.checkout("side")
        w.move("side", into=live)
        while parents := expected["versions"][w.version]["parents"]:
            w.move(parents[0], into=live)
            assert seen_by_library(live) == expected["versions"][parents[0]]["tensors"]


def test_the_library_goes_on_where_an_earlier_release_stopped(copy, expected):
    with deltavc.open(copy) as repo:
        state = {name: tensor.clone() for name, tensor in repo.checkout("main").items()}
        state["master"][3] = float("nan")
        version = repo.commit(state, message="later")
        assert version.parents == (expected["refs"]["branches/main"],)
        assert version.changed_lanes == 4
    assert seen_by_page(Repository(copy).read(version.id)) == seen_by_library(state)


def test_non_finite_metrics_come_back(copy):
    with deltavc.open(copy) as repo:
        (version,) = (version for version in repo.log(all=True) if version.message == "sparse")
    special = torch.tensor([version.metrics[name] for name in ("nan", "up", "down")])
    assert torch.equal(special.nan_to_num(1, 2, 3), torch.tensor([1.0, 2.0, 3.0]))


def test_one_damaged_byte_of_any_object_on_the_way_is_refused(golden, copy, expected):
    head = expected["refs"]["tags/v1.0"]
    used = set()

    class Traced(Repository):
        def get(self, key):
            used.add(key)
            return super().get(key)

    Traced(golden).read(head)
    for key in sorted(used - {"deltavc.json"}):
        path = copy / key
        body = path.read_bytes()
        place = len(body) * 2 // 3
        path.write_bytes(body[:place] + bytes((body[place] ^ 1,)) + body[place + 1 :])
        with pytest.raises(Refused):
            Repository(copy).read(head)
        with pytest.raises(Corruption), deltavc.open(copy, db="sqlite://") as repo:
            repo.checkout(head)
        path.write_bytes(body)
    assert len(used) > 5
