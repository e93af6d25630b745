"""Make tests/broken/NAME: what was done to the golden repository 0.1 to break it, and what a check has to find.

    python -m tests.broken.make_broken [NAME ...]      all of them by default

    NAME/kind.json      kind, key, full (only a full check finds it), lost and given_up (versions by message), repaired,
                        removed (keys), sql (done to the database), database ("before": it knew the repository whole)
    NAME/objects/KEY    objects as they are now

Run by hand, when a kind of damage is added; those that are there stand for what stores did to repositories.
"""

import dataclasses
import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch

from deltavc.delta.codecs import codec
from deltavc.delta.frames import frame_header, open_frame
from deltavc.delta.pack import PackBuilder, check_pack
from deltavc.layout import Layout
from deltavc.lineage.drops import DropRecord
from deltavc.lineage.names import SETTINGS
from deltavc.lineage.records import EdgeRecord, PackUse, RefEntry, VersionRecord, layout_key, ref_entry_key, version_key
from deltavc.lineage.settings import Policy

BROKEN = Path(__file__).parent
GOLDEN = BROKEN.parent / "format" / "golden" / "0.1"
TOLD = json.loads(GOLDEN.with_name("0.1.json").read_text())
VERSIONS = {told["message"]: version for version, told in TOLD["versions"].items()}
WHEN = "2026-01-02T03:04:05.678901Z"


def objects(root):
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def edge_of(message):
    """The delta that a version was committed with."""
    paths = sorted((GOLDEN / "edges" / VERSIONS[message]).iterdir())
    edges = [EdgeRecord.parse(path.read_bytes()) for path in paths]
    return next((edge for edge in edges if edge.base is not None), edges[0])


def version_of(message):
    return VersionRecord.parse((GOLDEN / version_key(VERSIONS[message])).read_bytes())


def flipped(body, place):
    return body[:place] + bytes((body[place] ^ 1,)) + body[place + 1 :]


def changed(root, key, body):
    (root / key).parent.mkdir(parents=True, exist_ok=True)
    (root / key).write_bytes(body)
    return key


def removed(root, key):
    (root / key).unlink()
    return key


# --- each breaks a copy of the golden repository and says what a check should find ---


def damaged_version(root):
    key = version_key(VERSIONS["planes"])
    return {"key": changed(root, key, flipped((root / key).read_bytes(), 30)), "repaired": True}


def missing_version(root):
    return {"key": removed(root, version_key(VERSIONS["planes"])), "repaired": True}


def damaged_layout(root):
    key = layout_key(version_of("grown").layout)
    return {"key": changed(root, key, (root / key).read_bytes()[:-10]), "repaired": True}


def missing_layout(root):
    return {"key": removed(root, layout_key(version_of("grown").layout)), "repaired": True}


def damaged_edge(root):
    key = edge_of("planes").key
    return {"key": changed(root, key, b""), "repaired": True}


def missing_edge(root):
    return {"key": removed(root, edge_of("planes").key), "repaired": True}


def damaged_edge_alone(root):
    """The database never knew it, so nothing can write it again."""
    key = edge_of("side").key
    return {"key": changed(root, key, b"{}"), "database": "after", "lost": ["side"]}


def wrong_edge(root):
    edge = edge_of("side")
    (root / edge.key).unlink()
    lies = dataclasses.replace(edge, fingerprints=edge.fingerprints[::-1])
    return {"key": changed(root, lies.key, lies.body), "database": "after", "lost": ["side"]}


def damaged_pack(root):
    """One bit of one frame, as a disk loses them."""
    key = edge_of("side").packs[0].key
    return {"key": changed(root, key, flipped((root / key).read_bytes(), 70)), "full": True, "lost": ["side"]}


def damaged_pack_cut(root):
    """An upload that was cut short, of an edge that a snapshot makes up for."""
    key = edge_of("snapshot").packs[0].key
    return {"key": changed(root, key, (root / key).read_bytes()[:-100])}


def missing_pack(root):
    key = edge_of("again").packs[0].key
    return {"key": removed(root, key), "lost": ["again"]}


def damaged_file(root):
    file = version_of("first").files["state/optimizer.bin"]
    return {"key": changed(root, file.key, bytes(256)), "full": True, "repaired": None}


def damaged_file_cut(root):
    file = version_of("first").files["state/optimizer.bin"]
    return {"key": changed(root, file.key, bytes(9)), "repaired": None}


def missing_file(root):
    return {"key": removed(root, version_of("first").files["config.json"].key), "repaired": None}


