"""vLLM: versions swapped into its workers' weights in place. Read in release 0.33.0.

Two doors to the same thing:

    vllm serve --worker-extension-cls deltavc.integrations.vllm.WorkerExtension     then  deltavc push REF --vllm URL
    vllm serve --weight-transfer-config '{"backend": "deltavc"}'                    for trainers that drive vLLM's own
                                                                                    weight updates; see `vllm_engine`

The first answers with what every worker says. `register` makes the second known; vLLM finds it by the entry point in
the group `vllm.general_plugins`, in every process, as soon as deltavc is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from deltavc.errors import BadState
from deltavc.integrations.engines import Report, WorkerReport
from deltavc.integrations.engines_worker import carry_out, failed

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import ProcessGroup

BACKEND = "deltavc"
"""What vLLM knows the weight-transfer engine by."""


class WorkerExtension:
    """Becomes a base of vLLM's worker class, for `collective_rpc`."""

    def deltavc_order(self, order: str) -> dict[str, Any]:
        """Carry out an order, in every worker.

        Args:
            order: an `engines.Order` as JSON.

        Returns:
            The `engines.Report`. Never raises: vLLM reads the answer of one worker as another's after one has raised.
        """
        worker: Any = self
        return order_for(worker.get_model, worker.vllm_config, order).as_json()


def order_for(get_model: Any, vllm_config: Any, order: str) -> Report:
    """Have an order carried out in a worker of vLLM.

    Args:
        get_model: gives the worker's model.
        vllm_config: the worker's.
    """
    try:
        model: torch.nn.Module = get_model()
        group = _members(vllm_config)
    except Exception as error:
        return Report((failed(WorkerReport(0, "new"), error),))
    return carry_out(model, group, order)


def register() -> None:
    """Make the weight-transfer engine known. Called by vLLM in each of its processes; may be called again."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:
        module, name = "deltavc.integrations.vllm_engine", "DeltavcWeightTransferEngine"
        WeightTransferEngineFactory.register_engine(BACKEND, module, name)


def _members(vllm_config: Any) -> ProcessGroup:
    """The workers that hold a part of the model each: tensor-parallel ranks of all pipeline stages."""
    from vllm.distributed.parallel_state import get_world_group

    if (copies := vllm_config.parallel_config.data_parallel_size) > 1:
        raise BadState(f"the engine has {copies} data-parallel copies, of which only the first would answer")
    group: ProcessGroup = get_world_group().cpu_group
    return group
