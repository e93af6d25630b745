"""Every error deltavc raises on purpose, in one tree.

    DeltavcError
    ├── NotARepository  RepositoryExists  FormatUnsupported
    ├── RefError ── UnknownRef  AmbiguousRef  BadRefName
    ├── Conflict ── BranchMoved  RefExists  DirectoryInUse
    ├── InputError ── BadState  UnsupportedDtype  LayoutMismatch  BadCheckpoint  BadMetadata  UnknownCodec
    │                 GraceTooShort
    ├── Corruption ── CorruptObject  MissingObject  BadPayload  WrongWeights  CopiesDiffer  EncodeMismatch
    ├── StoreError ── ObjectMissing  StoreDenied  StoreUnavailable  StoreFull  StoreUnfit
    ├── DatabaseError ── DatabaseNeeded  DatabaseUnavailable  SchemaOutdated  SchemaTooNew  WrongDatabase
    ├── NoPath  CleanUpRefused  WeightsTooLarge
    ├── WriterError ── WriterBusy  WriterClosed  CommitAbandoned  CommitInDoubt  TooLate
    ├── ReplicaError ── NothingStaged  StageCancelled  StagingTooSmall  ForeignWrite  HookFailed  ReplicaUnusable
    │                   ReplicaClosed
    └── GroupError ── PeerFailed  GroupBroken

An error carries its facts as fields, says one sentence about them, and hints at the next step. `kind` is
a stable word for programs; `exit_code` is what the command line ends with.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

__all__ = [
    "AmbiguousRef",
    "BadCheckpoint",
    "BadMetadata",
    "BadPayload",
    "BadRefName",
    "BadState",
    "BranchMoved",
    "CleanUpRefused",
    "CommitAbandoned",
    "CommitInDoubt",
    "Conflict",
    "CopiesDiffer",
    "CorruptObject",
    "Corruption",
    "DatabaseError",
    "DatabaseNeeded",
    "DatabaseUnavailable",
    "DeltavcError",
    "DirectoryInUse",
    "EncodeMismatch",
    "ForeignWrite",
    "FormatUnsupported",
    "GraceTooShort",
    "GroupBroken",
    "GroupError",
    "HookFailed",
    "InputError",
    "LayoutMismatch",
    "MissingObject",
    "NoPath",
    "NotARepository",
    "NothingStaged",
    "ObjectMissing",
    "PeerFailed",
    "RefError",
    "RefExists",
    "ReplicaClosed",
    "ReplicaError",
    "ReplicaUnusable",
    "RepositoryExists",
    "SchemaOutdated",
    "SchemaTooNew",
    "StageCancelled",
    "StagingTooSmall",
    "StoreDenied",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "StoreUnfit",
    "TooLate",
    "UnknownCodec",
    "UnknownRef",
    "UnsupportedDtype",
    "WeightsTooLarge",
    "WriterBusy",
    "WriterClosed",
    "WriterError",
    "WrongDatabase",
    "WrongWeights",
]


@dataclass(eq=False)
class DeltavcError(Exception):
    """Base of every error that deltavc raises on purpose."""

    kind: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    hint: ClassVar[str] = ""

    def __post_init__(self) -> None:
        super().__init__(*(getattr(self, field.name) for field in dataclasses.fields(self)))

    def facts(self) -> dict[str, Any]:
        """The error's fields by name, for `--json`."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


# --- repositories ---


@dataclass(eq=False)
class NotARepository(DeltavcError):
    """No repository where one was named, or none named at all."""

    url: str
    reason: str = "there is no deltavc.json in it"

    kind = "no_repository"
    exit_code = 10
    hint = "Create one with `deltavc init URL`, or name another with --repo or DELTAVC_REPO."

    def __str__(self) -> str:
        return f"{self.url} is not a deltavc repository: {self.reason}"


