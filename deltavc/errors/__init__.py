"""Every error deltavc raises on purpose, in one tree.

    DeltavcError
    ├── NotARepository  RepositoryExists  FormatUnsupported
    ├── RefError ── UnknownRef  AmbiguousRef  BadRefName
    ├── Conflict ── BranchMoved  RefExists  DirectoryInUse  HistoriesDiffer
    ├── InputError ── BadState  UnsupportedDtype  LayoutMismatch  BadCheckpoint  BadMetadata  UnknownCodec
    │                 BadDelta  GraceTooShort
    ├── Corruption ── CorruptObject  MissingObject  BadPayload  WrongWeights  CopiesDiffer  EncodeMismatch
    ├── StoreError ── ObjectMissing  StoreDenied  StoreUnavailable  StoreFull  StoreUnfit
    ├── DatabaseError ── DatabaseNeeded  DatabaseUnavailable  SchemaOutdated  SchemaTooNew  WrongDatabase
    ├── NoPath  CleanUpRefused  WeightsTooLarge
    ├── WriterError ── WriterBusy  WriterClosed  CommitAbandoned  CommitInDoubt  TooLate
    ├── RunError ── BranchTaken  RolledBackTooOften
    ├── ReplicaError ── NothingStaged  StageCancelled  StagingTooSmall  ForeignWrite  HookFailed  ReplicaUnusable
    │                   ReplicaClosed
    ├── GroupError ── PeerFailed  GroupBroken
    ├── EngineError ── EngineUnreachable  EngineRefused  EngineUnfit  EngineVersionUnknown  WorkerFailed  EngineStopped
    └── BisectError ── NotBisecting  MarksContradict  BadMergeBase  EvaluationFailed  BadJournal

An error carries its facts as fields, says one sentence about them, and hints at the next step. `kind` is
a stable word for programs; `exit_code` is what the command line ends with.
"""

from __future__ import annotations

from deltavc.errors.base import DeltavcError
from deltavc.errors.bisecting import (
    BadJournal,
    BadMergeBase,
    BisectError,
    EvaluationFailed,
    MarksContradict,
    NotBisecting,
)
from deltavc.errors.cleaning import CleanUpRefused, GraceTooShort
from deltavc.errors.conflicts import BranchMoved, Conflict, DirectoryInUse, HistoriesDiffer, RefExists
from deltavc.errors.corruption import (
    BadPayload,
    CopiesDiffer,
    Corruption,
    CorruptObject,
    EncodeMismatch,
    MissingObject,
    WrongWeights,
)
from deltavc.errors.databases import (
    DatabaseError,
    DatabaseNeeded,
    DatabaseUnavailable,
    SchemaOutdated,
    SchemaTooNew,
    WrongDatabase,
)
from deltavc.errors.engines import (
    EngineError,
    EngineRefused,
    EngineStopped,
    EngineUnfit,
    EngineUnreachable,
    EngineVersionUnknown,
    WorkerFailed,
)
from deltavc.errors.inputs import (
    BadCheckpoint,
    BadDelta,
    BadMetadata,
    BadState,
    InputError,
    LayoutMismatch,
    UnknownCodec,
    UnsupportedDtype,
)
from deltavc.errors.ranks import GroupBroken, GroupError, PeerFailed
from deltavc.errors.refs import AmbiguousRef, BadRefName, RefError, UnknownRef
from deltavc.errors.replicas import (
    ForeignWrite,
    HookFailed,
    NothingStaged,
    ReplicaClosed,
    ReplicaError,
    ReplicaUnusable,
    StageCancelled,
    StagingTooSmall,
)
from deltavc.errors.repositories import FormatUnsupported, NotARepository, RepositoryExists
from deltavc.errors.runs import BranchTaken, RolledBackTooOften, RunError
from deltavc.errors.stores import ObjectMissing, StoreDenied, StoreError, StoreFull, StoreUnavailable, StoreUnfit
from deltavc.errors.writers import (
    CommitAbandoned,
    CommitInDoubt,
    NoPath,
    TooLate,
    WeightsTooLarge,
    WriterBusy,
    WriterClosed,
    WriterError,
)

__all__ = [
    "AmbiguousRef",
    "BadCheckpoint",
    "BadDelta",
    "BadJournal",
    "BadMergeBase",
    "BadMetadata",
    "BadPayload",
    "BadRefName",
    "BadState",
    "BisectError",
    "BranchMoved",
    "BranchTaken",
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
    "EvaluationFailed",
    "EngineError",
    "EngineRefused",
    "EngineStopped",
    "EngineUnfit",
    "EngineUnreachable",
    "EngineVersionUnknown",
    "ForeignWrite",
    "FormatUnsupported",
    "GraceTooShort",
    "GroupBroken",
    "GroupError",
    "HistoriesDiffer",
    "HookFailed",
    "InputError",
    "LayoutMismatch",
    "MarksContradict",
    "MissingObject",
    "NoPath",
    "NotARepository",
    "NotBisecting",
    "NothingStaged",
    "ObjectMissing",
    "PeerFailed",
    "RefError",
    "RefExists",
    "ReplicaClosed",
    "ReplicaError",
    "ReplicaUnusable",
    "RepositoryExists",
    "RolledBackTooOften",
    "RunError",
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
    "WorkerFailed",
    "WriterBusy",
    "WriterClosed",
    "WriterError",
    "WrongDatabase",
    "WrongWeights",
]
