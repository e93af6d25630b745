"""Errors of what is damaged, gone, or not what it says."""

from __future__ import annotations

from dataclasses import dataclass

from deltavc.errors.base import DeltavcError


class Corruption(DeltavcError):
    """Stored bytes are not what was written. Weights made from them are never handed over."""

    exit_code = 20


@dataclass(eq=False)
class CorruptObject(Corruption):
    """An object, or the part of it that was read, is damaged."""

    key: str
    reason: str
    version: str | None = None

    kind = "corrupt_object"
    hint = (
        "Restore the object from a copy of the store. `deltavc fsck --full` says which versions need it, "
        "and with --repair does what can be done without it."
    )

    def __str__(self) -> str:
        of = f" (needed by version {self.version})" if self.version else ""
        return f"object {self.key} is corrupt{of}: {self.reason}"


@dataclass(eq=False)
class MissingObject(CorruptObject):
    """An object that something refers to is not in the store."""

    reason: str = "it is not in the store"

    kind = "missing_object"

    def __str__(self) -> str:
        of = f" (needed by version {self.version})" if self.version else ""
        return f"object {self.key} is missing{of}: {self.reason}"


@dataclass(eq=False)
class BadPayload(Corruption):
    """Bytes that the named codec, or a pack, could not have written."""

    reason: str

    kind = "bad_payload"
    hint = "The object that holds these bytes is damaged; restore it from a copy of the store."

    def __str__(self) -> str:
        return f"bad payload: {self.reason}"


@dataclass(eq=False)
class WrongWeights(Corruption):
    """Weights were put together, and their fingerprint is not the version's."""

    version: str
    tensors: tuple[str, ...]

    kind = "wrong_weights"
    hint = (
        "Nothing was handed over. If these are live weights, something else wrote to them, or they were never that "
        "version: look at `at` and the bindings. Otherwise the store or this machine's memory is at fault."
    )

    def __str__(self) -> str:
        names = ", ".join(repr(name) for name in self.tensors[:5]) or "which cannot be told"
        more = f" and {len(self.tensors) - 5} more" if len(self.tensors) > 5 else ""
        return f"the weights are not those of version {self.version}; tensors that differ: {names}{more}"


@dataclass(eq=False)
class CopiesDiffer(Corruption):
    """Ranks that hold the same part of a tensor hold different values.

    ranks: those that hold equal values together, most first.
    """

    tensor: str
    ranks: tuple[tuple[int, ...], ...]

    kind = "copies_differ"
    hint = (
        "Nothing was moved or committed. Find what wrote to the tensor on some ranks only; "
        "of a replica group, verify() finds the rank that is wrong."
    )

    def __str__(self) -> str:
        copies = " and ".join(f"on rank {', '.join(map(str, group))}" for group in self.ranks)
        return f"the copies of tensor {self.tensor!r} {copies} differ"


@dataclass(eq=False)
class EncodeMismatch(Corruption):
    """A frame, decoded right after it was encoded, is not the change it was made from."""

    tensor: str
    codec: str

    kind = "encode_mismatch"
    hint = "Nothing was uploaded. Commit again; if it recurs, suspect this machine's memory or the codec."

    def __str__(self) -> str:
        return f"codec {self.codec!r} did not give back the change of tensor {self.tensor!r} that it was given"