@dataclass(eq=False)
class RepositoryExists(DeltavcError):
    """`init` met a repository, or files that are not ours."""

    url: str
    reason: str = "there is a deltavc.json in it already"

    kind = "repository_exists"
    hint = "Open it with deltavc.open(url) or --repo URL, or name an empty place."

    def __str__(self) -> str:
        return f"{self.url} cannot become a new repository: {self.reason}"


@dataclass(eq=False)
class FormatUnsupported(DeltavcError):
    """The repository says it has a format that this release does not read."""

    url: str
    found: str
    supported: int

    kind = "format_unsupported"
    hint = "Use a release of deltavc that knows this format."

    def __str__(self) -> str:
        return f"{self.url} has format {self.found}; this release reads format {self.supported}"


# --- refs ---


class RefError(DeltavcError):
    """A ref that cannot be used as given."""


@dataclass(eq=False)
class UnknownRef(RefError):
    """Nothing in the repository answers to this ref."""

    ref: str
    reason: str = "no branch, tag or version answers to it"
    candidates: tuple[str, ...] = ()

    kind = "unknown_ref"
    hint = "List what there is with `deltavc log --all`, `deltavc branch` and `deltavc tag`."

    def __str__(self) -> str:
        near = f"; did you mean {', '.join(self.candidates)}?" if self.candidates else ""
        return f"unknown ref {self.ref!r}: {self.reason}{near}"


@dataclass(eq=False)
class AmbiguousRef(RefError):
    """Several things answer to this ref."""

    ref: str
    candidates: tuple[str, ...]

    kind = "ambiguous_ref"
    hint = "Write more of the id, or the full name of one of the candidates."

    def __str__(self) -> str:
        return f"ref {self.ref!r} is ambiguous: {', '.join(self.candidates)}"


@dataclass(eq=False)
class BadRefName(RefError):
    """A name that no branch or tag may have."""

    name: str
    reason: str

    kind = "bad_ref_name"
    hint = "Use letters, digits and any of - _ . / + with no part that starts with a dot."

    def __str__(self) -> str:
        return f"{self.name!r} cannot be the name of a branch or tag: {self.reason}"


# --- conflicts ---


class Conflict(DeltavcError):
    """Somebody else changed what this operation was based on; nothing was changed by it."""

    exit_code = 11


@dataclass(eq=False)
class BranchMoved(Conflict):
    """Another writer advanced the branch between reading it and moving it."""

    branch: str
    expected: str | None
    found: str | None

    kind = "branch_moved"
    hint = "See what is there (`deltavc log`), then do it again, or on another branch; a writer goes there with w.move."

    def __str__(self) -> str:
        found = self.found if self.found else "no version"
        expected = self.expected if self.expected else "no version"
        return f"branch {self.branch!r} is at {found}, not at {expected} as this operation expected"


@dataclass(eq=False)
class RefExists(Conflict):
    """A branch or tag of this name exists. Tags never move."""

    what: str
    name: str
    at: str

    kind = "ref_exists"
    hint = "Choose another name, or delete this one first."

    def __str__(self) -> str:
        return f"{self.what} {self.name!r} exists already, at {self.at}"


@dataclass(eq=False)
class DirectoryInUse(Conflict):
    """Another process keeps this directory at a version."""

    path: str
    holder: str

    kind = "directory_in_use"
    hint = "Follow into another directory, or stop the process that follows into this one."

    def __str__(self) -> str:
        return f"{self.path} is kept at a version by {self.holder} already"


# --- input ---


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


# --- corruption ---


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


# --- stores ---


class StoreError(DeltavcError):
    """The object store did not do what it was asked."""


@dataclass(eq=False)
class ObjectMissing(StoreError):
    """There is no object under this key. A plain fact, not yet a corruption."""

    key: str

    kind = "object_missing"

    def __str__(self) -> str:
        return f"there is no object {self.key}"


