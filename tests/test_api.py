"""What programs rely on: names, kinds of errors, exit codes, and that importing is cheap."""

import dataclasses
import inspect
import pickle
import subprocess
import sys

import pytest

import deltavc
from deltavc import errors

KINDS = {
    "AmbiguousRef": ("ambiguous_ref", 1),
    "BadCheckpoint": ("bad_checkpoint", 1),
    "BadDelta": ("bad_delta", 1),
    "BadJournal": ("bad_journal", 1),
    "BadMergeBase": ("bad_merge_base", 3),
    "BadMetadata": ("bad_metadata", 1),
    "BadPayload": ("bad_payload", 20),
    "BadRefName": ("bad_ref_name", 1),
    "BadState": ("bad_state", 1),
    "BranchMoved": ("branch_moved", 11),
    "BranchTaken": ("branch_taken", 1),
    "CleanUpRefused": ("clean_up_refused", 1),
    "CommitAbandoned": ("commit_abandoned", 1),
    "CommitInDoubt": ("commit_in_doubt", 1),
    "CopiesDiffer": ("copies_differ", 20),
    "CorruptObject": ("corrupt_object", 20),
    "DatabaseNeeded": ("database_needed", 1),
    "DatabaseUnavailable": ("database_unavailable", 1),
    "DirectoryInUse": ("directory_in_use", 11),
    "EncodeMismatch": ("encode_mismatch", 20),
    "EngineRefused": ("engine_refused", 1),
    "EngineStopped": ("engine_stopped", 20),
    "EngineUnfit": ("engine_unfit", 1),
    "EngineUnreachable": ("engine_unreachable", 1),
    "EngineVersionUnknown": ("engine_version_unknown", 1),
    "EvaluationFailed": ("evaluation_failed", 1),
    "ForeignWrite": ("foreign_write", 1),
    "FormatUnsupported": ("format_unsupported", 1),
    "GraceTooShort": ("grace_too_short", 1),
    "GroupBroken": ("group_broken", 1),
    "HistoriesDiffer": ("histories_differ", 11),
    "HookFailed": ("hook_failed", 1),
    "LayoutMismatch": ("layout_mismatch", 1),
    "MarksContradict": ("marks_contradict", 1),
    "MissingObject": ("missing_object", 20),
    "NoPath": ("no_path", 1),
    "NotARepository": ("no_repository", 10),
    "NotBisecting": ("not_bisecting", 1),
    "NothingStaged": ("nothing_staged", 1),
    "ObjectMissing": ("object_missing", 1),
    "PeerFailed": ("peer_failed", 1),
    "RefExists": ("ref_exists", 11),
    "ReplicaClosed": ("replica_closed", 1),
    "ReplicaUnusable": ("replica_unusable", 1),
    "RepositoryExists": ("repository_exists", 1),
    "RolledBackTooOften": ("rolled_back_too_often", 1),
    "SchemaOutdated": ("schema_outdated", 1),
    "SchemaTooNew": ("schema_too_new", 1),
    "StageCancelled": ("stage_cancelled", 1),
    "StagingTooSmall": ("staging_too_small", 1),
    "StoreDenied": ("store_denied", 1),
    "StoreFull": ("store_full", 1),
    "StoreUnavailable": ("store_unavailable", 1),
    "StoreUnfit": ("store_unfit", 1),
    "TooLate": ("too_late", 1),
    "UnknownCodec": ("unknown_codec", 1),
    "UnknownRef": ("unknown_ref", 1),
    "UnsupportedDtype": ("unsupported_dtype", 1),
    "WeightsTooLarge": ("weights_too_large", 1),
    "WorkerFailed": ("worker_failed", 1),
    "WriterBusy": ("writer_busy", 1),
    "WriterClosed": ("writer_closed", 1),
    "WrongDatabase": ("wrong_database", 1),
    "WrongWeights": ("wrong_weights", 20),
}
"""Kinds and exit codes are for ever: programs branch on them. Errors may be added."""

