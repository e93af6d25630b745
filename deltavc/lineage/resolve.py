"""From what people write to version ids.

    ref     = base { "~" [N] | "^" [N] }                 main~3^2~1
    base    = full id | prefix of it, 4 digits or more
            | branch | tag | branches/NAME | tags/NAME
            | [branch] "@{" N "}"                        where the branch was N moves ago
            | [branch "@"] "step:" N                     these search the first-parent history of the branch
            | [branch "@"] ("best:" | "worst:") metric
    range   = [ref] ".." [ref]                           what the second has and the first has not

`~N` is N first parents back, `^N` the Nth parent, `^0` the version itself, as in git. `best:` is the highest
value of a metric and `worst:` the lowest, unless the metric's name says that less is better: see LESS_IS_BETTER.
"""

from __future__ import annotations

import difflib
import re

from deltavc.errors import AmbiguousRef, BadRefName, UnknownRef
from deltavc.lineage.index import Index
from deltavc.lineage.names import BRANCHES, TAGS, check_name

LESS_IS_BETTER = frozenset(
    {"loss", "nll", "kl", "perplexity", "ppl", "bpb", "error", "mse", "rmse", "mae", "wer", "cer"}
)
"""Words that, as the last in a metric's name (eval/loss, val_ppl), make the lowest value its best."""

_SUFFIX = re.compile(r"([~^])(\d{0,12})")
_REFLOG = re.compile(r"(?P<branch>.*)@\{(?P<back>\d{1,12})\}")
_SEARCH = re.compile(r"(?:(?P<branch>.+)@)?(?P<kind>step|best|worst):(?P<what>.*)")
_STEP = re.compile(r"-?\d{1,15}")
_ID = re.compile(r"[0-9a-f]{4,64}")
_SHORT_ID = re.compile(r"[0-9a-f]{1,3}")
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")


def resolve(index: Index, ref: str, branch: str = "main") -> str:
    """The id of the version that a ref names. Branches and tags are followed into the bucket first.

    Args:
        branch: the branch that `step:`, `best:`, `worst:` and `@{N}` mean when they name none.

    Raises:
        UnknownRef: nothing answers to it; near names are listed.
        AmbiguousRef: several things do; they are listed.
    """
    base, suffixes = _split(_text(ref))
    try:
        version = _base(index, base, branch)
    except UnknownRef:
        index.catch_up_all()  # another process may have made what the database has not heard of
        try:
            version = _base(index, base, branch)
        except UnknownRef as error:
            raise UnknownRef(ref, error.reason, error.candidates) from None
    for kind, number in suffixes:
        version = _back(index, version, kind, number, ref)
    return version


def resolve_range(index: Index, refs: str, branch: str = "main") -> tuple[str | None, str]:
    """What `log` is asked for: `A..B` as ids of A and B; a single ref as None and its id. An empty end is `branch`.

    Raises what `resolve` raises.
    """
    without, dots, of = _text(refs).partition("..")
    if not dots:
        return None, resolve(index, refs, branch)
    return resolve(index, without or branch, branch), resolve(index, of or branch, branch)


def less_is_better(metric: str) -> bool:
    """Whether the best value of this metric is its lowest."""
    words = _WORDS.findall(metric)
    return bool(words) and words[-1].lower() in LESS_IS_BETTER


def _text(ref: object) -> str:
    """The ref, if it is text: an int may be meant as a step, a version by itself."""
    if not isinstance(ref, str):
        raise UnknownRef(repr(ref)[:80], "a ref is text: 'main', 'step:120', or the id of a version")
    return ref


def _split(ref: str) -> tuple[str, list[tuple[str, int]]]:
    try:
        ref.encode()
    except UnicodeEncodeError:  # bytes on a command line that are no UTF-8
        raise UnknownRef(ref.encode(errors="backslashreplace").decode(), "it cannot be written as UTF-8") from None
    cut = min((place for place in (ref.find("~"), ref.find("^")) if place >= 0), default=len(ref))
    base, rest = ref[:cut], ref[cut:]
    suffixes = [(kind, int(digits or 1)) for kind, digits in _SUFFIX.findall(rest)]
    if not base:
        raise UnknownRef(ref, "it names no version to start from")
    if _SUFFIX.sub("", rest):
        raise UnknownRef(ref, "'~' and '^' take a number or nothing")
    return base, suffixes


