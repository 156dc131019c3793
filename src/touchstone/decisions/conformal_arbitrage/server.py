"""The router as a small HTTP service that speaks the OpenAI protocol, in front of the two parties.

``POST /v1/chat/completions`` takes the usual body; ``"options"``, a list of texts, makes it a choice among them. The
reply is the usual one, with how it was decided under ``"arbitrage"``. ``POST /v1/feedback`` takes the id of a reply and
what it was worth; ``GET /stats`` gives counts, costs and the alarm, ``GET /health`` says that it is up,
``GET /v1/models`` its name.
"""

from __future__ import annotations

import hmac
import json
import math
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from touchstone.decisions.conformal_arbitrage.parties import Query, UnavailableError
from touchstone.decisions.conformal_arbitrage.router import Routed, Router, new_id
from touchstone.errors import InputError

__all__ = ["MODEL", "RouterServer"]

MODEL = "touchstone-router"
_MOST_BYTES = 4 * 1024 * 1024
# Sampling parameters that are handed on to the Primary for a query without options.
_HANDED_ON = (
    "temperature",
    "top_p",
    "max_tokens",
    "max_completion_tokens",
    "stop",
    "presence_penalty",
    "frequency_penalty",
)


class RouterServer(ThreadingHTTPServer):
    """One thread a request.

    Parameters
    ----------
    router : what answers.
    host, port : where to listen; port 0 takes a free one, see ``url``.
    key : if given, what clients must send as their API key.

    Raises
    ------
    InputError
        If the address cannot be listened on.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, router: Router, host: str = "127.0.0.1", port: int = 8080, *, key: str | None = None) -> None:
        self.router, self.key = router, key
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise InputError(f"address {host}:{port}: cannot be listened on ({error})") from None

    @property
    def url(self) -> str:
        """Base URL for clients."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}/v1"

    @contextmanager
    def running(self) -> Iterator[RouterServer]:
        """Serve in the background while the block runs."""
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            self.server_close()
            thread.join()


