"""A small OpenAI-compatible server that knows capitals, for routers to stand in front of."""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ANSWERS = {"France": "Paris", "Chile": "Santiago", "Kenya": "Nairobi", "Japan": "Tokyo"}


class Upstream(ThreadingHTTPServer):
    """Gives the letter of the right option the probability ``sure`` and shares the rest; counts requests.

    ``behave`` may answer a body in its own way: a status and a body, or ``None`` to leave it.
    """

    daemon_threads = True

    def __init__(
        self, sure: float, *, logprobs: bool = True, behave: Callable[[dict[str, Any]], Any] | None = None
    ) -> None:
        self.sure, self.logprobs, self.behave = sure, logprobs, behave
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


@contextmanager
def upstream(sure: float, **options: Any) -> Iterator[Upstream]:
    server = Upstream(sure, **options)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Upstream

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        self.server.keys.append(self.headers.get("Authorization"))
        status, found = (self.server.behave and self.server.behave(body)) or (200, self.reply(body))
        data = found.encode() if isinstance(found, str) else json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def reply(self, body: dict[str, Any]) -> dict[str, Any]:
        text = body["messages"][-1]["content"]
        right = next((city for country, city in ANSWERS.items() if country in text), "nobody knows")
        listed = re.findall(r"^([A-Z])\. (.*)$", text, flags=re.MULTILINE)
        if not listed:
            return _choices([right] * body.get("n", 1))
        shares = {letter: (1 - self.server.sure) / max(1, len(listed) - 1) for letter, _ in listed}
        for letter, option in listed:
            if option == right:
                shares[letter] = self.server.sure
        if "JSON list" in text:
            return _choices([json.dumps(list(shares.values()))])
        best = max(shares, key=lambda letter: shares[letter])
        choice = {"message": {"role": "assistant", "content": best}}
        if self.server.logprobs:
            top = [{"token": letter, "logprob": math.log(max(share, 1e-9))} for letter, share in shares.items()]
            choice["logprobs"] = {"content": [{"token": best, "logprob": top[0]["logprob"], "top_logprobs": top}]}
        return {"choices": [choice], "usage": {"total_tokens": 40}}


def _choices(texts: list[str]) -> dict[str, Any]:
    choices = [{"message": {"role": "assistant", "content": text}} for text in texts]
    return {"choices": choices, "usage": {"total_tokens": 10 * len(texts)}}
