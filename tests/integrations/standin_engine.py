"""Engines for tests: a server and two workers, real processes, that take a push as SGLang and vLLM take it."""

import contextlib
import json
from pathlib import Path

import torch
import torch.distributed as dist

from tests.integrations import standin_server, standin_worker
from tests.integrations.standin_layers import Shape, expected
from tests.replica.ranks import fresh

CONTRACTS = Path(__file__).parent / "contracts"


class StandIn:
    """An engine that serves the checkpoint of step 0."""

    def __init__(self, stack, engine, shape, size=2):
        contract = json.loads((CONTRACTS / f"{engine}.json").read_text())
        self.engine, self.shape, self._size = engine, shape, size
        self._store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        workers = []
        for rank in range(size):
            here, there = fresh.Pipe()
            args = (there, self._store.port, engine, shape.on(rank, size), contract)
            _start(stack, standin_worker.main, *args)
            there.close()
            workers.append(here)
        self._pipe, there = fresh.Pipe()
        _start(stack, standin_server.main, there, engine, contract, workers)
        there.close()
        for worker in workers:
            worker.close()
        self.url = f"http://127.0.0.1:{self._pipe.recv()}"

    def do(self, name, *args, rank=None):
        """Have all workers do something, or one of them; gives what each returned."""
        return self._ask("workers", (name, args, rank))

    def state(self, name, value=None):
        """Something of the server's state; set to a value if one is given."""
        return self._ask(name, value)

    def holds(self, state):
        """Whether every parameter of every worker is what a checkpoint says, bit for bit."""
        for rank, parameters in enumerate(self.do("parameters")):
            wanted = expected(state, self.shape.on(rank, self._size))
            found = {name: value.contiguous().view(torch.int16).numpy().tobytes() for name, value in wanted.items()}
            if parameters != found:
                return False
        return True

    def _ask(self, *asked):
        self._pipe.send(asked)
        assert self._pipe.poll(60), "the engine hangs"
        return self._pipe.recv()


@contextlib.contextmanager
def engine(name, shape=None):
    with contextlib.ExitStack() as stack:
        yield StandIn(stack, name, shape or Shape())


def _start(stack, target, *args):
    process = fresh.Process(target=target, args=args)
    process.start()
    stack.callback(lambda: (process.kill(), process.join()))
