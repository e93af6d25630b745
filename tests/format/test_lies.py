"""Edges that are well-formed and wrong: named by their hash, readable, and not what the page says an edge is."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

import deltavc
from deltavc.errors import Corruption, NoPath
from deltavc.lineage.records import EdgeRecord
from tests.format.independent_reader import Repository

GOLDEN = Path(__file__).parent / "golden" / "0.1"
TOLD = json.loads(GOLDEN.with_name("0.1.json").read_text())["versions"]
VERSIONS = {told["message"]: version for version, told in TOLD.items()}
OTHER = Repository(GOLDEN).version(VERSIONS["reshaped"])["layout"]

LIES = {
    "of another base layout": lambda edge: {"base_layout": OTHER},
    "of another layout": lambda edge: {"layout": OTHER},
    "of other layouts": lambda edge: {"layout": OTHER, "base_layout": OTHER},
    "that changes tensors there are not": lambda edge: {"changed": (10**6,), "fingerprints": edge.fingerprints[:1]},
    "with other fingerprints": lambda edge: {"fingerprints": edge.fingerprints[::-1]},
    "without its pack": lambda edge: {"packs": ()},
    "with its pack twice": lambda edge: {"packs": edge.packs * 2},
    "with frames there are not": lambda edge: {"packs": with_pack(edge, frames=(0, 10**6))},
    "with a pack of another size": lambda edge: {"packs": with_pack(edge, nbytes=2**52)},
    "with a pack that ends early": lambda edge: {"packs": with_pack(edge, nbytes=100, index=(50, 1, 1))},
    "from itself": lambda edge: {"base": edge.target},
    "from nowhere": lambda edge: {"base": "0" * 64},
}


def with_pack(edge, **changes):
    return (dataclasses.replace(edge.packs[0], **changes),)


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_an_edge_is_refused(lie, tmp_path):
    copy = shutil.copytree(GOLDEN, tmp_path / "repository")
    (path,) = (copy / "edges" / VERSIONS["planes"]).iterdir()
    edge = EdgeRecord.parse(path.read_bytes())
    wrong = dataclasses.replace(edge, **lie(edge))
    path.unlink()
    (copy / wrong.key).write_bytes(wrong.body)
    with pytest.raises((Corruption, NoPath)), deltavc.open(copy, db="sqlite://") as repo:
        repo.checkout(VERSIONS["planes"])


def test_an_edge_that_drops_tensors_is_not_walked_back(tmp_path):
    copy = shutil.copytree(GOLDEN, tmp_path / "repository")
    for message, changes in (("reshaped", {"reversible": True, "nbytes": 0}), ("snapshot", {"nbytes": 2**40})):
        for path in (copy / "edges" / VERSIONS[message]).iterdir():
            edge = EdgeRecord.parse(path.read_bytes())
            wrong = dataclasses.replace(edge, **changes if edge.base or message == "snapshot" else {})
            path.unlink()
            (copy / wrong.key).write_bytes(wrong.body)
    with deltavc.open(copy, db="sqlite://") as repo, repo.writer("main") as w:
        w.move(VERSIONS["reshaped"])  # so that the cheapest way to `snapshot` leads back over the edge that lies
        w.rollback(VERSIONS["reshaped"])
        w.commit({name: tensor.clone() for name, tensor in repo.checkout("main").items()})
        with pytest.raises(Corruption, match="walked back"):
            w.move(VERSIONS["snapshot"])
