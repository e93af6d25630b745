"""Imported once by the server that forks ranks: all that they import, and the kernels they call, single-threaded."""

import torch

import deltavc.lineage.resolve
import deltavc.opening
import deltavc.replica.opening_group
import deltavc.sharded.opening
import deltavc.store.local  # noqa: F401
from deltavc import kernels
from deltavc.change import Box, Dense
from deltavc.kernels import Part, Segment, SwapTable

line = Box.whole((8,))
for width in (torch.int16, torch.int32):
    old = torch.arange(8, dtype=width)
    new = old.flip(0)
    change, _ = kernels.diff(old, new, "add", line, line.lengths)
    whole, _ = kernels.diff(old, new, "add", line, line.lengths, prefer="dense")
    kernels.compose(change, change, 8)
    kernels.apply(old.clone(), change, line, line.lengths)
    kernels.apply(old.clone(), Dense("add", whole.values), line, line.lengths)
    kernels.fingerprint_all([Part(old, line, line.lengths)])
    at = kernels.offsets_of(old, torch.arange(8))
    kernels.gather(old, at)
    kernels.moved(at, old, new, line, line.lengths)
    for segment in (Segment(old.clone(), at, old, new), Segment(old.clone(), 0, old, new)):
        table = SwapTable([segment])
        table.compare()
        table.swap()
        table.write_old()