class _Refused(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RouterServer
    # Seconds after which a silent connection is closed.
    timeout = 120
    # Head and body leave together: apart, the second waits for the first to be acknowledged.
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._answered(self._get)

    def do_POST(self) -> None:
        self._answered(self._post)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are in the decision log, not on the terminal."""

    def _answered(self, work: Any) -> None:
        try:
            kind, body = work()
            self._send(200, kind, body)
        except _Refused as error:
            self._fail(error.status, str(error))
        except InputError as error:
            self._fail(400, str(error))
        except UnavailableError as error:
            self._fail(503, str(error))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        except Exception as error:
            # A bug: the client gets no details, the operator does.
            print(f"router: {type(error).__name__}: {error}", file=sys.stderr)
            self._fail(500, "internal error")

    def _get(self) -> tuple[str, bytes]:
        path = self.path.partition("?")[0]
        if path == "/health":
            return _json({"status": "ok"})
        self._authorised()
        if path == "/stats":
            return _json(self.server.router.stats())
        if path == "/v1/models":
            return _json({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "touchstone"}]})
        raise _Refused(404, f"no such path {path}")

    def _post(self) -> tuple[str, bytes]:
        data = self._body()
        self._authorised()
        path = self.path.partition("?")[0]
        if path == "/v1/chat/completions":
            return _completion(self.server.router, data)
        if path == "/v1/feedback":
            return _feedback(self.server.router, data)
        raise _Refused(404, f"no such path {path}")

    def _authorised(self) -> None:
        key = self.server.key
        sent = self.headers.get("Authorization", "")
        if key and not hmac.compare_digest(sent.encode(), f"Bearer {key}".encode()):
            raise _Refused(401, "wrong API key")

    def _body(self) -> dict[str, Any]:
        # A page in a browser cannot send this type to another site without asking first, and it is not let.
        if self.headers.get_content_type() != "application/json":
            self.close_connection = True
            raise _Refused(415, "expected Content-Type: application/json")
        try:
            length = int(self.headers.get("Content-Length", ""))
        except ValueError:
            self.close_connection = True
            raise _Refused(411, "expected a Content-Length") from None
        if not 0 <= length <= _MOST_BYTES:
            self.close_connection = True
            raise _Refused(413, f"the body is larger than {_MOST_BYTES} bytes")
        try:
            data = json.loads(self.rfile.read(length))
        except ValueError:
            raise _Refused(400, "the body is not JSON") from None
        if not isinstance(data, dict):
            raise _Refused(400, "expected a JSON object")
        return data

    def _fail(self, status: int, message: str) -> None:
        kind = "invalid_request_error" if status < 500 else "server_error"
        error = {"message": message, "type": kind, "param": None, "code": None}
        self._send(status, *_json({"error": error}))

    def _send(self, status: int, kind: str, body: bytes) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True


def _completion(router: Router, data: dict[str, Any]) -> tuple[str, bytes]:
    messages = data.get("messages")
    if not isinstance(messages, list) or not messages or not all(_is_message(message) for message in messages):
        raise _Refused(400, "messages: expected a list of objects with 'role' and the text 'content'")
    if data.get("n") not in (None, 1):
        raise _Refused(400, "n: a router gives one reply")
    options = data.get("options")
    name = data.get("query_id") or new_id()
    if not isinstance(name, str):
        raise _Refused(400, "query_id: expected a text")
    if options is None:
        routed = router.reply(name, messages, {key: data[key] for key in _HANDED_ON if data.get(key) is not None})
    else:
        if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
            raise _Refused(400, "options: expected a list of texts")
        routed = router.route([Query(name, messages, tuple(options))])[0]
    if not data.get("stream"):
        return _json(_whole(router, routed))
    return "text/event-stream", b"".join(b"data: " + part + b"\n\n" for part in _pieces(router, routed, data))


def _is_message(message: Any) -> bool:
    return (
        isinstance(message, dict) and isinstance(message.get("role"), str) and isinstance(message.get("content"), str)
    )


def _decided(router: Router, routed: Routed) -> dict[str, Any]:
    return {
        "deferred": routed.deferred,
        "choice": routed.choice,
        "options": list(routed.query.options),
        "candidates": list(routed.candidates),
        "primary": list(routed.primary),
        "guardian": None if routed.guardian is None else list(routed.guardian),
        "alpha": router.arbitrage.alpha,
        "lam": "inf" if math.isinf(router.arbitrage.lam_) else router.arbitrage.lam_,
        "cost": routed.cost,
        "missing": routed.missing,
        "shadow": router.shadow,
    }


def _whole(router: Router, routed: Routed) -> dict[str, Any]:
    total = int(routed.cost.get("tokens", 0))
    return {
        "id": routed.query.id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": routed.answer},
                "finish_reason": "stop",
                "logprobs": None,
            }
        ],
        # Of both parties together; how many of them were read and written is not told apart.
        "usage": {"prompt_tokens": 0, "completion_tokens": total, "total_tokens": total},
        "arbitrage": _decided(router, routed),
    }


def _pieces(router: Router, routed: Routed, data: dict[str, Any]) -> Iterator[bytes]:
    """The reply as a stream: it is decided as a whole, so it comes as one piece."""
    head = {"id": routed.query.id, "object": "chat.completion.chunk", "created": int(time.time()), "model": MODEL}
    delta = {"role": "assistant", "content": routed.answer}
    first = {"choices": [{"index": 0, "delta": delta, "finish_reason": None}], "arbitrage": _decided(router, routed)}
    last: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    for part in (first, last):
        yield json.dumps(head | part).encode()
    if (data.get("stream_options") or {}).get("include_usage"):
        yield json.dumps(head | {"choices": [], "usage": _whole(router, routed)["usage"]}).encode()
    yield b"[DONE]"


def _feedback(router: Router, data: dict[str, Any]) -> tuple[str, bytes]:
    name = data.get("id")
    if not isinstance(name, str):
        raise _Refused(400, "id: expected the id of a reply")
    label, values, loss = data.get("label"), data.get("guard_values"), data.get("loss")
    if label is not None and (not isinstance(label, int) or isinstance(label, bool)):
        raise _Refused(400, "label: expected a whole number")
    if values is not None and not (isinstance(values, list) and all(isinstance(x, int | float) for x in values)):
        raise _Refused(400, "guard_values: expected a list of numbers")
    if loss is not None and not isinstance(loss, int | float):
        raise _Refused(400, "loss: expected a number")
    lost = router.feedback(name, label=label, guard_values=values, loss=loss)
    return _json({"id": name, "loss": lost, "alarm": router.stats()["alarm"]})


def _json(value: Any) -> tuple[str, bytes]:
    return "application/json", json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
