"""Make tests/format/golden/NAME: a repository with one of everything, and what is in it.

    python -m tests.format.make_golden NAME         a name that ends in xor: the predecessors' codecs alone

Run by hand, when the format gains something that no golden repository has; those that are there are never made
again, since they stand for what earlier releases wrote. Upload ids are random, so no two runs give the same bytes.

    first ── sparse ── xor ── planes ── raw ── exceptions ── snapshot ── reshaped ── grown ── same      rolled back
                                         │          └─ side ─────────────┐                             from here,
                                         └─ again ───────────────────── merged  <- main                kept by tags
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from blake3 import blake3

import deltavc
from deltavc import packing
from deltavc.lanes import from_lanes, lanes, torch_dtype
from deltavc.layout import LANE_BYTES
from deltavc.lineage.records import ref_hint_key

GOLDEN = Path(__file__).parent / "golden"

random = torch.Generator().manual_seed(1)


def bits(dtype, *shape):
    """A tensor of any bits: NaN payloads, negative zeros and denormals among them."""
    if dtype == "bool":
        return torch.randint(2, shape, generator=random).bool()
    width = LANE_BYTES[dtype]
    lane_shape = (*shape, 2) if dtype == "complex128" else shape
    drawn = torch.randint(-128, 128, (*lane_shape, width), dtype=torch.int8, generator=random)
    return from_lanes(drawn.view(lanes(torch.empty(0, dtype=torch_dtype(dtype))).dtype).reshape(lane_shape), dtype)


def first():
    """Every dtype, and the shapes, names and ties that are easy to get wrong."""
    state = {f"dtypes.{dtype}": bits(dtype, 2, 3) for dtype in LANE_BYTES}
    state |= {f"frozen.{dtype}": bits(dtype, 4) for dtype in ("float8_e4m3fn", "bfloat16", "complex128")}
    embed = torch.randn(24, 12, generator=random).bfloat16()  # three boxes of rows
    state |= {
        "embed.weight": embed,
        "lm_head.weight": embed,
        "cube": torch.randn(2, 10, 16, generator=random).bfloat16(),  # boxes of rows within each matrix
        "master": torch.randn(24, 4, generator=random),
        "pairs": bits("complex128", 20),  # boxes in lane shape (20, 2)
        "zeros": torch.zeros(7, 9),
        "count": torch.tensor(41),
        "scale": torch.tensor(0.5).bfloat16(),
        "minus": torch.tensor(-0.0),
        "none": torch.zeros(0, 4),
        "none.at.all": torch.zeros(3, 0, dtype=torch.int8),
        "mask": torch.zeros(256, dtype=torch.uint8),
        "big": torch.zeros(8, dtype=torch.int64),
        "../../etc/passwd": bits("uint16", 2),
        "name\n\x00 \u00e9 \U0001f600": bits("int8", 2),
        "name\n\x00 \u00e9 \ue000": bits("int8", 3),
    }
    return state


def step(state, share=0.02):
    """Change a share of every tensor's lanes by one up or down, those of `frozen` and `zeros` excepted."""
    for name, tensor in moving(state):
        hit = torch.rand(tensor.shape, generator=random) < share
        sign = torch.randint(2, tensor.shape, generator=random) * 2 - 1
        tensor += (hit * sign).to(tensor.dtype)
        if name.startswith("dtypes.bool"):
            tensor &= 1


def moving(state):
    return [(name, lanes(tensor)) for name, tensor in state.items() if not name.startswith(("frozen", "zeros"))]


