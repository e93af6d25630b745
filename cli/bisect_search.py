"""A search on the command line: the marks of a folder, what follows from them, and telling it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import bisecting, config
from .options import Settings
from .output import Output

if TYPE_CHECKING:
    from deltavc.bisect.bisector import Bisector
    from deltavc.bisect.inquiry import Standing
    from deltavc.bisect.journal import Journal, Session
    from deltavc.bisect.marks import Verdict
    from deltavc.bisect.result import Evaluation
    from deltavc.bisect.workbench import Workbench
    from deltavc.repo import Repo
    from deltavc.version import Version

UNDECIDED = 2  # git's exit code when only skipped versions are left


def folder_of(settings: Settings, repo: Repo) -> Path:
    """Where a search is kept: beside the configuration that names the repository, else among the user's own files."""
    import platformdirs

    place = config.locate(settings)
    if place.named_by in ("--repo", "DELTAVC_REPO"):
        return platformdirs.user_state_path("deltavc") / "bisect" / repo.id
    return Path(place.named_by).parent / "bisect" / repo.id


@dataclass(frozen=True, slots=True)
class Place:
    """Where versions are tried, as options say it. directory: None if they say nothing."""

    directory: str | None = None
    leave_out: tuple[str, ...] = ()

    @classmethod
    def of(cls, directory: str | None, leave_out: tuple[str, ...]) -> Place:
        """The directory by its full name: the next command may be run elsewhere."""
        return cls(None if directory is None else str(Path(directory).absolute()), leave_out)

    def take(self, session: Session) -> Session:
        """A search that goes on there; what was said before holds where nothing is said now."""
        return replace(
            session, directory=self.directory or session.directory, leave_out=self.leave_out or session.leave_out
        )


