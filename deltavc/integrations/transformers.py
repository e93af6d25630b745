"""Every step of a Hugging Face Trainer, or of TRL's trainers, as a version: committed, resumed, rolled back.

    callback = DeltavcCallback("runs/demo", state_every=10)
    trainer = Trainer(..., callbacks=[callback])
    trainer.train(resume_from_checkpoint=callback.checkpoint())

A step is committed when Trainer is through with it, which is after it was logged and evaluated, and before the weights
change again:

    optimizer step ─ on_step_end ─ log, evaluate, save ─ fetch the next batch ─ on_step_begin ─ forward ...
                          │               │                                          │
                     a step is due    its metrics                     commit_async; random numbers as they are here:
                                                                      there, Trainer puts them back when it resumes
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import torch
from transformers import TrainerCallback

from deltavc.errors import BranchTaken, DeltavcError, NotARepository, RolledBackTooOften
from deltavc.integrations import transformers_state as kept
from deltavc.integrations.transformers_line import Line, OnError
from deltavc.integrations.transformers_random import RandomNumbers
from deltavc.integrations.transformers_ranks import by_the_first, check_whole, rank, shared
from deltavc.integrations.transformers_start import Start, resume
from deltavc.opening import init, open_repository
from deltavc.repo import Repo

if TYPE_CHECKING:
    from deltavc.version import Version

log = logging.getLogger(__name__)

Rule = Callable[[Mapping[str, float]], object]
"""Tells from the metrics logged at a step whether the run has gone bad."""

RESUMING = "deltavc-resume"
"""The folder that `checkpoint` writes to unless it is told another; it is gone after the first step."""

_TOLD = 8
"""Metrics that the reason for a rollback tells; all of them are with the step."""


class DeltavcCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not followed by the type checker
    """Commits the steps of a `transformers.Trainer`. Of many processes with copies of the model, the first commits."""

    def __init__(
        self,
        repo: Repo | str | Path,
        branch: str = "main",
        *,
        every: int = 1,
        state_every: int = 100,
        rollback_if: Rule | None = None,
        rollback_to: str | None = None,
        max_rollbacks: int = 3,
        on_error: OnError = "raise",
        dtype: torch.dtype | str | None = None,
        writer: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Args:
            repo: an open repository; or the path or URL of one, which is made if it is not there.
            branch: where the steps go. It is made by the first.
            every: commit every so many steps; the first state and the last step always.
            state_every: with every so many versions, keep the state of optimizer, schedule, random numbers and trainer:
                from these a run can resume. The first and the last have it always.
            rollback_if: called with the metrics that were logged at a step, by name, when there are some. If it says
                yes, the step is committed, and then branch, weights, optimizer and schedule go back to the newest
                version that keeps the state, of a step at which it was asked before, or of an earlier one. Steps and
                data go on: the next batch is the next one.
            rollback_to: a ref; instead of before the step, go back to the newest such version at or before this one.
            max_rollbacks: how often in a row to one version, before RolledBackTooOften is raised.
            on_error: what happens if the store fails, after all retries, to take a commit. "raise": the next step, or
                the end of the training, does. "log": it is logged, and the next commit covers both steps.
            dtype: as for `repo.writer`: floating tensors are cast to it as they are committed. The weights as they are
                trained are then kept with the state.
            writer: what else `repo.writer` takes: keep, memory, codec, max_in_flight, on_busy, snapshots.
        """
        for name, count in (("every", every), ("state_every", state_every), ("max_rollbacks", max_rollbacks)):
            if count < 1:
                raise ValueError(f"{name}={count}: it has to be at least 1")
        if on_error not in get_args(OnError):
            raise ValueError(f"on_error={on_error!r} is none of {', '.join(get_args(OnError))}")
        self.branch = branch
        self._given = repo
        self._repo = repo if isinstance(repo, Repo) else None
        self._every, self._state_every = every, state_every
        self._rollback_if, self._rollback_to, self._max_rollbacks = rollback_if, rollback_to, max_rollbacks
        self._on_error = on_error
        self._dtype = dtype
        self._writer_options = dict(writer or {}) | ({} if dtype is None else {"dtype": dtype})
        self._args: Any = None
        self._line: Line | None = None
        self._start: Start | None = None
        self._folder: Path | None = None
        self._from: Path | None = None
        self._due: int | None = None
        self._first = False
        self._over: int | None = None
        self._randoms = RandomNumbers()
        self._logged: dict[str, float] = {}
        self._metrics: dict[str, float] = {}
        self._described: dict[str, bytes] = {}
        self._rolled_back: tuple[str, int] = ("", 0)

    @property
    def repo(self) -> Repo:
        """The repository, opened, or made, when it is first asked for."""
        if self._repo is None:
            assert not isinstance(self._given, Repo)
            try:
                self._repo = open_repository(self._given)
            except NotARepository:
                self._repo = init(self._given)
        return self._repo

    def checkpoint(self, ref: str | None = None, path: str | Path | None = None) -> str | None:
        """Write the checkpoint to resume from: `trainer.train(resume_from_checkpoint=callback.checkpoint())`.

        It is that of the newest version at or before `ref` that keeps the trainer's state. The branch is moved to `ref`
        itself, and the steps in between are computed again and compared with what is there. A branch that does not
        exist is made at `ref`.

        Args:
            ref: a branch, `step:N`, a tag: any ref. None: where the branch is, and nothing to resume if there is none.
            path: an empty or new directory, which stays. None: a folder in the trainer's output directory, or in the
                current one if the callback was added to a trainer after that was made; it is deleted after the first
                step. Of many processes, all call this, and have to see the directory.

        Returns:
            The directory; None where there is nothing to resume.

        Raises:
            UnknownRef, AmbiguousRef: of `ref`; or no version at or before it keeps a trainer's state.
            BranchMoved: somebody else moved the branch meanwhile.
            NoPath, Corruption: the version cannot be checked out.
        """
        self._abandon()
        folder = Path("." if self._args is None else self._args.output_dir, RESUMING) if path is None else Path(path)
        found = by_the_first(lambda: self._prepare(ref, folder, ours=path is None))
        self._folder = folder if found and path is None else None
        self._from = folder if found else None
        return str(folder) if found else None

    def close(self) -> None:
        """Let go of the branch, and of the repository if the callback opened it. Needed only after an exception.

        Raises:
            what a commit in the background failed with.
        """
        try:
            self._leave()
        finally:
            if self._repo is not None and self._repo is not self._given:
                self._repo.close()
                self._repo = None

    # --- what Trainer calls ---

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._args = args

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model = kwargs["model"]
        self._args = args
        check_whole(model)
        self._randoms.every_device = args.parallel_mode.value == "distributed"
        self._abandon()
        self._described = kept.described(model, kwargs.get("processing_class"))
        self._rolled_back = ("", 0)
        self._first = by_the_first(lambda: self._begin(state.global_step, model))
        self._due = state.global_step if self._first else None
        over = not self._first and 0 < state.max_steps <= state.global_step
        self._over = state.global_step if over else None

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        resumed, self._from = self._from, None
        self._randoms.epoch_begins(resumed)
        if self._due is None:
            self._logged = {}  # of an evaluation before a resumed run, of a step that is committed
        if _is_between_epochs(state):
            self._settle(state, kwargs)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._randoms.check()
        self._settle(state, kwargs)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._drop_folder()  # every process has read what it needs of it: their gradients came together
        if self._over is not None:
            self._undo(kwargs)
            control.should_log = control.should_evaluate = control.should_save = False
            return
        if self._due is not None:
            raise RuntimeError(f"step {self._due} was never through: this trainer does not call on_step_begin")
        self._due = state.global_step
        if self._keeps_state(self._due):
            self._randoms.watch()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._randoms.watch_on()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._randoms.watch_on()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "train_runtime" in (logs or {}):  # the sums of the whole run: it is over, and the best model may be loaded
            self._settle(state, kwargs, last=True)
        else:
            self._logged |= kept.numbers(logs or {})

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._drop_folder()
        self._settle(state, kwargs, last=True)
        if self._over is not None:
            state.global_step = self._over
        self._leave()

    # --- inside ---

    def _settle(self, state: Any, live: Mapping[str, Any], last: bool = False) -> None:
        """Commit the step that was made, if it is due, and go back if the rule says so."""
        step, first = self._due, self._first
        if step is None:
            return
        logged, self._logged = self._logged, {}
        self._due, self._first = None, False
        if last and _is_between_epochs(state):
            self._randoms.epoch_begins(None)  # with more steps the run would go on with another epoch
        has_state = first or last or self._keeps_state(step)
        randoms = self._randoms.files() if has_state or self._on_error == "log" else {}
        bad = False
        if self._line is not None:
            self._metrics |= logged
            if logged and not first and self._rollback_if is not None:
                bad = bool(self._rollback_if(logged))
            due = first or last or bad or step % self._every == 0
            if not self._line.has(step, live["model"]) and due:
                self._line.ready()
                files = dict(self._described)
                # Nothing resumes from a bad step, even if this process is killed before the branch goes back.
                if not bad and (has_state or (randoms and self._line.lacks_state)):
                    files |= randoms | kept.captured(
                        state, live["model"], live["optimizer"], live["lr_scheduler"], self._dtype
                    )
                self._line.commit(step, live["model"], self._metrics, files)
            if due:
                self._metrics = {}
        if self._rollback_if is not None and shared(bad):
            asked = max((told["step"] for told in state.log_history if told["step"] < step), default=0)
            self._go_back(step, asked, logged, live)

    def _go_back(self, step: int, asked: int, logged: Mapping[str, float], live: Mapping[str, Any]) -> None:
        """Go back to before a step at which the rule held. asked: the last one before at which it did not."""
        told = ", ".join(f"{name}={value:.6g}" for name, value in list(logged.items())[:_TOLD])
        reason = f"rollback_if held at step {step}: {told}"

        def roll_back() -> str:
            assert self._line is not None  # the first process has one
            return self._line.roll_back(step, asked, self._rollback_to, reason).id

        target = by_the_first(roll_back)
        version = self.repo.version(target)
        kept.restore(self.repo, version, live["model"], live["optimizer"], live["lr_scheduler"])
        to, times = self._rolled_back
        self._rolled_back = (target, times + 1 if to == target else 1)
        log.warning("%s: went back to step %s", reason, version.step)
        if self._rolled_back[1] > self._max_rollbacks:
            raise RolledBackTooOften(self.branch, target, version.step, self._rolled_back[1], reason)

    def _undo(self, live: Mapping[str, Any]) -> None:
        """Take back the step that Trainer makes of a run that was over when it was started again."""

        def at() -> str:
            assert self._line is not None  # the first process has one
            return self._line.at

        version = self.repo.version(by_the_first(at))
        kept.restore(self.repo, version, live["model"], live["optimizer"], live["lr_scheduler"])
        log.warning("%s was over at step %s: nothing was trained", self.branch, version.step)

    def _begin(self, step: int, model: torch.nn.Module) -> bool:
        """Find out where the branch is. Returns whether this run is its first."""
        start, self._start = self._start, None
        self._line = Line(self.repo, self.branch, kept.NEEDED, self._on_error, self._writer_options)
        if self._line.begin(start, step, model):
            return True
        version = self.repo.version(self._line.at)
        if not kept.holds_as_trained(self.repo, version, model):
            raise BranchTaken(self.branch, version.short_id, version.step, step)
        return False

    def _prepare(self, ref: str | None, folder: Path, ours: bool) -> bool:
        """Write a checkpoint, and move the branch to where its run is to go on. Returns whether there is one."""

        def write(version: Version) -> None:
            if ours:
                shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed before its first step
            kept.write(self.repo, version, folder)

        self._start = resume(self.repo, self.branch, ref, kept.NEEDED, write)
        return self._start is not None

    def _drop_folder(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None and rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)

    def _leave(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def _abandon(self) -> None:
        """Let go of a run that ended with an exception."""
        try:
            self._leave()
        except DeltavcError as error:
            log.warning("a commit of the run before failed: %s", error)
        self._due, self._logged, self._metrics = None, {}, {}

    def _keeps_state(self, step: int) -> bool:
        return step % (self._every * self._state_every) == 0


def _is_between_epochs(state: Any) -> bool:
    return state.epoch is None or state.epoch % 1 == 0
