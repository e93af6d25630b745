"""Histories without weights: who descends from whom, which of them are bad, and a search through them."""

from hypothesis import strategies as st

from deltavc.bisect.search import Found, Try, ancestors, choose


def line(size):
    """Versions in a row, oldest first."""
    return {str(number): (str(number - 1),) if number else () for number in range(size)}


@st.composite
def histories(draw, max_size=14):
    """Versions after their parents, with merges and several beginnings; the last one has all others behind it."""
    size = draw(st.integers(1, max_size))
    parents = {}
    for number in range(size):
        older = st.integers(max(0, number - 4), number - 1) if number else st.nothing()
        chosen = draw(st.lists(older, unique=True, max_size=3)) if number else []
        parents[str(number)] = tuple(map(str, chosen))
    behind = {parent for some in parents.values() for parent in some}
    parents[str(size)] = tuple(version for version in parents if version not in behind)
    return parents


def is_after(parents, version, culprit):
    """Whether a version is the culprit or comes after it."""
    return culprit in ancestors(parents, [version])


def suspects_of(parents, bad, good):
    left = ancestors(parents, [bad]) - ancestors(parents, good)
    return {version: parents[version] for version in parents if version in left}


def searched(parents, bad, good, verdict, untestable=()):
    """Search to the end: what was found, and the versions that were tried."""
    good, skipped, tried = list(good), [], []
    while True:
        suspects = suspects_of(parents, bad, good)
        choice = choose(suspects, bad, skipped, untestable)
        if not isinstance(choice, Try):
            return choice, tried
        assert choice.version not in (*tried, *untestable, bad)
        assert choice.version in suspects
        tried.append(choice.version)
        found = verdict(choice.version)
        if found == "bad":
            bad = choice.version
        elif found == "good":
            good.append(choice.version)
        else:
            skipped.append(choice.version)


def found_in(choice):
    """The versions that a search left, whether it is one or several."""
    return [choice.version] if isinstance(choice, Found) else list(choice.suspects)
