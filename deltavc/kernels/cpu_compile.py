"""How the CPU's loops are compiled, and the machine instructions that numba lacks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit, types
from numba.extending import intrinsic

_F = TypeVar("_F", bound=Callable[..., Any])


def kernel(function: _F) -> _F:
    """Compile a loop for each combination of types it is first called with; it runs without the GIL.

    Compiled code is kept for later processes where numba finds a directory that it may write to.
    """
    compiled: Any = njit(nogil=True)(function)
    with contextlib.suppress(RuntimeError):
        compiled.enable_caching()
    return compiled  # type: ignore[no-any-return]


def _count_zeros(typing: Any, word: Any) -> Any:
    """How many zeros a uint64 has below its lowest one; 64 for zero."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], context.get_constant(types.boolean, False))

    return types.uint64(types.uint64), generate


trailing_zeros: Any = intrinsic(_count_zeros)


def _count_bits(typing: Any, word: Any) -> Any:
    """How many bits of a uint64 are set."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), generate


count_ones: Any = intrinsic(_count_bits)
