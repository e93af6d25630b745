"""An HTTP server with the endpoints of SGLang or vLLM that a push calls, in a process of its own, before real workers.

Paths, methods and fields are those that `contracts/*.json` records; others are refused, as the engines refuse them. It
serves requests one at a time, and keeps a list of what it was asked.
"""

import contextlib
import http.server
import json
import threading
from urllib.parse import parse_qsl, urlsplit

LOADER = "deltavc.integrations.sglang.load"
EXTENSION = "deltavc.integrations.vllm.WorkerExtension"


def main(pipe, engine, contract, workers):
    """Serve until the pipe is closed. Says its port there, and does what a test asks of the workers and the state."""
    app = {"sglang": SGLangServer, "vllm": VLLMServer}[engine](contract, workers)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), lambda *args: Handler(app, *args))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    pipe.send(server.server_address[1])
    with contextlib.suppress(EOFError):
        while True:
            name, value = pipe.recv()
            with app.lock:
                pipe.send(app.workers_do(*value) if name == "workers" else app.exchange(name, value))


class Refused(Exception):
    def __init__(self, status, told):
        super().__init__(status)
        self.status, self.told = status, told


class Server:
    """An engine's front: `answer` has a method for each path."""

    def __init__(self, contract, workers):
        self.lock = threading.Lock()
        self.state = {"asked": [], "paused": None, "label": "default"}
        self._contract = contract
        self._workers = workers

    def workers_do(self, name, args, rank=None):
        """Have all workers do something, or one, and give what each returned, or what it raised; EOFError if it died.

        Args:
            args: for all of them, or a list of each one's.
        """
        those = range(len(self._workers)) if rank is None else [rank]
        for each in those:
            with contextlib.suppress(BrokenPipeError):
                self._workers[each].send((name, args[each] if isinstance(args, list) else args))
        return [_heard(self._workers[each]) for each in those]

    def alive(self, name, args):
        """What all workers return; the engine ends when one died."""
        found = self.workers_do(name, args)
        if any(isinstance(each, EOFError) for each in found):
            raise EOFError
        return found

    def exchange(self, name, value):
        """Something of the state, for a test; set to a value if there is one."""
        found = self.state.get(name)
        if value is not None:
            self.state[name] = value
        return found

    def answer(self, method, path, body, query):
        endpoint = self._contract["endpoints"].get(path)
        if endpoint is None or method not in endpoint["methods"]:
            raise Refused(404, {"detail": "Not Found"})
        self._check(endpoint["parameters"], body, query)
        self.state["asked"].append((path, body | query))
        if self.state.get("refuse") == path:
            del self.state["refuse"]
            raise Refused(400, {"message": "told to refuse"})
        return getattr(self, path[1:])(**body, **query)

    def _check(self, parameters, body, query):
        queries = {name for name, source in parameters.items() if source == "query"}
        fields = {name: None for name, source in parameters.items() if source == "body"}
        for source in parameters.values():
            if source.endswith("ReqInput"):
                fields |= self._contract["requests"][source.removesuffix("ReqInput")]
        known = fields.keys() | ({"method", "args", "kwargs", "timeout"} if not parameters else set())
        missing = {name for name, default in fields.items() if default is None} - body.keys()
        if not query.keys() <= queries or not body.keys() <= known or missing:
            raise Refused(422, {"detail": f"fields {sorted(body)} {sorted(query)}, missing {sorted(missing)}"})


def _heard(worker):
    try:
        return worker.recv()
    except EOFError as error:
        return error


class SGLangServer(Server):
    def server_info(self):
        loaders = [] if self.state.get("plain") else [LOADER]
        return {"tp_size": len(self._workers), "dp_size": 1, "pp_size": 1, "custom_weight_loader": loaders}

    def ready(self):
        if self.state["paused"]:
            raise Refused(503, "")
        return ""

    def model_info(self):
        return {"weight_version": self.state["label"]}

    def pause_generation(self, mode="abort"):
        self.state["paused"] = mode
        return {"status": "ok"}

    def continue_generation(self, torch_empty_cache=True):
        assert not torch_empty_cache
        self.state["paused"] = None
        return {"status": "ok"}

    def begin_weight_update(self, selector="all"):
        if self.state.get("session"):
            raise Refused(400, {"success": False, "message": "a weight-update session is already open"})
        self.state["session"] = True
        return {"success": True, "message": "Success"}

    def end_weight_update(self):
        self.state["session"] = False
        return {"success": True, "message": "Success"}

    def update_weights_from_tensor(self, serialized_named_tensors, load_format=None, flush_cache=True, **_):
        assert self.state["paused"], "it would wait for running requests"
        if not self.state.get("session"):
            raise Refused(400, {"success": False, "message": "update_weights_from_tensor must run between"})
        assert len(serialized_named_tensors) == len(self._workers)
        tells = not self.state.get("without_plugin")
        orders = [(each, load_format, tells) for each in serialized_named_tensors]
        success, message = self.alive("update", orders)[0]  # a worker that raised would have ended the engine
        assert not flush_cache
        if not success:
            raise Refused(400, {"success": False, "message": message})
        return {"success": True, "message": message}

    def flush_cache(self, timeout="0"):
        if self.state["paused"] == "in_place":
            raise Refused(400, "Flush cache failed.\n")
        return "Cache flushed.\n"

    def update_weight_version(self, new_version, abort_all_requests=True):
        assert not abort_all_requests
        self.state["label"] = new_version
        return {"success": True, "new_version": new_version}


class VLLMServer(Server):
    def server_info(self, config_format):
        extension = "" if self.state.get("plain") else EXTENSION
        parallel = {"worker_extension_cls": extension, "data_parallel_size": 1}
        return {"vllm_config": {"parallel_config": parallel}}

    def is_paused(self):
        return {"is_paused": self.state["paused"] is not None}

    def weight_info(self):
        return {"weight_version": self.state["label"]}

    def pause(self, mode="abort", clear_cache="true"):
        self.state["paused"] = mode
        return {"status": "paused"}

    def resume(self):
        self.state["paused"] = None
        return {"status": "resumed"}

    def collective_rpc(self, method, args):
        found = self.alive("rpc", (method, args))
        assert not any(isinstance(each, Exception) for each in found), "vLLM's answers would be out of step"
        return {"results": found}

    def reset_prefix_cache(self, reset_running_requests="false", reset_external="false"):
        return {"success": True}

    def reset_encoder_cache(self):
        return ""

    def update_weight_version(self, new_version):
        self.state["label"] = new_version
        return {"success": True, "new_version": new_version}


class Handler(http.server.BaseHTTPRequestHandler):
    def __init__(self, app, *args):
        self._app = app
        super().__init__(*args)

    def do_GET(self):
        self._serve({})

    def do_POST(self):
        self._serve(json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}"))

    def log_message(self, *args):
        pass

    def _serve(self, body):
        asked = urlsplit(self.path)
        try:
            with self._app.lock:
                status, told = 200, self._app.answer(self.command, asked.path, body, dict(parse_qsl(asked.query)))
        except Refused as refused:
            status, told = refused.status, refused.told
        except EOFError:  # a worker is dead, and the engine with it
            self.close_connection = True
            return
        text = told.encode() if isinstance(told, str) else json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