def damaged_ref(root):
    key = ref_entry_key("branches/main", 5)
    return {"key": changed(root, key, flipped((root / key).read_bytes(), 40)), "repaired": True}


def missing_ref(root):
    return {"key": removed(root, ref_entry_key("branches/main", 5)), "repaired": True}


def broken_ref(root):
    entry = RefEntry.parse((root / ref_entry_key("branches/main", 13)).read_bytes())
    lies = dataclasses.replace(entry, old=VERSIONS["first"])
    return {"key": changed(root, lies.key, lies.body), "database": "after", "repaired": None}


def damaged_drop(root):
    edge = edge_of("side")
    drop = DropRecord(edge.id, edge.target, "somebody", WHEN, "expire")
    return {"key": changed(root, drop.key, drop.body[:-1]), "given_up": ["side"], "repaired": True}


def damaged_settings(root):
    policy, _ = settings(root)
    return {"key": changed(root, policy.key, policy.body + b" "), "repaired": None}


def missing_settings(root):
    policy, _ = settings(root)
    return {"key": removed(root, policy.key), "repaired": None}


def settings(root):
    policy = Policy(keep_last=3)
    entry = RefEntry(SETTINGS, 1, None, policy.id, "somebody", WHEN, "policy", "0" * 32)
    changed(root, policy.key, policy.body)
    changed(root, entry.key, entry.body)
    return policy, entry


def wrong_weights(root):
    """A pack that is whole, of an edge that is true to form, with other weights in it: what a broken encoder writes."""
    edge = edge_of("side")
    layout = Layout.parse((root / layout_key(edge.layout)).read_bytes())
    (use,) = edge.packs
    body = (root / use.key).read_bytes()
    builder = PackBuilder(layout.id)
    for frame in check_pack(body, use.pack).frames:
        payload = body[frame.offset : frame.offset + frame.nbytes]
        if layout.tensors[frame.place].name == "embed.weight" and frame.num_changes:
            change = open_frame(payload, frame, layout)
            torch.neg(change.values, out=change.values)
            payload = codec(frame.codec).encode(change, frame_header(frame, layout).num_lanes)
        builder.add(frame.place, frame.box, frame.codec, frame.operation, payload, frame.num_changes)
    pack = builder.finish()
    nbytes = sum(frame.nbytes for frame in pack.frames)
    lies = dataclasses.replace(edge, packs=(PackUse(pack.id, len(pack.body), pack.index),), nbytes=nbytes)
    (root / edge.key).unlink()
    changed(root, f"packs/{pack.id[:2]}/{pack.id}.pack", pack.body)
    return {"key": changed(root, lies.key, lies.body), "full": True, "database": "after", "lost": ["side"]}


def no_path(root):
    """The only edge to a version is gone, and nobody remembers it."""
    edge = edge_of("again")
    (root / edge.key).unlink()
    return {"key": f"edges/{edge.target}/", "database": "after", "lost": ["again"], "repaired": None}


def no_way_forward(root):
    """A later snapshot still leads to it, over the edges behind it, backwards."""
    edge = edge_of("planes")
    (root / edge.key).unlink()
    return {"key": f"edges/{edge.target}/", "database": "after"}


def index_differs(root):
    return {"key": "versions in", "sql": ["UPDATE versions SET step = 77 WHERE step = 3"], "repaired": True}


MAKERS = {name: made for name, made in vars().items() if callable(made) and getattr(made, "__code__", None)}
KINDS = [name for name in MAKERS if name.partition("_")[0] in ("damaged", "missing", "wrong", "broken", "no", "index")]


def make(name):
    with tempfile.TemporaryDirectory() as scratch:
        root = shutil.copytree(GOLDEN, Path(scratch) / "repository")
        before = objects(root)
        told = {"full": False, "lost": [], "given_up": [], "repaired": True, "database": "before", "sql": []} | MAKERS[
            name
        ](root)
        after = objects(root)
    target = BROKEN / name
    shutil.rmtree(target, ignore_errors=True)
    for key, body in after.items():
        if before.get(key) != body:
            changed(target / "objects", key, body)
    kind = name.removesuffix("_cut").removesuffix("_alone")
    told = {"kind": kind, **told, "removed": sorted(before.keys() - after.keys())}
    changed(target, "kind.json", (json.dumps(told, indent=1, sort_keys=True) + "\n").encode())


if __name__ == "__main__":
    for each in sys.argv[1:] or KINDS:
        make(each)