def build(repo):
    state = first()
    with repo.writer("main") as w:
        files = {"config.json": b'{"layers": 1}\n', "state/optimizer.bin": bytes(range(256)), "empty": b""}
        metrics = {"loss": 1.5, "tiny": 5e-324, "large": 1e22, "minus": -0.0}
        w.commit(state, step=0, message="first", metrics=metrics, files=files, meta={"a": [1, 2.5, None, True, 1e21]})
        step(state)
        state["mask"][:190] = 1  # two groups, of which the first is a run
        state["mask"][255] = 255  # an escaped gap
        metrics = {"nan": float("nan"), "up": float("inf"), "down": float("-inf"), "\u00e9\ue000\U0001f600": 1}
        w.commit(state, step=1, message="sparse", metrics=metrics, codec="sparse", files=files)
        step(state)
        w.commit(state, step=2, message="xor", codec="xor-zstd")
        for _, tensor in moving(state):
            tensor += torch.randint(-3, 4, tensor.shape, generator=random).to(tensor.dtype) * (tensor > 1)
        w.commit(state, step=3, message="planes", codec="planes")
        step(state)
        raw = w.commit(state, step=4, message="raw", codec="raw")
        step(state, 0.1)
        state["big"][:5] = torch.tensor([-(2**63), 2**63 - 1, 2**32, -2, 2])
        state["embed.weight"][:12] = torch.randn(12, 12, generator=random).bfloat16()
        exceptions = w.commit(state, step=5, message="exceptions", codec="sparse")
        step(state, 0.3)
        w.commit(state, step=6, message="snapshot", snapshot=True)  # with the first one's frames of `frozen`
        del state["dtypes.int32"], state["lm_head.weight"]
        state["master"] = state["master"].bfloat16()
        state["cube"] = state["cube"].reshape(20, 16)
        state["none"] = torch.zeros(4, 0)
        w.commit(state, step=7, message="reshaped", snapshot=True, codec="xor-zstd")
        w.commit({"grown": bits("float32", 6), "grown.none": torch.zeros(0)}, step=8, message="grown", partial=True)
        state |= repo.checkout("main", tensors=["grown*"])
        same = w.commit(state, step=9, message="same", author="another <a@example.org>")
        repo.tag("v1.0", same.id)
        repo.tag("releases/\u00fcber", "main~2")
        w.rollback(raw.id, "the loss went up")
        state = {name: tensor.clone() for name, tensor in repo.checkout(raw.id).items()}
        step(state)
        w.commit(state, step=5, message="again")
    repo.branch("side", exceptions.id)
    state = {name: tensor.clone() for name, tensor in repo.checkout("side").items()}
    step(state)
    repo.commit(state, "side", message="side")
    repo.commit(state, "main", parents=["main", "side"], message="merged")
    repo.branch("gone", "main~1")
    repo.delete_branch("gone")
    repo.branch("back", "main~1")
    repo.delete_branch("back")
    repo.branch("back", "main~2")
    repo.tag("oops", "main")
    repo.delete_tag("oops")


def build_xor(repo):
    """Blocks: two of them, long and short literals, matches of every reach, and every width of lanes."""
    state = {
        "embed": torch.zeros(5000, 8).bfloat16(),  # 80 kB
        "master": torch.randn(24, 4, generator=random),
        "noise": bits("uint8", 400),
        "pairs": bits("complex128", 3),
        "pattern": torch.arange(5, dtype=torch.uint8).repeat(100),
        "scale": torch.tensor(0.5).bfloat16(),
    }
    state["embed"][::700] = torch.randn(8, generator=random).bfloat16()
    with repo.writer("main") as w:
        w.commit(state, message="lz4", codec="xor-lz4")
        step(state, 0.005)
        w.commit(state, message="snappy", codec="xor-snappy-zstd")
        step(state, 0.005)
        metrics = {"nan": float("nan"), "up": float("inf"), "down": float("-inf")}
        w.commit(state, message="sparse", codec="sparse", metrics=metrics)
        step(state, 0.005)
        hc = w.commit(state, message="lz4hc", codec="xor-lz4hc-zstd")
        step(state, 0.005)
        w.commit(state, message="lz4 again", codec="xor-lz4")
        step(state, 0.005)
        snapshot = w.commit(state, message="snapshot", snapshot=True, codec="xor-snappy-zstd")
        repo.tag("v1.0", snapshot.id)
    repo.branch("side", hc.id)
    step(state, 0.005)
    repo.commit(state, "side", message="side", snapshot=True, codec="xor-lz4hc-zstd")


def expected(repo):
    versions = {}
    for version in repo.log(all=True):
        state = repo.checkout(version.id)
        versions[version.id] = {
            "message": version.message,
            "parents": list(version.parents),
            "files": {name: digest(repo.read_file(version.id, name)) for name in sorted(version.files)},
            "tensors": {name: f"{str(t.dtype)[6:]} {list(t.shape)} {digest(raw(t))}" for name, t in state.items()},
        }
    branches = {f"branches/{name}": at for name, at in repo.branches().items()}
    return {"refs": branches | {f"tags/{name}": at for name, at in repo.tags().items()}, "versions": versions}


def raw(tensor):
    return lanes(tensor).contiguous().numpy().tobytes()


def digest(data):
    return blake3(data).hexdigest(length=16)


def main(name):
    if name.endswith("xor"):
        make = build_xor
    else:
        make, packing.FRAME_BYTES = build, 256
    target = GOLDEN / name
    with tempfile.TemporaryDirectory() as scratch, deltavc.init(target, db=f"sqlite:///{scratch}/lineage.db") as repo:
        make(repo)
        (target / ref_hint_key("branches/side")).write_bytes(b"999999999999")  # nobody may believe it
        text = json.dumps(expected(repo), indent=1, sort_keys=True)
    (GOLDEN / f"{name}.json").write_text(text + "\n", newline="\n")


if __name__ == "__main__":
    main(sys.argv[1])
