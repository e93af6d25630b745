"""A client of vLLM's HTTP server, with its development endpoints. Read in release 0.33.0.

Orders go to all workers by `/collective_rpc`, between two steps of the engine, paused or not. A method that the workers
do not have must not be called: every worker would raise, and vLLM would read one worker's answer as another's from then
on. So `check` reads what the engine was started with.
"""

from __future__ import annotations

from typing import Any

from deltavc.errors import EngineRefused, EngineUnfit
from deltavc.integrations.engines import Order, Report
from deltavc.integrations.engines_http import Http
from deltavc.integrations.engines_push import Engine, Running

EXTENSION = "deltavc.integrations.vllm.WorkerExtension"
METHOD = "deltavc_order"


class VLLM(Engine):
    """One server of vLLM.

    timeout: seconds that an answer may take: longer than all workers take to agree, several times over.
    """

    def __init__(self, url: str, timeout: float = 300.0, token: str | None = None) -> None:
        self._http = Http(url, timeout, token)
        self.url = self._http.url

    def check(self) -> None:
        try:
            told = self._http.get("/server_info", config_format="json")
            parallel = told["vllm_config"]["parallel_config"]
        except EngineRefused as error:
            raise EngineUnfit(self.url, f"it has no /server_info: {error.reason}") from error
        except (KeyError, TypeError) as error:
            raise EngineUnfit(self.url, "/server_info is not what vLLM answers") from error
        if parallel.get("worker_extension_cls") != EXTENSION:
            raise EngineUnfit(self.url, f"it was started without --worker-extension-cls {EXTENSION}")
        if (copies := parallel.get("data_parallel_size", 1)) != 1:
            raise EngineUnfit(self.url, f"it has {copies} data-parallel copies, and only 1 is supported")

    def is_paused(self) -> bool:
        return bool(self._asked(self._http.get("/is_paused")).get("is_paused"))

    def label(self) -> str:
        return str(self._asked(self._http.get("/weight_info")).get("weight_version"))

    def order(self, order: Order) -> Report:
        answer = self._http.post("/collective_rpc", {"method": METHOD, "args": [order.to_json()]})
        try:
            reports = [Report.from_json(told) for told in self._asked(answer)["results"]]
            # One that heard less than the others says so in a failure of its own.
            return next((report for report in reports if report.failed is not None), reports[0])
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise EngineUnfit(self.url, f"its workers do not say what came of an order: {error}") from error

    def pause(self, running: Running) -> None:
        self._http.post("/pause", mode="abort" if running == "abort" else "keep")

    def flush(self, running: Running) -> None:
        if running == "keep":
            return
        again = str(running == "requeue").lower()
        answer = self._http.post("/reset_prefix_cache", reset_running_requests=again, reset_external="true")
        if not self._asked(answer).get("success"):
            raise EngineRefused(self.url, "/reset_prefix_cache", "blocks of the cache are held by requests")
        self._http.post("/reset_encoder_cache")

    def stamp(self, version: str) -> None:
        self._http.post("/update_weight_version", {"new_version": version})

    def resume(self) -> None:
        self._http.post("/resume")

    def _asked(self, told: Any) -> dict[str, Any]:
        if not isinstance(told, dict):
            raise EngineUnfit(self.url, f"it does not answer as vLLM does: {str(told)[:100]!r}")
        return told
