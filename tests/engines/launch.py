"""Start, kill and restart real engines on loopback; each one is a process group of its own."""

import json
import os
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "PYTHONWARNINGS": "ignore",
    "OMP_NUM_THREADS": "1",
}
VLLM_ENVIRONMENT = {
    # With the uni executor: two processes an engine instead of three.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_COLOR": "0",
}
# A plain Llama with native attention never calls SGLang's kernels, but their modules have to
# import; this module answers every name with an empty class.
KERNEL_STAND_IN = """
import importlib.machinery as machinery
import sys
import types


class Anything(type):
    def __getattr__(cls, name):
        if name[:2] == "__":
            raise AttributeError(name)
        return Anything(name, (), {})


class Hollow(types.ModuleType):
    __path__ = ()
    __version__ = "0"
    __getattr__ = Anything.__getattr__


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ("sgl_kernel", "torchvision"):
            return machinery.ModuleSpec(name, Finder, is_package=True)

    @staticmethod
    def create_module(spec):
        return Hollow(spec.name)

    @staticmethod
    def exec_module(module):
        pass


sys.meta_path.insert(0, Finder)
"""


def free_ports(count: int) -> list[int]:
    """Ports free now, below the range that outgoing connections draw from."""
    found: list[int] = []
    while len(found) < count:
        port = random.randint(18_000, 29_999)
        with socket.socket() as probe:
            if port not in found and probe.connect_ex(("127.0.0.1", port)) != 0:
                found.append(port)
    return found


class Engine:
    """One engine process: the same ports over all its restarts."""

    def __init__(
        self,
        python: Path,
        command: Sequence[str],
        environment: dict[str, str],
        *,
        port: int,
        log: Path,
        cwd: Path,
    ) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.log = log
        self._command = [str(python), *command]
        self._environment = {**os.environ, **OFFLINE, **environment}
        self._cwd = cwd
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._cwd,
                env=self._environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            tail = self.log.read_text(errors="replace")[-3000:]
            raise RuntimeError(f"engine on port {self.port} exited: {tail}")
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=3) as answer:
                return answer.status == 200
        except (OSError, urllib.error.URLError):
            return False

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every process of the engine."""
        assert self._process is not None
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            pass

    def kill(self) -> None:
        """SIGKILL, and wait until the server process is gone."""
        self.signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait(timeout=30)

    def stop(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            pass
        self.kill()


def wait_ready(engines: Sequence[Engine], *, within_s: float = 400.0) -> None:
    """Poll until all engines answer /health."""
    deadline = time.monotonic() + within_s
    waiting = list(engines)
    while waiting:
        waiting = [e for e in waiting if not e.ready()]
        if waiting and time.monotonic() > deadline:
            raise TimeoutError(f"{[str(e.log) for e in waiting]} not ready in {within_s} s")
        time.sleep(0.25)


@contextmanager
def running(engines: Iterable[Engine]) -> Iterator[None]:
    """All engines started and ready inside; stopped on the way out, whatever happened."""
    started = list(engines)
    try:
        for engine in started:
            engine.start()
        wait_ready(started)
        yield
    finally:
        for engine in started:
            engine.stop()


def vllm(
    python: Path,
    model: Path,
    logs: Path,
    *,
    name: str = "tiny",
    extra: Sequence[str] = (),
    environment: dict[str, str] | None = None,
) -> Engine:
    """A vLLM server with events, prefix caching and cached-token reports."""
    http, live, replay = free_ports(3)
    # The publisher binds only where the address holds a wildcard.
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{live}",
        "replay_endpoint": f"tcp://127.0.0.1:{replay}",
        "topic": f"kv@{http}",
    }
    command = [
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        model.name,
        "--served-model-name",
        name,
        "--host",
        "127.0.0.1",
        "--port",
        str(http),
        "--dtype",
        "float32",
        "--enforce-eager",
        "--distributed-executor-backend",
        "uni",
        "--block-size",
        "32",
        "--max-model-len",
        "32768",
        "--kv-cache-memory-bytes",
        "64M",
        "--enable-prefix-caching",
        "--enable-prompt-tokens-details",
        "--kv-events-config",
        json.dumps(events),
        *extra,
    ]
    return Engine(
        python,
        command,
        {**VLLM_ENVIRONMENT, **(environment or {})},
        port=http,
        log=logs / f"vllm-{http}.log",
        cwd=model.parent,
    )


def nixl_pair(python: Path, model: Path, logs: Path) -> tuple[Engine, Engine]:
    """A prefill and a decode vLLM that move KV blocks over TCP."""

    def one(role: str, side_channel: int) -> Engine:
        config = {"kv_connector": "NixlConnector", "kv_role": role, "kv_buffer_device": "cpu"}
        return vllm(
            python,
            model,
            logs,
            extra=("--kv-transfer-config", json.dumps(config)),
            environment={
                "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
                "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_channel),
                "UCX_TLS": "tcp,self,sm",
                "UCX_NET_DEVICES": "lo",
            },
        )

    ports = free_ports(2)
    return one("kv_producer", ports[0]), one("kv_consumer", ports[1])


def sglang(
    python: Path,
    model: Path,
    logs: Path,
    *,
    name: str = "tiny",
    page_size: int = 32,
    pool_tokens: int = 65536,
) -> Engine:
    """An SGLang server with events, metrics and cached-token reports."""
    http, live, replay = free_ports(3)
    events = {
        "publisher": "zmq",
        "topic": f"kv@{http}",
        "bind": True,
        "endpoint": f"tcp://127.0.0.1:{live}",
        "replay_endpoint": f"tcp://127.0.0.1:{replay}",
    }
    stand_in = logs / "stand_in"
    stand_in.mkdir(parents=True, exist_ok=True)
    (stand_in / "sitecustomize.py").write_text(KERNEL_STAND_IN)
    command = [
        "-m",
        "sglang.launch_server",
        "--model-path",
        model.name,
        "--served-model-name",
        name,
        "--host",
        "127.0.0.1",
        "--port",
        str(http),
        "--device",
        "cpu",
        "--attention-backend",
        "torch_native",
        "--disable-cuda-graph",
        "--disable-overlap-schedule",
        "--sleep-on-idle",
        "--mem-fraction-static",
        "0.4",
        "--max-total-tokens",
        str(pool_tokens),
        "--page-size",
        str(page_size),
        "--enable-metrics",
        "--enable-cache-report",
        "--kv-events-config",
        json.dumps(events),
    ]
    return Engine(
        python,
        command,
        {"SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": str(stand_in)},
        port=http,
        log=logs / f"sglang-{http}.log",
        cwd=model.parent,
    )
