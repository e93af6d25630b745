"""A client of SGLang's HTTP server. Read in release 0.5.23.

A weight update waits for running requests to end, unless the engine is paused. So an order beside serving is one in a
pause `in_place`, that leaves requests where they are and lasts as long as four calls that do next to nothing:

    /pause_generation in_place ─> /begin_weight_update ─> /update_weights_from_tensor ─> /end_weight_update
    ─> /continue_generation
"""

from __future__ import annotations

import base64
import json
import pickle
from typing import Any

from deltavc.errors import EngineRefused, EngineUnfit
from deltavc.integrations.engines import Order, Report
from deltavc.integrations.engines_http import Http
from deltavc.integrations.engines_push import Engine, Running

LOADER = "deltavc.integrations.sglang.load"
"""What SGLang knows the loader by: the argument of --custom-weight-loader, and the load_format of requests."""

TENSOR = "deltavc.order"
"""The name of the tensor that is an order."""

_PAUSES = {"requeue": "retract", "abort": "abort", "keep": "in_place"}


class SGLang(Engine):
    """One server of SGLang.

    timeout: seconds that an answer may take: longer than all workers take to agree, several times over.
    """

    def __init__(self, url: str, timeout: float = 300.0, token: str | None = None) -> None:
        self._http = Http(url, timeout, token)
        self.url = self._http.url
        self._paused = False
        self._workers = 1

    def check(self) -> None:
        told = self._asked("/server_info")
        self._workers = int(told.get("tp_size") or 1)
        if LOADER not in (told.get("custom_weight_loader") or []):
            raise EngineUnfit(self.url, f"it was started without --custom-weight-loader {LOADER}")
        for what in ("dp_size", "pp_size"):
            if (size := int(told.get(what) or 1)) != 1:
                raise EngineUnfit(self.url, f"its {what} is {size}, and only 1 is supported")

    def is_paused(self) -> bool:
        self._paused = not self._http.succeeds("/ready")
        return self._paused

    def label(self) -> str:
        return str(self._asked("/model_info").get("weight_version"))

    def order(self, order: Order) -> Report:
        if self._paused:
            return self._update(order)
        self._http.post("/pause_generation", {"mode": "in_place"})
        try:
            return self._update(order)
        finally:
            self.resume()

    def pause(self, running: Running) -> None:
        self._paused = True  # whatever comes of it: `resume` does no harm
        self._http.post("/pause_generation", {"mode": _PAUSES[running]})

    def flush(self, running: Running) -> None:
        if running != "keep":
            self._http.post("/flush_cache", timeout="30")

    def stamp(self, version: str) -> None:
        self._http.post("/update_weight_version", {"new_version": version, "abort_all_requests": False})

    def resume(self) -> None:
        self._http.post("/continue_generation", {"torch_empty_cache": False})
        self._paused = False

    def _update(self, order: Order) -> Report:
        """Have the loader called in every worker, within a weight update of the engine's own."""
        try:
            self._http.post("/begin_weight_update", {"selector": "target"})
        except EngineRefused:  # one that was killed left its update open
            self._http.post("/end_weight_update")
            self._http.post("/begin_weight_update", {"selector": "target"})
        try:
            return self._told(order)
        finally:
            self._http.post("/end_weight_update")

    def _told(self, order: Order) -> Report:
        body = {
            "serialized_named_tensors": [_payload(order)] * self._workers,
            "load_format": LOADER,
            "flush_cache": False,
            "selector": "target",
        }
        answer = self._http.post("/update_weights_from_tensor", body, accept=400)
        said = answer.get("message") if isinstance(answer, dict) else answer
        try:
            return Report.from_json(json.loads(str(said)))
        except (ValueError, TypeError) as error:
            if isinstance(answer, dict) and not answer.get("success", True):
                raise EngineRefused(self.url, "/update_weights_from_tensor", str(said)) from error
            reason = f"its workers do not say what came of an order, as without the plugin deltavc: {error}"
            raise EngineUnfit(self.url, reason) from error

    def _asked(self, path: str) -> dict[str, Any]:
        told = self._http.get(path)
        if not isinstance(told, dict):
            raise EngineUnfit(self.url, f"{path} is not what SGLang answers")
        return told


def _payload(order: Order) -> str:
    """The order as SGLang takes tensors: a plain pickle of names and CPU tensors, which its unpickler allows."""
    import torch

    tensor = torch.frombuffer(bytearray(order.to_json().encode()), dtype=torch.uint8)
    return base64.b64encode(pickle.dumps([(TENSOR, tensor)])).decode()
