"""Errors of what is passed in."""

from __future__ import annotations

from dataclasses import dataclass

from deltavc.errors.base import DeltavcError


class InputError(DeltavcError):
    """Something that was passed in cannot be used; nothing was written."""


@dataclass(eq=False)
class BadState(InputError):
    """A state, or one tensor of it, that cannot be committed or written into."""

    reason: str
    tensor: str | None = None

    kind = "bad_state"
    hint = "A state is a mapping of names to dense tensors that have values, a module, or the path of a checkpoint."

    def __str__(self) -> str:
        return f"tensor {self.tensor!r} {self.reason}" if self.tensor is not None else self.reason


@dataclass(eq=False)
class UnsupportedDtype(InputError):
    """A dtype that has no lanes."""

    dtype: str
    tensor: str | None = None

    kind = "unsupported_dtype"
    hint = "Convert the tensor to a dtype listed in docs/format.md, or leave it out."

    def __str__(self) -> str:
        of = f" of tensor {self.tensor!r}" if self.tensor is not None else ""
        return f"dtype {self.dtype}{of} is not supported"


@dataclass(eq=False)
class LayoutMismatch(InputError):
    """Live tensors do not have the names, dtypes or shapes of the version."""

    tensor: str
    reason: str

    kind = "layout_mismatch"
    hint = (
        "Make the tensors match (`deltavc show REF --tensors` lists them), check out without into=, or give a replica "
        "bindings= and ignore=."
    )

    def __str__(self) -> str:
        return f"tensor {self.tensor!r} {self.reason}"


@dataclass(eq=False)
class BadCheckpoint(InputError):
    """A path that is not a checkpoint deltavc can read or write."""

    path: str
    reason: str

    kind = "bad_checkpoint"
    hint = (
        "Read from a .safetensors file, a directory of them, or a .pt file of plain tensors; "
        "write into a new or empty directory."
    )

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(eq=False)
class BadDelta(InputError):
    """A delta directory, as Miles and slime write it, that cannot be read, applied or written to.

    version: the number of the published version at fault, None for the directory. tensor: its tensor, if it is one.
    """

    path: str
    version: int | None
    reason: str
    tensor: str | None = None

    kind = "bad_delta"
    hint = (
        "An import keeps what came before it, and nothing of it. Deltas fit one base only: check --base, or A of A..B, "
        "and that every weight_vNNNNNN is there and whole."
    )

    def __str__(self) -> str:
        of = "" if self.version is None else f": version {self.version}"
        tensor = "" if self.tensor is None else f", tensor {self.tensor!r}"
        return f"{self.path}{of}{tensor}: {self.reason}"


@dataclass(eq=False)
class BadMetadata(InputError):
    """A message, metric, meta value, file name or setting that a version cannot hold."""

    field: str
    reason: str

    kind = "bad_metadata"
    hint = "Metrics are numbers, meta is plain JSON, files are bytes or paths, and integers stay within 2**53."

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


@dataclass(eq=False)
class UnknownCodec(InputError):
    """A codec name that this release does not know."""

    name: str
    known: tuple[str, ...]

    kind = "unknown_codec"
    hint = "Choose one of the known codecs, or use a newer release to read what it wrote."

    def __str__(self) -> str:
        return f"unknown codec {self.name!r}; known are {', '.join(self.known)}"
