"""A weight-transfer engine of vLLM that fetches versions from a repository. Imported by vLLM alone. Read in 0.33.0.

    init_weight_transfer_engine  {"repository": URL, "at": ID}              once
    start_weight_update
    update_weights               {"version": ID, "action": "stage"}         beside serving, if one likes
    update_weights               {"version": ID}                            while the engine is paused
    finish_weight_update         {"weight_version": ID}

When a worker fails, every worker holds the version that it held before. Only the last worker raises, for all of them:
vLLM stops reading answers at the first error, and would take those that are left for answers to its next call. After an
error the update is open on the other workers: call finish_weight_update, whose answer is an error too, before the next.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from deltavc.integrations.engines import Order
from deltavc.integrations.engines_worker import let_go
from deltavc.integrations.vllm import order_for


@dataclass
class DeltavcInitInfo(WeightTransferInitInfo):  # type: ignore[misc]  # untyped without vLLM
    """Where versions come from. The fields are those of `engines.Order`."""

    repository: str
    at: str
    db: str | None = None
    storage_options: dict[str, Any] = field(default_factory=dict)
    timeout: float = 60.0
    staging_bytes: int | None = None


@dataclass
class DeltavcUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """What is to be done.

    version: the id of the version. action: "move" stages and swaps at once; "stage" begins to stage, beside serving;
    "apply" swaps to what is staged. long_pause: for "move", as for `engines.Order`.
    """

    version: str
    action: Literal["move", "stage", "apply"] = "move"
    long_pause: bool = False


class DeltavcWeightTransferEngine(WeightTransferEngine[DeltavcInitInfo, DeltavcUpdateInfo]):  # type: ignore[misc]
    """Made by vLLM in every worker."""

    init_info_cls = DeltavcInitInfo
    update_info_cls = DeltavcUpdateInfo
    supports_draft_weight_update = False

    _init: DeltavcInitInfo | None = None

    def init_transfer_engine(self, init_info: DeltavcInitInfo) -> None:
        """Take the model in, and prove that it is the version that it is said to be at.

        Raises:
            RuntimeError: on the last worker, for any: it is not, or cannot be taken in.
        """
        self._init = init_info
        self._carry_out("move", init_info.at, long_pause=False)

    def start_weight_update(self) -> None:
        """Nothing: weights are written in place, and not loaded."""

    def receive_weights(self, update_info: DeltavcUpdateInfo) -> None:
        """Stage or swap.

        Raises:
            RuntimeError: on the last worker, for any that failed. All are at the version that they were at.
        """
        self._carry_out(update_info.action, update_info.version, long_pause=update_info.long_pause)

    def finish_weight_update(self) -> None:
        """Nothing, as at the start."""

    def shutdown(self) -> None:
        """Let go of the weights and the repository."""
        let_go(self.model)

    def _carry_out(self, action: Literal["move", "stage", "apply"], version: str, *, long_pause: bool) -> None:
        init = self._init
        if init is None:
            self._raise("init_weight_transfer_engine was not called")
            return
        order = Order(
            action,
            init.repository,
            version,
            init.at,
            init.db,
            init.storage_options,
            init.timeout,
            init.staging_bytes,
            long_pause,
        )
        report = order_for(lambda: self.model, self.vllm_config, order.to_json())
        if (failed := report.failed) is not None:
            self._raise(f"worker {failed.rank} failed ({failed.failure}): {failed.reason}")

    def _raise(self, reason: str) -> None:
        if self.parallel_config.rank == self.parallel_config.world_size - 1:
            raise RuntimeError(reason)