def _back(index: Index, version: str, kind: str, number: int, ref: str) -> str:
    if kind == "~":
        found = index.ancestor(version, number)
        if found is None:
            raise UnknownRef(ref, f"version {version} has fewer than {number} versions before it")
        return found
    if number == 0:
        return version
    parents = index.version(version).record.parents
    if number > len(parents):
        raise UnknownRef(ref, f"version {version} has {len(parents) or 'no'} parent{'s' * (len(parents) != 1)}")
    return parents[number - 1]


def _base(index: Index, base: str, branch: str) -> str:
    if found := _REFLOG.fullmatch(base):
        return _moves_ago(index, found["branch"] or branch, int(found["back"]), base)
    if found := _SEARCH.fullmatch(base):
        branch = found["branch"] or branch
        head = _named(index, [BRANCHES + branch], base)
        return _search(index, branch, head, found["kind"], found["what"], base)
    if base.startswith((BRANCHES, TAGS)):
        return _named(index, [base], base)
    if _ID.fullmatch(base):
        return _by_id(index, base)
    return _named(index, [BRANCHES + base, TAGS + base], base)


def _by_id(index: Index, prefix: str) -> str:
    # Names never look like this, so no branch or tag is meant.
    found = index.starting_with(prefix)
    if len(found) > 1:
        raise AmbiguousRef(prefix, tuple(found))
    if not found:
        raise UnknownRef(prefix, "no version's id starts with it" if len(prefix) < 64 else "no version has this id")
    return found[0]


def _named(index: Index, refs: list[str], base: str) -> str:
    """The version that the one of these refs that exists is at."""
    if base == "HEAD":
        raise UnknownRef(base, "there is no current branch; name one, such as main")
    if ".." in base:
        raise UnknownRef(base, "a range names many versions, and only `log` takes one")
    try:
        for ref in refs:
            check_name(ref.partition("/")[2])
    except BadRefName as error:
        raise UnknownRef(base, f"no branch or tag can have this name: {error.reason}") from None
    index.catch_up(refs)
    heads = {ref: entry.new for ref in refs if (entry := index.head(ref)) is not None and entry.new is not None}
    if len(heads) > 1:
        raise AmbiguousRef(base, tuple(heads))
    for version in heads.values():
        return version
    tags = [] if refs == [BRANCHES + refs[0].partition("/")[2]] else index.tags()
    near = difflib.get_close_matches(refs[0].partition("/")[2], [*index.branches(), *tags], n=3)
    raise UnknownRef(base, _why_not(index, refs[0], base), tuple(near))


def _why_not(index: Index, ref: str, base: str) -> str:
    """Why nothing is at this branch."""
    name = ref.partition("/")[2]
    if ref.startswith(BRANCHES) and index.reflog(ref, 1):
        return f"branch {name!r} was deleted; `deltavc branch {name} {name}@{{1}}` makes it where it was"
    if name == "main" and not index.branches():
        return "there is no branch yet; the first commit makes main"
    if base not in (name, ref):  # it searches the history of this branch
        return f"there is no branch {name!r}"
    if _SHORT_ID.fullmatch(base):
        return "no branch or tag answers to it, and of an id 4 digits are needed"
    return "no branch, tag or version answers to it"


def _moves_ago(index: Index, branch: str, back: int, base: str) -> str:
    ref = branch if branch.startswith((BRANCHES, TAGS)) else BRANCHES + branch
    index.catch_up([ref])
    moves = index.reflog(ref, back + 1)
    if not moves:
        raise UnknownRef(base, f"there is no branch {branch!r}")
    if len(moves) <= back:
        raise UnknownRef(base, f"branch {branch!r} has moved only {len(moves)} times")
    version = moves[back].new
    if version is None:
        raise UnknownRef(base, f"branch {branch!r} did not exist then")
    return version


def _search(index: Index, branch: str, head: str, kind: str, what: str, base: str) -> str:
    if kind == "step":
        if not _STEP.fullmatch(what):
            raise UnknownRef(base, "a step is a whole number")
        versions = index.with_step(head, int(what))
        if len(versions) > 1:
            raise AmbiguousRef(base, tuple(versions))
        if not versions:
            reason = f"no version in the history of branch {branch!r} has this step"
            raise UnknownRef(base, reason, tuple(index.with_step_anywhere(int(what), limit=3)))
        return versions[0]
    version = index.extreme(head, what, highest=(kind == "best") != less_is_better(what))
    if version is None:
        known = [name for name in index.metric_names() if name != what]
        near = difflib.get_close_matches(what, known, n=3) or known[:3]
        reason = f"no version in the history of branch {branch!r} has a finite value of this metric"
        raise UnknownRef(base, reason, tuple(f"{kind}:{name}" for name in near))
    return version