@dataclass(eq=False)
class StoreDenied(StoreError):
    """The store refuses: credentials or permissions."""

    url: str
    operation: str
    reason: str

    kind = "store_denied"
    hint = (
        "For S3, check the credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) and what they permit on the bucket; "
        "for a directory, its owner, and whether its disk can be written."
    )

    def __str__(self) -> str:
        return f"{self.url} denies {self.operation}: {self.reason}"


@dataclass(eq=False)
class StoreUnavailable(StoreError):
    """The store cannot be reached, or kept failing."""

    url: str
    operation: str
    reason: str

    kind = "store_unavailable"
    hint = "Check the address (for S3 also the bucket and endpoint_url) and the network or disk, and try again."

    def __str__(self) -> str:
        return f"{self.url} is unavailable for {self.operation}: {self.reason}"


@dataclass(eq=False)
class StoreFull(StoreError):
    """No room left on the device or in the quota."""

    url: str
    operation: str

    kind = "store_full"
    hint = "Free some room and try again; nothing half written was left behind."

    def __str__(self) -> str:
        return f"{self.url} has no room left for {self.operation}"


@dataclass(eq=False)
class StoreUnfit(StoreError):
    """The store lacks something that deltavc relies on."""

    url: str
    reason: str

    kind = "store_unfit"
    hint = (
        "Take a place that is fit: a directory on a file system with hard links, or a prefix of an S3 bucket "
        "that honours create-if-absent (If-None-Match: * on PUT)."
    )

    def __str__(self) -> str:
        return f"{self.url} cannot hold a repository: {self.reason}"


# --- databases ---


class DatabaseError(DeltavcError):
    """The index database did not do what it was asked."""


@dataclass(eq=False)
class DatabaseNeeded(DatabaseError):
    """A question that takes all of history was asked of a repository that was opened without a database."""

    url: str

    kind = "database_needed"
    hint = (
        "Name one: --db sqlite:///lineage.db or --db postgresql://host/name "
        "(in Python db=..., in the environment DELTAVC_DB). An empty one is filled from the bucket."
    )

    def __str__(self) -> str:
        return f"{self.url} was opened without a database, and this needs one"


@dataclass(eq=False)
class DatabaseUnavailable(DatabaseError):
    """The database cannot be reached, is locked, or failed."""

    url: str
    reason: str

    kind = "database_unavailable"
    hint = (
        "Check its address, that it runs, and that its disk has room and can be written. It is only an index: "
        "--db sqlite:// does without it, and an empty database that you name instead fills itself."
    )

    def __str__(self) -> str:
        return f"database {self.url} is unavailable: {self.reason}"


@dataclass(eq=False)
class SchemaOutdated(DatabaseError):
    """The database was made by an older release."""

    url: str
    found: str
    needed: str

    kind = "schema_outdated"
    hint = "Run `deltavc db upgrade`."

    def __str__(self) -> str:
        return f"database {self.url} has schema {self.found}; this release needs {self.needed}"


@dataclass(eq=False)
class SchemaTooNew(DatabaseError):
    """The database was made by a newer release."""

    url: str
    found: str
    known: str

    kind = "schema_too_new"
    hint = "Use the newer release of deltavc, or name another database; an empty one is filled from the bucket."

    def __str__(self) -> str:
        return f"database {self.url} has schema {self.found}, newer than {self.known}, the newest this release knows"


@dataclass(eq=False)
class WrongDatabase(DatabaseError):
    """The database indexes another repository."""

    url: str
    found: str
    expected: str

    kind = "wrong_database"
    hint = "Name another database; an empty one is filled from the bucket."

    def __str__(self) -> str:
        return f"database {self.url} belongs to repository {self.found}, not to {self.expected}"


# --- clean-up ---


