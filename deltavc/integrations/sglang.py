"""SGLang: versions swapped into its workers' weights in place. Read in release 0.5.23.

    sglang serve --custom-weight-loader deltavc.integrations.sglang.load ...        then  deltavc push REF --sglang URL

`load` is called in every tensor-parallel worker, with the worker's model and one tiny tensor: an order, as JSON. SGLang
does not look at what a loader returns, and ends when one raises, so `load` keeps its report, and `told`, a hook on the
call around it, puts it into the answer. `register` sets that hook; SGLang finds it by the entry point in the group
`sglang.srt.plugins`, in every process, as soon as deltavc is installed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch

from deltavc.errors import BadState
from deltavc.integrations.engines import Report, WorkerReport
from deltavc.integrations.engines_worker import carry_out, failed
from deltavc.integrations.sglang_client import LOADER, TENSOR

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import ProcessGroup

HOOKED = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater.update_weights_from_tensor"
"""The method that calls `load`, and returns whether it succeeded and a message."""

_reports: WeakKeyDictionary[torch.nn.Module, Report] = WeakKeyDictionary()


def load(model: torch.nn.Module, named_tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
    """Carry out an order. Called by SGLang in every worker, on the thread that schedules requests.

    Args:
        model: this worker's.
        named_tensors: one tensor, uint8, shape (n,), on any device: an `engines.Order` as JSON in UTF-8.
    """
    try:
        text = _order(named_tensors)
        group = _members()
    except Exception as error:
        own = failed(WorkerReport(0, "new"), error)
        _reports[model] = Report((own,))
    else:
        _reports[model] = carry_out(model, group, text)


def told(result: tuple[bool, str], updater: Any, *args: Any, **options: Any) -> tuple[bool, str] | None:
    """What SGLang is to answer: an AFTER hook on `HOOKED`. None for what is not ours.

    Returns:
        Whether the order was carried out on all workers, and the report as JSON.
    """
    report = _reports.pop(updater.get_model(), None) if options.get("load_format", *args[1:2]) == LOADER else None
    if report is None or not result[0]:
        return None
    return report.failed is None, json.dumps(report.as_json())


def register() -> None:
    """Set the hook. Called by SGLang in each of its processes."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(HOOKED, told, HookType.AFTER)


def _order(named_tensors: Sequence[tuple[str, torch.Tensor]]) -> bytes:
    if [name for name, _ in named_tensors] != [TENSOR]:
        names = ", ".join(repr(name) for name, _ in named_tensors) or "nothing"
        raise BadState(f"this loader takes one tensor called {TENSOR!r}, and was given {names}")
    return bytes(named_tensors[0][1].cpu().numpy())


def _members() -> ProcessGroup:
    """The workers that hold a part of the model each."""
    from sglang.srt.distributed import get_pp_group, get_tp_group

    if (stages := get_pp_group().world_size) > 1:
        raise BadState(f"the model is served in {stages} pipeline stages, which do not take orders at the same time")
    group: ProcessGroup = get_tp_group().cpu_group
    return group