@dataclass(frozen=True, slots=True)
class Search:
    """What the commands of `bisect` have in common. given: the repository as --repo names it."""

    repo: Repo
    out: Output
    journal: Journal
    bisector: Bisector
    given: str | None

    @classmethod
    def of(cls, repo: Repo, out: Output, settings: Settings, folder: Path) -> Search:
        """The search that is kept in a folder, or is to be."""
        from deltavc.bisect.journal import Journal

        return cls(repo, out, Journal(folder), repo.bisector(), settings.repo)

    # --- commands ---

    def start(self, bad: str | None, good: Sequence[str], place: Place) -> None:
        """Begin a search."""
        marks: list[tuple[Verdict, Sequence[str]]] = [("good", good), ("bad", [] if bad is None else [bad])]
        self._begin([(verdict, self._resolve(verdict, refs)) for verdict, refs in marks], place)

    def replay(self, file: Path) -> None:
        """Begin a search with the marks of a log."""
        from deltavc.bisect.journal import parse_script

        commands = list(parse_script(str(file), file.read_text(encoding="utf-8", errors="replace")))
        self._begin([(verdict, self._resolve(verdict, refs)) for verdict, refs in commands], Place())

    def mark(self, verdict: Verdict, refs: Sequence[str]) -> None:
        """Mark versions, or the one that is being tried."""
        with self.changing() as session:
            versions = self._resolve(verdict, refs)
            if not refs:
                if session.current is None:
                    raise click.UsageError(
                        f"no version is being tried yet; name the {verdict} one: deltavc bisect {verdict} REF"
                    )
                versions = [session.current]
            session, found = self.ready(session.marking(verdict, versions))
            self.journal.write(session)
        self.tell(session, found)

    def log(self) -> None:
        """Print the marks."""
        from deltavc.bisect.journal import as_script

        marks = self.session().marks
        ids = list(dict.fromkeys(mark.version for mark in marks.entries))
        told = dict(zip(ids, map(_named, self.bisector.versions(ids)), strict=True))
        entries = [{"verdict": mark.verdict, "version": mark.version} for mark in marks.entries]
        self.out.searched(entries, [as_script(marks, told)])

    def view(self) -> None:
        """Show the suspects."""
        session = self.session()
        found = self.standing(session)
        suspects = self.bisector.versions(found.suspects[::-1])
        self.out.log(suspects, self.repo.names(), oneline=True, graph=False)

    def reset(self) -> None:
        """Forget the search."""
        with self.journal.locked():
            was = self.journal.remove()
        self.out.searched({"reset": was}, ["the search is forgotten" if was else "no search is on its way here"])

    # --- what they do it with ---

    def session(self) -> Session:
        """The search that is on its way. Raises NotBisecting."""
        from deltavc.errors import NotBisecting

        found = self.journal.read()
        if found is None:
            raise NotBisecting("no search is on its way here")
        return found

    @contextmanager
    def changing(self) -> Iterator[Session]:
        """The search that is on its way, which no other process changes meanwhile. Raises NotBisecting."""
        from deltavc.errors import NotBisecting

        if self.journal.read() is None:
            raise NotBisecting("no search is on its way here")
        with self.journal.locked():
            yield self.session()

    def placing(self, place: Place) -> Session:
        """The search that is on its way, which goes on in this place. Raises NotBisecting."""
        with self.changing() as session:
            session = place.take(session)
            self._check(place, session)
            self.journal.write(session)
            return session

    def workbench(self, session: Session) -> Workbench:
        """The directory in which versions are tried."""
        return self.bisector.workbench(session.directory or self.journal.weights, session.leave_out)

    def standing(self, session: Session) -> Standing:
        """Where a search stands. Raises NotBisecting if it lacks a mark."""
        from deltavc.errors import NotBisecting

        if session.marks.bad is None or not session.marks.good:
            raise NotBisecting(bisecting.waiting(session.marks))
        return self.bisector.standing(session.marks)

    def ready(self, session: Session) -> tuple[Session, Standing | None]:
        """A search with what is to be tried next, and where it stands; None if it lacks a mark.

        Raises:
            MarksContradict, BadMergeBase: its marks cannot be so.
        """
        from deltavc.bisect.search import Try

        if session.marks.bad is None or not session.marks.good:
            return replace(session, current=None), None
        found = self.bisector.standing(session.marks)
        return replace(session, current=found.choice.version if isinstance(found.choice, Try) else None), found

    def record(self, session: Session, evaluation: Evaluation) -> tuple[Session, Standing]:
        """Mark a version that was tried, beside what other shells marked meanwhile. Raises NotBisecting."""
        from deltavc.errors import NotBisecting

        with self.changing() as now:
            if now.id != session.id:
                raise NotBisecting("the search was begun anew in another shell")
            session, found = self.ready(now.marking(evaluation.verdict, [evaluation.version.id]))
            self.journal.write(session)
        if found is None:
            raise NotBisecting(bisecting.waiting(session.marks))
        return session, found

    def tell(self, session: Session, found: Standing | None) -> None:
        """Say where a search stands, and bring the version that is to be tried to its directory."""
        from deltavc.bisect.search import Try

        if found is None:
            marks = session.marks
            self.out.searched(bisecting.waiting_json(marks), [f"status: {bisecting.waiting(marks)}"])
            return
        self.warn(found)
        if not isinstance(found.choice, Try):
            self.conclude(session, found)
            return
        if session.directory is not None:
            with self.out.progress("bringing the version there"), closing(self.workbench(session)) as workbench:
                workbench.move(found.choice.version)
        trying = self.trying(found, session.directory)
        self.out.searched(trying.as_json(), bisecting.trying(trying))
        if session.directory is None:
            self.out.note(f"`deltavc checkout {trying.version.short_id} -o DIR` gets it")

    def trying(self, found: Standing, directory: str | None) -> bisecting.Trying:
        """What is to be tried next."""
        from deltavc.bisect.search import Try

        assert isinstance(found.choice, Try)
        (version,) = self.bisector.versions([found.choice.version])
        return bisecting.Trying(found.choice, version, len(found.suspects), len(found.unkept), directory)

    def warn(self, found: Standing) -> None:
        """Say what is left out, and what is taken for granted."""
        if found.unkept:
            many = len(found.unkept) != 1
            of = f"{len(found.unkept):,} of {len(found.suspects):,} suspects"
            self.out.note(f"{of} {'have' if many else 'has'} no weights any more and {'are' if many else 'is'} skipped")
        for base in found.doubts:
            self.out.note(f"{base[:12]}, from where a good version forked, cannot be tried and is taken to be good")

    def conclude(self, session: Session, found: Standing, evaluations: Sequence[Evaluation] = ()) -> None:
        """Say what was found, and end the command."""
        with self.out.progress("comparing it with the version before"):
            result = self.bisector.conclusion(found, evaluations)
        rollback = None
        if result.first_bad is not None and session.marks.bad is not None:
            rollback = self._rollback(session.marks.bad, result.first_bad)
        lines = bisecting.concluded(result, rollback, self.repo.names())
        self.out.searched(bisecting.concluded_json(result, rollback), lines)
        click.get_current_context().exit(UNDECIDED if result.first_bad is None else 0)

    # --- inside ---

    def _begin(self, marks: Iterable[tuple[Verdict, Sequence[str]]], place: Place) -> None:
        from deltavc.bisect.journal import Session

        session = place.take(Session())
        for verdict, versions in marks:
            session = session.marking(verdict, versions)
        session, found = self.ready(session)
        self._check(place, session)
        with self.journal.locked():
            self.journal.write(session)
        self.tell(session, found)

    def _check(self, place: Place, session: Session) -> None:
        """Refuse a directory that versions cannot be put into, before it is kept as theirs."""
        if place.directory is not None:
            self.workbench(session).close()

    def _resolve(self, verdict: Verdict, refs: Sequence[str]) -> list[str]:
        """Versions by their refs. Those of A..B, which B has and A has not, can only be skipped."""
        found: list[str] = []
        for ref in refs:
            several = verdict == "skip" and ".." in ref
            found += [version.id for version in self.repo.log(ref)] if several else [self.repo.resolve(ref)]
        return found

    def _rollback(self, bad: str, first_bad: Version) -> str | None:
        """The command that goes back to before the first bad version, where a branch has it and weights are kept."""
        (marked,) = self.bisector.versions([bad])
        branch, to = marked.branch, first_bad
        if branch is None or not self.bisector.is_in(first_bad.id, branch):
            return None
        while to.parents:
            (to,) = self.bisector.versions(to.parents[:1])
            if to.weights:
                return bisecting.rollback_command(branch, to, first_bad, self.given)
        return None


def _named(version: Version) -> str:
    """A version in one line of a comment."""
    from .texts import plain

    return plain(str(version))