@dataclass(eq=False)
class CleanUpRefused(DeltavcError):
    """Clean-up is not sure that nobody needs what it would take; nothing was dropped or deleted by it."""

    reason: str

    kind = "clean_up_refused"
    hint = "Run `deltavc fsck`, which says what is wrong and how to repair it; then clean up again."

    def __str__(self) -> str:
        return f"clean-up took nothing: {self.reason}"


@dataclass(eq=False)
class GraceTooShort(InputError):
    """Clean-up was asked to delete what writers may still be about to name. Both in seconds."""

    asked: float
    grace: float

    kind = "grace_too_short"
    hint = (
        "Writers count on the repository's grace: what they uploaded may wait for half of it. "
        "Set a shorter one first, which they then keep to: `deltavc policy --grace`."
    )

    def __str__(self) -> str:
        grace, asked = (timedelta(seconds=seconds) for seconds in (self.grace, self.asked))
        return f"the repository's grace is {grace}; what is only older than {asked} may be in use"


# --- paths and writers ---


@dataclass(eq=False)
class NoPath(DeltavcError):
    """No chain of edges leads to the version's weights."""

    version: str

    kind = "no_path"
    hint = (
        "They were given up, or are lost; its lineage is kept. Take a version near it: `deltavc log` shows them, "
        "and `deltavc verify REF` says whether one is whole."
    )

    def __str__(self) -> str:
        return f"version {self.version} has no weights that can be reached"


@dataclass(eq=False)
class WeightsTooLarge(DeltavcError):
    """A version's weights would not fit into this machine's memory; nothing was read."""

    nbytes: int
    has: int

    kind = "weights_too_large"
    hint = "Check out some of the tensors (tensors=), or use a machine with more memory; `deltavc show` tells the size."

    def __str__(self) -> str:
        return f"the weights take {self.nbytes} bytes, and this machine has {self.has} bytes of memory"


class WriterError(DeltavcError):
    """A writer that cannot take this call."""


@dataclass(eq=False)
class WriterBusy(WriterError):
    """max_in_flight commits are on their way and on_busy is "error"."""

    branch: str
    in_flight: int

    kind = "writer_busy"
    hint = 'Wait for a commit to finish, or open the writer with on_busy="wait" or "coalesce".'

    def __str__(self) -> str:
        return f"the writer of branch {self.branch!r} has {self.in_flight} commits on their way already"


@dataclass(eq=False)
class WriterClosed(WriterError):
    """The writer was closed."""

    branch: str

    kind = "writer_closed"
    hint = "Open another with repo.writer(branch)."

    def __str__(self) -> str:
        return f"the writer of branch {self.branch!r} is closed"


@dataclass(eq=False)
class CommitAbandoned(WriterError):
    """An earlier commit of this writer failed, and this one was built on it."""

    branch: str
    reason: str

    kind = "commit_abandoned"
    hint = "The writer is back at the last version that was committed; commit the state again."

    def __str__(self) -> str:
        return f"a commit to branch {self.branch!r} was abandoned because one before it failed: {self.reason}"


@dataclass(eq=False)
class CommitInDoubt(WriterError):
    """The store did not answer whether the commit landed."""

    branch: str
    version: str
    reason: str

    kind = "commit_in_doubt"
    hint = "The writer settles it at its next call; `deltavc log` shows whether the version is there."

    def __str__(self) -> str:
        return f"whether version {self.version} was committed to branch {self.branch!r} is not known: {self.reason}"


@dataclass(eq=False)
class TooLate(WriterError):
    """So much time went by since the first upload that clean-up may be about to take it; nothing was published.

    what: what was to be published. age, limit: in seconds, by the store's clock.
    """

    what: str
    age: float
    limit: float

    kind = "too_late"
    hint = "Do it again: everything is uploaded anew. If it always takes so long, set a longer grace: `deltavc policy`."

    def __str__(self) -> str:
        return (
            f"{self.what} was not published: its uploads began {self.age:.0f} seconds ago, "
            f"and after {self.limit:.0f} clean-up might take them first"
        )


