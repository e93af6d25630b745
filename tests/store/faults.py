"""An HTTP proxy that loses, cuts and refuses what passes through it: a real network having a bad day.

proxy.fail("503", "reset")      the next two requests
proxy.fail_every(3, "503")      every third one, until told otherwise
"""

import http.client
import itertools
import socket
import struct
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

SLOW_DOWN = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"

DELAY = 0.5
"""Seconds that a slow answer takes."""


class FaultProxy:
    """Faults: 503 (answered at once), reset (request lost), lost (served, answer lost), cut (half an answer), slow."""

    def __init__(self, endpoint):
        self.target = urlsplit(endpoint).netloc
        self.requests = []  # method and path of each
        self.num_failed = 0
        self._planned = deque()
        self._recurring = (itertools.repeat(None), None)
        self._lock = threading.Lock()
        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.proxy = self
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def fail(self, *faults, method=None):
        """Plan a fault for each of the next requests, of one method if it is given."""
        with self._lock:
            self._planned.extend((fault, method) for fault in faults)

    def fail_every(self, nth, *faults, method=None):
        """Fail every nth request (of one method), taking turns among the faults."""
        turns = itertools.cycle([f for fault in faults for f in [None] * (nth - 1) + [fault]])
        with self._lock:
            self._recurring = (turns, method)

    def options(self, options):
        """The storage options of the server behind, for going through this proxy."""
        return options | {"client_kwargs": options["client_kwargs"] | {"endpoint_url": self.endpoint}}

    def next_fault(self, method, path):
        with self._lock:
            self.requests.append((method, path))
            if self._planned and self._planned[0][1] in (None, method):
                fault = self._planned.popleft()[0]
            else:
                turns, only = self._recurring
                fault = next(turns) if only in (None, method) else None
            self.num_failed += fault is not None
            return fault


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # a client that gave up on us is part of the game


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_any(self):
        proxy = self.server.proxy
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = proxy.next_fault(self.command, self.path)
        if fault == "503":
            self.answer(503, [("Content-Type", "application/xml")], SLOW_DOWN)
        elif fault == "reset":
            self.reset()
        else:
            if fault == "slow":
                time.sleep(DELAY)
            answer = self.forward(proxy.target, body)
            if fault == "lost":
                self.reset()
            else:
                self.answer(*answer, cut=fault == "cut")

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

    def forward(self, target, body):
        connection = http.client.HTTPConnection(target, timeout=30)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("expect", "connection"):
                    connection.putheader(name, value)
            connection.endheaders(body)
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            connection.close()

    def answer(self, status, headers, content, cut=False):
        self.send_response_only(status)
        length = None
        for name, value in headers:
            if name.lower() == "content-length":
                length = value
            elif name.lower() not in ("transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", length if self.command == "HEAD" and length else str(len(content)))
        self.end_headers()
        if cut:
            self.wfile.write(content[: len(content) // 2])
            self.reset()
        elif self.command != "HEAD":
            self.wfile.write(content)

    def reset(self):
        self.wfile.flush()
        # Linger for no time: close with RST in place of FIN.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def log_message(self, *_):
        pass
