"""A wire between a process and its database that a test can cut."""

from __future__ import annotations

import selectors
import socket
import threading
import time


class Cable:
    """A TCP proxy that can stop passing anything on, without closing."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.cut = threading.Event()
        self._closed = threading.Event()
        self._sockets: list[socket.socket] = [self._listener]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._listener, selectors.EVENT_READ, None)
        while not self._closed.is_set():
            for key, _ in selector.select(0.05):
                if key.fileobj.fileno() < 0:
                    continue
                if self.cut.is_set():
                    time.sleep(0.05)
                elif key.data is None:
                    self._connect(selector)
                elif not self._pass_on(key.fileobj, key.data):
                    for end in (key.fileobj, key.data):
                        if end.fileno() >= 0:
                            selector.unregister(end)
                            end.close()
        selector.close()

    def _pass_on(self, near: socket.socket, far: socket.socket) -> bool:
        try:
            data = near.recv(65_536)
            far.sendall(data)
        except OSError:
            return False
        return bool(data)

    def _connect(self, selector: selectors.BaseSelector) -> None:
        near, _ = self._listener.accept()
        far = socket.create_connection(("127.0.0.1", self._to))
        self._sockets += [near, far]
        selector.register(near, selectors.EVENT_READ, far)
        selector.register(far, selectors.EVENT_READ, near)

    def close(self) -> None:
        self._closed.set()
        self._thread.join(10.0)
        for each in self._sockets:
            each.close()
