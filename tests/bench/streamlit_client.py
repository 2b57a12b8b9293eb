"""A reader of the console without a browser: one Streamlit session over its websocket.

Speaks the protocol of the installed streamlit package as its browser client does: one run of the
script when the page opens, then a rerun of each timed fragment at its interval. A refresh is
all fragments that are due together; it took from the first request until the last of them was
reported finished.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import aiohttp
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from dashboard.session import COOKIE

OPEN_S = 60.0
_STREAM = "/_stcore/stream"
_FAILED = (ForwardMsg.FINISHED_WITH_COMPILE_ERROR,)


@dataclass(slots=True)
class Seen:
    """What one reader was given."""

    opened_s: float = 0.0
    refreshes_s: list[float] = field(default_factory=list)
    late: int = 0
    """Refreshes that were due while the one before was not done: the browser's are merged."""
    lost: int = 0
    """Refreshes of which a part was never reported done: Streamlit forgets a run that ends just as
    the next is asked for. The next refresh makes up for it; counted with the time until then."""
    payload_bytes: int = 0
    """Of all refreshes."""
    errors: list[str] = field(default_factory=list)


class Reader:
    """One open page of the console at `url`; `page` is its path ("" for the overview).

    token: of who is signed in; empty for nobody.
    """

    def __init__(
        self, http: aiohttp.ClientSession, url: str, page: str, query: str = "", *, token: str = ""
    ) -> None:
        self._headers = {"cookie": f"{COOKIE}={token}"} if token else {}
        self._http, self._url, self._page, self._query = http, url, page, query
        self._script = ""
        self._fragments: dict[str, float] = {}
        self._ran: set[str] = set()
        """Fragments that something was drawn for in the refresh at hand."""
        self.seen = Seen()

    async def read(self, *, delay_s: float, until: float, every_s: float) -> Seen:
        """Open the page after a delay, then follow it until the monotonic time `until`."""
        await asyncio.sleep(delay_s)
        address = self._url.replace("http", "ws", 1) + _STREAM
        async with self._http.ws_connect(
            address, protocols=("streamlit",), max_msg_size=0, compress=0, headers=self._headers
        ) as socket:
            began = time.perf_counter()
            await self._ask(socket, None)
            await asyncio.wait_for(self._finished(socket, {""}), OPEN_S)
            self.seen.opened_s = time.perf_counter() - began
            self.seen.payload_bytes = 0
            await self._follow(socket, until, every_s)
        return self.seen

    async def _follow(
        self, socket: aiohttp.ClientWebSocketResponse, until: float, every_s: float
    ) -> None:
        due = time.monotonic() + every_s
        while due < until:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            began = time.perf_counter()
            asked = set(self._fragments)
            self._ran.clear()
            for fragment in asked:
                await self._ask(socket, fragment)
            wait_s = max(every_s, due + every_s - time.monotonic())
            try:
                await asyncio.wait_for(self._finished(socket, asked), wait_s)
            except TimeoutError:
                self.seen.lost += 1
            self.seen.refreshes_s.append(time.perf_counter() - began)
            due += every_s
            while due < time.monotonic():
                self.seen.late += 1
                due += every_s

    async def _ask(self, socket: aiohttp.ClientWebSocketResponse, fragment: str | None) -> None:
        message = BackMsg()
        state = message.rerun_script
        state.query_string, state.page_script_hash = self._query, self._script
        state.page_name = self._page if not self._script else ""
        if fragment is not None:
            state.fragment_id, state.is_auto_rerun = fragment, True
        context = state.context_info
        context.timezone, context.locale, context.color_scheme = "UTC", "en-GB", "light"
        context.url = f"{self._url}/{self._page}"
        await socket.send_bytes(message.SerializeToString())

    async def _finished(self, socket: aiohttp.ClientWebSocketResponse, wanted: set[str]) -> None:
        """Until each of the fragments (the whole script: "") was run to its end."""
        left = set(wanted)
        while left:
            raw = await socket.receive()
            if raw.type is not aiohttp.WSMsgType.BINARY:
                raise ConnectionError(f"the console closed the session: {raw.type.name}")
            self.seen.payload_bytes += len(raw.data)
            left -= self._take(ForwardMsg.FromString(raw.data))
            left &= set(self._fragments) | {""}

    def _take(self, message: ForwardMsg) -> set[str]:
        """Note what a message says; the fragments that are done by it."""
        kind = message.WhichOneof("type")
        if kind == "new_session":
            self._script = message.new_session.page_script_hash
        elif kind == "navigation":
            self._script = message.navigation.page_script_hash
        elif kind == "auto_rerun":
            self._fragments[message.auto_rerun.fragment_id] = message.auto_rerun.interval
        elif kind == "stop_auto_rerun":
            for gone in message.stop_auto_rerun.fragment_ids:
                self._fragments.pop(gone, None)
        elif kind == "delta":
            self._ran.add(message.delta.fragment_id)
            if message.delta.new_element.WhichOneof("type") == "exception":
                self.seen.errors.append(message.delta.new_element.exception.message)
        elif kind == "script_finished":
            if message.script_finished in _FAILED:
                self.seen.errors.append("the script could not be compiled")
            return set(self._ran)
        return set()
