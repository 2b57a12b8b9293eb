"""Child processes: started with a log, watched, and none left behind."""

import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from core.errors import Conflict, EngineTimeout, EngineUnreachable
from core.launcher import Processes, answers, require_free, wait_until

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('up', flush=True); time.sleep(600)",
]


def until(check, what="it", seconds=20.0):
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.01)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_children_write_to_their_logs_and_end_with_the_block(tmp_path):
    with Processes(tmp_path / "logs") as processes:
        children = [processes.start(name, SLEEP) for name in ("a", "b")]
        for child in children:
            until(lambda c=child: "up" in c.tail())
            assert child.log == tmp_path / "logs" / f"{child.name}.log"
        assert processes.dead() == []
    assert not any(alive(c.process.pid) for c in children)
    assert processes.children == []


def test_children_end_when_the_block_breaks(tmp_path):
    with pytest.raises(RuntimeError), Processes(tmp_path) as processes:
        child = processes.start("a", SLEEP)
        raise RuntimeError
    assert child.process.poll() is not None


def test_the_last_started_is_stopped_first(tmp_path):
    order = tmp_path / "order"
    script = (
        "import signal, sys, time\n"
        f"def end(*_): open({str(order)!r}, 'a').write(sys.argv[1]); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end); print('up', flush=True); time.sleep(600)\n"
    )
    with Processes(tmp_path) as processes:
        for name in "abc":
            child = processes.start(name, [sys.executable, "-c", script, name])
            until(lambda c=child: "up" in c.tail())
    assert order.read_text() == "cba"


def test_who_ignores_the_signal_is_killed_with_its_own_children(tmp_path, monkeypatch):
    monkeypatch.setattr("core.launcher._STOP_S", 0.3)
    inner = "import subprocess, sys; p = subprocess.Popen(sys.argv[1:]); print(p.pid, flush=True); p.wait()"  # noqa: E501
    script = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {inner}"
    with Processes(tmp_path) as processes:
        child = processes.start("a", [sys.executable, "-c", script, *STUBBORN])
        until(lambda: "up" in child.tail())
        grandchild = int(child.tail().split()[0])
        assert alive(grandchild)
    assert child.process.returncode == -signal.SIGKILL
    until(lambda: not alive(grandchild) or _is_zombie(grandchild), "the grandchild's end")


def _is_zombie(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        return stat.rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.skipif(sys.platform != "linux", reason="the death signal is Linux's")
def test_children_die_with_a_parent_that_was_killed(tmp_path):
    script = (
        "import pathlib, sys, time\n"
        "from core.launcher import Processes\n"
        "with Processes(pathlib.Path(sys.argv[1])) as p:\n"
        "    print(p.start('a', sys.argv[2:]).process.pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), *SLEEP], stdout=subprocess.PIPE, text=True
    )
    try:
        child = int(parent.stdout.readline())
        until(lambda: "up" in (tmp_path / "a.log").read_text())
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    until(lambda: not alive(child) or _is_zombie(child), "the child's end")


def test_a_child_gets_the_environment_it_was_given(tmp_path):
    with Processes(tmp_path) as processes:
        show = [sys.executable, "-c", "import os; print(os.environ['GIVEN'], os.environ['HOME'])"]
        child = processes.start("a", show, env={"GIVEN": "x"})
        child.process.wait(20)
        assert child.tail().split() == ["x", os.environ["HOME"]]
        assert processes.dead() == [child]


def test_the_tail_of_a_log_is_its_last_lines(tmp_path):
    with Processes(tmp_path) as processes:
        child = processes.start("a", [sys.executable, "-c", "print(*range(100), sep='\\n')"])
        child.process.wait(20)
    assert child.tail(3) == "97\n98\n99"
    child.log.unlink()
    assert child.tail() == ""


def test_waiting_ends_when_ready_or_says_why_not(tmp_path):
    with Processes(tmp_path) as processes:
        child = processes.start("a", SLEEP)
        wait_until(lambda: "up" in child.tail(), child, timeout_s=20.0, what="sign of life")
        with pytest.raises(EngineTimeout, match=r"a: no answer within 0\.1 s"):
            wait_until(lambda: False, child, timeout_s=0.1, what="answer")
        broken = processes.start("b", [sys.executable, "-c", "print('oh no'); exit(3)"])
        with pytest.raises(
            EngineUnreachable, match=r"b ended with code 3 before answer[\s\S]*oh no"
        ):
            wait_until(lambda: False, broken, timeout_s=20.0, what="answer")


def test_an_address_answers_or_not():
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/ok" else 503)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert answers(f"{url}/ok")
        assert not answers(f"{url}/other")
        server.shutdown()
    assert not answers(url)


def test_a_port_in_use_names_the_setting():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Conflict, match="CONDUCTOR_SERVER__PORT") as caught:
            require_free("127.0.0.1", port, what="server")
        assert caught.value.field == "server.port"
    require_free("127.0.0.1", port, what="server")
    require_free("127.0.0.1", 0, what="server")


def test_a_signal_that_arrives_while_waiting_ends_the_wait() -> None:
    code = (
        "import os, signal, threading, time\n"
        "from core.launcher import StopSignal\n"
        "stop = StopSignal()\n"
        "stop.listen(signal.SIGTERM)\n"
        "def send():\n"
        "    for _ in range(200): os.kill(os.getpid(), signal.SIGTERM)\n"
        "threading.Timer(0.2, send).start()\n"
        "while not stop.wait(0.01): pass\n"
        "assert stop.is_set() and stop.wait(60)\n"
        "print('ended')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout == "ended\n", done.stderr
