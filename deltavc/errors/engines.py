"""Errors of inference engines that a version is pushed to."""

from __future__ import annotations

from dataclasses import dataclass

from deltavc.errors.base import DeltavcError


class EngineError(DeltavcError):
    """An engine did not take a version."""


@dataclass(eq=False)
class EngineUnreachable(EngineError):
    """An engine does not answer."""

    url: str
    reason: str

    kind = "engine_unreachable"
    hint = "Is it running, and is the address its own? Nothing is moved by a push before every engine has answered."

    def __str__(self) -> str:
        return f"the engine at {self.url} does not answer: {self.reason}"


@dataclass(eq=False)
class EngineRefused(EngineError):
    """An engine answered a call with an error."""

    url: str
    call: str
    reason: str

    kind = "engine_refused"
    hint = "See the engine's log. docs/guides/engines.md tells which releases this was written for."

    def __str__(self) -> str:
        return f"the engine at {self.url} refused {self.call}: {self.reason}"


@dataclass(eq=False)
class EngineUnfit(EngineError):
    """An engine runs, but was not started so that versions can be pushed to it."""

    url: str
    reason: str

    kind = "engine_unfit"
    hint = (
        "Start it as docs/guides/engines.md shows: SGLang with --custom-weight-loader "
        "deltavc.integrations.sglang.load, vLLM with --worker-extension-cls "
        "deltavc.integrations.vllm.WorkerExtension and VLLM_SERVER_DEV_MODE=1."
    )

    def __str__(self) -> str:
        return f"the engine at {self.url} cannot take versions: {self.reason}"


@dataclass(eq=False)
class EngineVersionUnknown(EngineError):
    """Nobody said which version an engine's weights are."""

    label: str

    kind = "engine_version_unknown"
    hint = "Say which version the engine was started with: --at REF. It is checked, weight by weight."

    def __str__(self) -> str:
        return f"which version the engine is at is not known: it calls its weights {self.label!r}"


@dataclass(eq=False)
class WorkerFailed(EngineError):
    """A worker of an engine could not take a step of a push; `failure` is the kind of what it met.

    No worker of any engine has moved, or all of them were put back.
    """

    url: str
    rank: int
    failure: str
    reason: str

    kind = "worker_failed"
    hint = (
        "No worker of any engine was moved, or all were put back. See that worker's log. Where its weights are no "
        "version at all, or the change is larger than its staging memory, push with --long-pause."
    )

    def __str__(self) -> str:
        return f"worker {self.rank} of the engine at {self.url} failed: {self.reason}"


@dataclass(eq=False)
class EngineStopped(EngineError):
    """An engine was left paused, since it is not shown that all its weights are of one version."""

    url: str
    reason: str

    kind = "engine_stopped"
    exit_code = 20
    hint = (
        "It serves nothing. Push once more: what is at the version already is left as it is. --long-pause writes every "
        "weight anew where weights are no version at all. Otherwise start the engine again."
    )

    def __str__(self) -> str:
        return f"the engine at {self.url} was left paused: {self.reason}"