TREE = {
    "RefError": {"UnknownRef", "AmbiguousRef", "BadRefName"},
    "Conflict": {"BranchMoved", "RefExists", "DirectoryInUse", "HistoriesDiffer"},
    "InputError": {
        *("BadState", "UnsupportedDtype", "LayoutMismatch", "BadCheckpoint", "BadMetadata", "UnknownCodec"),
        *("BadDelta", "GraceTooShort"),
    },
    "Corruption": {"CorruptObject", "MissingObject", "BadPayload", "WrongWeights", "CopiesDiffer", "EncodeMismatch"},
    "StoreError": {"ObjectMissing", "StoreDenied", "StoreUnavailable", "StoreFull", "StoreUnfit"},
    "DatabaseError": {"DatabaseNeeded", "DatabaseUnavailable", "SchemaOutdated", "SchemaTooNew", "WrongDatabase"},
    "WriterError": {"WriterBusy", "WriterClosed", "CommitAbandoned", "CommitInDoubt", "TooLate"},
    "ReplicaError": {
        *("NothingStaged", "StageCancelled", "StagingTooSmall", "ForeignWrite", "HookFailed", "ReplicaUnusable"),
        "ReplicaClosed",
    },
    "GroupError": {"PeerFailed", "GroupBroken"},
    "EngineError": {
        *("EngineUnreachable", "EngineRefused", "EngineUnfit", "EngineVersionUnknown", "WorkerFailed"),
        "EngineStopped",
    },
    "BisectError": {"NotBisecting", "MarksContradict", "BadMergeBase", "EvaluationFailed", "BadJournal"},
    "RunError": {"BranchTaken", "RolledBackTooOften"},
}

VALUES = {
    "str": "x",
    "int": 3,
    "int | None": None,
    "float": 1.5,
    "str | None": None,
    "bool": True,
    "tuple[str, ...]": ("one", "two"),
    "tuple[int, ...]": (1, 2),
    "tuple[tuple[int, ...], ...]": ((0, 2), (1,)),
}


def every_error():
    found = [getattr(errors, name) for name in errors.__all__]
    return [kind for kind in found if not kind.__subclasses__() or "kind" in vars(kind)]


def made(kind):
    return kind(**{field.name: VALUES[field.type] for field in dataclasses.fields(kind)})


def test_the_tree_of_errors_is_what_it_was():
    classes = {
        name: kind
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and kind.__module__.startswith(f"{errors.__name__}.")
    }
    assert sorted(classes) == sorted(errors.__all__)
    assert {name: (classes[name].kind, classes[name].exit_code) for name in KINDS} == KINDS
    assert set(classes) - set(KINDS) - set(TREE) == {"DeltavcError"}
    for branch, leaves in TREE.items():
        assert {name for name, kind in classes.items() if issubclass(kind, classes[branch])} == leaves | {branch}
    for name in TREE:
        assert name in errors.__doc__
    for name in KINDS:
        assert name in errors.__doc__


def test_kinds_are_unique():
    kinds = [kind for kind, _ in KINDS.values()]
    assert len(set(kinds)) == len(kinds)


@pytest.mark.parametrize("name", KINDS)
def test_an_error_says_one_line_hints_and_survives_a_process_boundary(name):
    error = made(getattr(errors, name))
    assert str(error)
    assert "\n" not in str(error)
    assert error.facts().keys() == {field.name for field in dataclasses.fields(error)}
    if name != "ObjectMissing":  # a plain fact between modules, which a reader never sees
        assert error.hint.endswith((".", ")"))
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.facts(), str(again)) == (type(error), error.facts(), str(error))
    assert issubclass(type(error), deltavc.DeltavcError)


def test_public_names_are_there_and_documented():
    assert sorted(deltavc.__all__) == sorted(set(deltavc.__all__))
    for name in deltavc.__all__:
        thing = getattr(deltavc, name)
        assert thing.__doc__
        for method_name, method in vars(thing).items() if inspect.isclass(thing) else ():
            if not method_name.startswith("_") and (callable(method) or isinstance(method, property)):
                assert method.__doc__, f"{name}.{method_name}"
    assert set(deltavc.__all__) <= set(dir(deltavc))
    with pytest.raises(AttributeError, match="nothing_like_this"):
        deltavc.nothing_like_this  # noqa: B018


def loaded(code, *heavy):
    """Which of these modules a fresh interpreter has loaded after running the code."""
    script = f"import sys\n{code}\nprint(*sorted({set(heavy)!r} & set(sys.modules)))"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()


def test_importing_is_cheap():
    heavy = ("torch", "numba", "numpy", "s3fs", "fsspec", "sqlalchemy", "alembic", "safetensors", "rich", "click")
    assert loaded("import deltavc; deltavc.DeltavcError; deltavc.__all__; dir(deltavc)", *heavy) == []


def test_asking_about_history_loads_no_weights_and_no_network(tmp_path):
    with deltavc.init(tmp_path) as repo:
        repo.tag("v1", repo.commit({"w": __import__("torch").ones(2)}, files={"x": b"1"}).id)
    code = f"""
import deltavc
with deltavc.open({str(tmp_path)!r}) as repo:
    repo.log(); repo.branches(); repo.tags(); repo.reflog(); repo.stats(); repo.resolve('main'); repo.tensors()
    repo.branch('b'); repo.rollback('b', 'v1'); repo.delete_branch('b'); repo.read_file('main', 'x')
"""
    assert loaded(code, "torch", "numba", "s3fs", "fsspec", "safetensors", "alembic") == []