# --- replicas ---


class ReplicaError(DeltavcError):
    """A replica that cannot take this call, or did not move."""


@dataclass(eq=False)
class NothingStaged(ReplicaError):
    """`apply` without a version that was staged for it."""

    version: str

    kind = "nothing_staged"
    hint = "Call stage(ref) first, or move(ref), which does both. What was staged is used up by one apply."

    def __str__(self) -> str:
        return f"nothing is staged; the replica is at version {self.version}"


class StageCancelled(ReplicaError):
    """Staging was cancelled before it was done."""

    kind = "stage_cancelled"
    hint = "The live weights were not touched. Stage again when you want to move."

    def __str__(self) -> str:
        return "staging was cancelled; nothing is staged"


@dataclass(eq=False)
class StagingTooSmall(ReplicaError):
    """The change to a version does not fit into the staging memory."""

    has: int
    needs: int

    kind = "staging_too_small"
    hint = (
        "Open the replica with staging_bytes= of that size, or, where serving can stop for as long as a checkout "
        "takes, use move(ref, allow_long_pause=True)."
    )

    def __str__(self) -> str:
        return f"the change does not fit into {self.has} bytes of staging memory; {self.needs} are enough"


@dataclass(eq=False)
class ForeignWrite(ReplicaError):
    """Live lanes are not what the replica's version has there: somebody else wrote to them."""

    version: str
    tensors: tuple[str, ...]

    kind = "foreign_write"
    hint = (
        "Nothing was written. Find who writes to these tensors; to bring them back to a version, "
        "use move(ref, allow_long_pause=True)."
    )

    def __str__(self) -> str:
        shown = ", ".join(map(repr, self.tensors[:5])) + (" and others" if len(self.tensors) > 5 else "")
        return f"live tensors are not as version {self.version} has them: {shown}"


@dataclass(eq=False)
class HookFailed(ReplicaError):
    """on_apply raised; the old values went back."""

    version: str
    reason: str

    kind = "hook_failed"
    hint = "The replica is at the version it was at, and on_apply ran again for that one."

    def __str__(self) -> str:
        return f"on_apply failed for version {self.version}, which was taken back: {self.reason}"


@dataclass(eq=False)
class ReplicaUnusable(ReplicaError):
    """The live weights may be no version at all."""

    reason: str

    kind = "replica_unusable"
    hint = "Do not serve from it. move(ref, allow_long_pause=True) writes every weight anew and proves it."

    def __str__(self) -> str:
        return f"the replica is unusable: {self.reason}"


class ReplicaClosed(ReplicaError):
    """The replica was closed."""

    kind = "replica_closed"
    hint = "Open another with repo.replica(model)."

    def __str__(self) -> str:
        return "the replica is closed"


# --- groups of ranks ---


class GroupError(DeltavcError):
    """A call that all ranks of a group make failed on all of them."""


@dataclass(eq=False)
class PeerFailed(GroupError):
    """A call of a group failed on another rank, and so on all; `failure` is that error's kind."""

    rank: int
    failure: str
    reason: str

    kind = "peer_failed"
    hint = "Nothing was moved or committed, on any rank. See the error on that rank."

    def __str__(self) -> str:
        return f"rank {self.rank} failed, and so the call on all ranks: {self.reason}"


@dataclass(eq=False)
class GroupBroken(GroupError):
    """Ranks of a group did not take part in a call within the time-out, or what they decide by is gone."""

    call: str
    ranks: tuple[int, ...]
    reason: str

    kind = "group_broken"
    hint = (
        "This rank has moved and committed nothing. If the others live, make the call again on all ranks; "
        "if not, start them and open the replica group, or the writer, anew."
    )

    def __str__(self) -> str:
        ranks = f"without rank {', '.join(map(str, self.ranks))}" if self.ranks else "without the others"
        return f"{self.call} cannot be done {ranks}: {self.reason}"
