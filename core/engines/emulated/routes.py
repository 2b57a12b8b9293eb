"""Which request goes where."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from core.engines.emulated import api, pages, tokenizer
from core.engines.emulated.engine import Engine
from core.engines.emulated.http import Connection, HttpRequest, json_response, response
from core.engines.emulated.pipeline import PATH as PIPELINE_PATH
from core.engines.emulated.transfer import PATH as KV_PATH
from core.engines.emulated.transfer import encode_fingerprints

log = logging.getLogger(__name__)
Route = Callable[[HttpRequest], bytes]
FAULTS_PATH = "/emulated/faults"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Router:
    """Dispatches requests of one engine. Generation answers later; all else at once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._routes: dict[str, dict[str, Route]] = {
            "/health": {"GET": lambda _: response(200)},
            "/version": {"GET": lambda _: json_response(200, {"version": api.VERSION})},
            "/v1/models": {"GET": lambda _: json_response(200, pages.models(engine))},
            "/load": {"GET": lambda _: json_response(200, {"server_load": len(engine.live)})},
            "/kv_event_sources": {"GET": lambda _: json_response(200, pages.event_sources(engine))},
            "/metrics": {"GET": self._metrics},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/reset_prefix_cache": {"POST": self._reset},
            "/abort_requests": {"POST": self._abort},
            "/emulated/state": {"GET": lambda _: json_response(200, pages.state(engine))},
            FAULTS_PATH: {"GET": self._show_faults, "POST": self._set_faults},
        }
        self._generation = {
            "/v1/completions": False,
            "/v1/chat/completions": True,
            PIPELINE_PATH: False,
        }

    def handle(self, connection: Connection, request: HttpRequest) -> None:
        """Answer one request, now or through the engine."""
        path = request.path
        if self._engine.dice.faults.hang == "server" and path != FAULTS_PATH:
            return
        try:
            chat = self._generation.get(path)
            if chat is not None and request.method == "POST":
                generation = api.parse_generation(self._engine.config, request, chat=chat)
                self._engine.submit(connection, generation)
                return
            answer = self._answer(request)
        except api.ApiError as error:
            answer = json_response(error.status, error.body())
        except Exception:
            # A request must never take the engine down or stay unanswered.
            log.exception("%s %s failed", request.method, path)
            failure = api.internal_error()
            answer = json_response(failure.status, failure.body())
        connection.finish(answer)

    def _answer(self, request: HttpRequest) -> bytes:
        if request.path.startswith(PIPELINE_PATH + "/") and request.method == "POST":
            return self._handed(request)
        if request.path.startswith(KV_PATH) and request.method == "POST":
            return self._fetch(request)
        methods = self._routes.get(request.path)
        if methods is None and request.path not in self._generation:
            return json_response(404, {"detail": "Not Found"})
        handler = (methods or {}).get(request.method)
        if handler is None:
            allow = {"allow": ", ".join(methods or ("POST",))}
            return json_response(405, {"detail": "Method Not Allowed"}, headers=allow)
        return handler(request)

    def _metrics(self, _: HttpRequest) -> bytes:
        return response(200, pages.metrics(self._engine).encode(), content_type=METRICS_TYPE)

    def _tokenize(self, request: HttpRequest) -> bytes:
        body = api.json_body(request)
        api.check_model(self._engine.config, body)
        tokens = api.chat_tokens(body) if "messages" in body else api.prompt_tokens(body)
        strings = [tokenizer.token_text(t) for t in tokens]
        return json_response(
            200,
            {
                "count": len(tokens),
                "max_model_len": self._engine.config.context_max,
                "tokens": tokens,
                "token_strs": strings if body.get("return_token_strs") else None,
            },
        )

    def _detokenize(self, request: HttpRequest) -> bytes:
        body = api.json_body(request)
        api.check_model(self._engine.config, body)
        tokens = body.get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(t, int) for t in tokens):
            raise api.malformed("list_type", "body.tokens", "Input should be a list of ids", tokens)
        return json_response(200, {"prompt": tokenizer.decode(tokens)})

    def _reset(self, _: HttpRequest) -> bytes:
        self._engine.scheduler.pool.reset()
        return response(200)

    def _abort(self, request: HttpRequest) -> bytes:
        ids: Any = api.json_body(request).get("request_ids")
        if not isinstance(ids, list) or not all(isinstance(i, str) for i in ids):
            raise api.malformed(
                "list_type", "body.request_ids", "Input should be a list of ids", ids
            )
        return json_response(200, {"status": "aborted", "aborted": self._engine.abort(ids)})

    def _handed(self, request: HttpRequest) -> bytes:
        body = api.json_body(request)
        told = [body.get(name) for name in ("stage", "chunk", "fingerprint")]
        if not all(isinstance(value, int) and value >= 0 for value in told):
            raise api.invalid("a hand-over tells stage, chunk and fingerprint", "chunk")
        name = request.path.removeprefix(PIPELINE_PATH + "/")
        if not self._engine.chunk_handed(name, *told):  # type: ignore[arg-type]
            return json_response(409, {"detail": "not the chunk that is waited for"})
        return json_response(200, {})

    def _fetch(self, request: HttpRequest) -> bytes:
        body = api.json_body(request)
        contents = self._engine.serve_fetch(
            request.path.removeprefix(KV_PATH), str(body.get("engine_id")), body.get("blocks") or []
        )
        if contents is None:
            return json_response(409, {"detail": "another engine"})
        return response(200, encode_fingerprints(contents), content_type="application/octet-stream")

    def _show_faults(self, _: HttpRequest) -> bytes:
        return json_response(200, self._engine.dice.faults.as_dict())

    def _set_faults(self, request: HttpRequest) -> bytes:
        try:
            faults = self._engine.dice.faults.changed(api.json_body(request))
        except ValueError as error:
            raise api.invalid(str(error)) from error
        self._engine.set_faults(faults)
        return self._show_faults(request)
