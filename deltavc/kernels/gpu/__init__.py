"""Kernels in Triton, for tensors of NVIDIA and AMD devices: many tensors in one launch.

    table  ── a row for each tensor ──> one launch ──> changes, sums
    loops, list_loops, swap_loops       what Triton compiles, once for each lane width

Tensors that a launch takes together have lanes of one width, and either are all contiguous and aligned or may
have gaps; a call with several kinds makes a launch for each. Under TRITON_INTERPRET=1 the same kernels take
CPU tensors, slowly; that is how they are tested where there is no device.

Triton is imported here only. `kernels` hands over arguments that it has checked.
"""

from __future__ import annotations

from deltavc.kernels.gpu.lanes import apply_all, fingerprint_all
from deltavc.kernels.gpu.lists import ascend_all, merge_all, moved_all
from deltavc.kernels.gpu.scan import diff_all
from deltavc.kernels.gpu.swap import Swap, gather_all

__all__ = ["Swap", "apply_all", "ascend_all", "diff_all", "fingerprint_all", "gather_all", "merge_all", "moved_all"]
