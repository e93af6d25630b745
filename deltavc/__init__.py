"""deltavc: git for model weights while they train.

    repo = deltavc.init("runs/demo")
    with repo.writer("main") as w:
        w.commit(model, step=1, metrics={"loss": 0.7})
    state = repo.checkout("main")

Importing this package is cheap: torch and numba load when weights are first touched.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from deltavc.errors import DeltavcError

if TYPE_CHECKING:
    from deltavc import bindings
    from deltavc.bisect.result import Bisection
    from deltavc.diff import Diff, TensorDiff
    from deltavc.following import Follower, Moved
    from deltavc.interchange.copying import Copied, copy
    from deltavc.interchange.export import export
    from deltavc.interchange.export_deltas import Exported, export_deltas
    from deltavc.interchange.import_deltas import import_deltas
    from deltavc.interchange.importing import Imported, import_checkpoints
    from deltavc.layers import LayerDiff
    from deltavc.lineage.settings import Policy
    from deltavc.opening import init
    from deltavc.opening import open_repository as open
    from deltavc.reader import Checkout
    from deltavc.replica import Applied, Replica, ReplicaFollower
    from deltavc.replica.group import ReplicaGroup
    from deltavc.repo import Repo
    from deltavc.series import Series
    from deltavc.shard import Shard
    from deltavc.snapshots import SnapshotPolicy
    from deltavc.tail import BranchMove, Tail
    from deltavc.upkeep.ways import Bounds
    from deltavc.version import Version
    from deltavc.writer import Writer

__version__ = "0.1.0"

logging.getLogger(__name__).addHandler(logging.NullHandler())  # what is logged is the application's to show

__all__ = [
    "Applied",
    "Bisection",
    "Bounds",
    "BranchMove",
    "Checkout",
    "Copied",
    "DeltavcError",
    "Diff",
    "Exported",
    "Follower",
    "Imported",
    "LayerDiff",
    "Moved",
    "Policy",
    "Replica",
    "ReplicaFollower",
    "ReplicaGroup",
    "Repo",
    "Series",
    "Shard",
    "SnapshotPolicy",
    "Tail",
    "TensorDiff",
    "Version",
    "Writer",
    "bindings",
    "copy",
    "export",
    "export_deltas",
    "import_checkpoints",
    "import_deltas",
    "init",
    "open",
]

_HOMES: dict[str, tuple[str, str | None]] = {
    "Bisection": ("deltavc.bisect.result", "Bisection"),
    "BranchMove": ("deltavc.tail", "BranchMove"),
    "Bounds": ("deltavc.upkeep.ways", "Bounds"),
    "Checkout": ("deltavc.reader", "Checkout"),
    "Diff": ("deltavc.diff", "Diff"),
    "Follower": ("deltavc.following", "Follower"),
    "Imported": ("deltavc.interchange.importing", "Imported"),
    "LayerDiff": ("deltavc.layers", "LayerDiff"),
    "Moved": ("deltavc.following", "Moved"),
    "Policy": ("deltavc.lineage.settings", "Policy"),
    "Applied": ("deltavc.replica", "Applied"),
    "Replica": ("deltavc.replica", "Replica"),
    "ReplicaFollower": ("deltavc.replica", "ReplicaFollower"),
    "ReplicaGroup": ("deltavc.replica.group", "ReplicaGroup"),
    "Repo": ("deltavc.repo", "Repo"),
    "Series": ("deltavc.series", "Series"),
    "Shard": ("deltavc.shard", "Shard"),
    "SnapshotPolicy": ("deltavc.snapshots", "SnapshotPolicy"),
    "Tail": ("deltavc.tail", "Tail"),
    "TensorDiff": ("deltavc.diff", "TensorDiff"),
    "Version": ("deltavc.version", "Version"),
    "Writer": ("deltavc.writer", "Writer"),
    "bindings": ("deltavc.bindings", None),
    "Copied": ("deltavc.interchange.copying", "Copied"),
    "Exported": ("deltavc.interchange.export_deltas", "Exported"),
    "copy": ("deltavc.interchange.copying", "copy"),
    "export": ("deltavc.interchange.export", "export"),
    "export_deltas": ("deltavc.interchange.export_deltas", "export_deltas"),
    "import_deltas": ("deltavc.interchange.import_deltas", "import_deltas"),
    "import_checkpoints": ("deltavc.interchange.importing", "import_checkpoints"),
    "init": ("deltavc.opening", "init"),
    "open": ("deltavc.opening", "open_repository"),
}


def __getattr__(name: str) -> Any:
    try:
        module, attribute = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    home = import_module(module)
    return home if attribute is None else getattr(home, attribute)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
