"""A model behind an OpenAI-compatible server as Primary or Guardian; needs nothing but the standard library."""

from __future__ import annotations

import json
import math
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from touchstone.decisions.conformal_arbitrage.parties import Answer, Messages, Query, UnavailableError
from touchstone.errors import InputError

__all__ = ["ASKS", "EndpointParty"]

Ask = Literal["letter", "scores"]
ASKS: tuple[Ask, ...] = ("letter", "scores")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ENDS = {
    "letter": "Answer with the letter of the best option and nothing else.",
    "scores": "Rate each option from 0 to 1 by how good it is. Answer with a JSON list of {n} numbers in the order of "
    "the options and nothing else.",
}
# Statuses that may pass.
_AGAIN = (408, 409, 429, 500, 502, 503, 504)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


class EndpointParty:
    """A model served at ``url`` under the name ``model``.

    Parameters
    ----------
    url : such as ``"http://localhost:8000/v1"``.
    model : name that the server knows it by.
    ask : ``"letter"`` asks which option is best; scores are the probabilities of the letters where the server gives
        log-probabilities, else 1 for the letter it wrote. ``"scores"`` asks for a number for each option; such numbers
        are heavily tied, see ``distinct_gaps_``.
    key_variable : environment variable with the key; without it none is sent.
    timeout : seconds to wait for one reply.
    retries : how often a request is repeated after a failure that may pass.
    requests : most requests under way at once.

    Raises
    ------
    InputError
        If the URL is none, the model has no name, or ``ask`` is unknown.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        ask: str = "letter",
        key_variable: str = "OPENAI_API_KEY",
        timeout: float = 60.0,
        retries: int = 2,
        requests: int = 8,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise InputError(f"endpoint {url!r}: expected a URL such as http://localhost:8000/v1")
        if not model:
            raise InputError(f"endpoint {url!r}: expected the model's name after '#', as in {url}#my-model")
        if ask not in ASKS:
            raise InputError(f"ask {ask!r}: expected one of {', '.join(ASKS)}")
        self.url, self.model = url.rstrip("/"), model
        self.how: str = ask
        self.name = f"{model} at {self.url}"
        self.timeout, self.retries, self.requests = timeout, retries, requests
        self._key = os.environ.get(key_variable)

    def score(self, queries: Sequence[Query]) -> list[Answer]:
        """Scores of each query's options.

        Raises
        ------
        UnavailableError
            If the server cannot be reached, answers with an error, or with what is no answer.
        InputError
            If a query has more options than the alphabet letters.
        """
        if len(queries) == 1:
            return [self._one(queries[0])]
        with ThreadPoolExecutor(self.requests) as pool:
            return list(pool.map(self._one, queries))

    def sample(self, prompt: Messages, count: int, options: dict[str, Any]) -> tuple[list[str], int]:
        """``count`` replies to a conversation, and the tokens that they took; ``options`` go to the server."""
        texts: list[str] = []
        tokens = 0
        while len(texts) < count:
            # Servers that know only one reply a request give one; they are asked again.
            body = self._body(prompt) | options | {"n": count - len(texts)}
            reply = self.post("/chat/completions", body)
            texts += [_content(choice) for choice in _choices(reply, self.name)]
            tokens += _tokens(reply)
        return texts[:count], tokens

    def _one(self, query: Query) -> Answer:
        count = len(query.options)
        if count > len(_LETTERS):
            raise InputError(f"query {query.id!r}: {count} options; a served model can be asked about {len(_LETTERS)}")
        listed = "\n".join(f"{letter}. {option}" for letter, option in zip(_LETTERS, query.options, strict=False))
        question = f"Options:\n{listed}\n\n{_ENDS[self.how].format(n=count)}"
        body = self._body(query.prompt, question) | {"temperature": 0}
        if self.how == "letter":
            reply = self.post("/chat/completions", body | {"max_tokens": 4, "logprobs": True, "top_logprobs": 20})
            scores = _letters(_choices(reply, self.name)[0], count)
        else:
            reply = self.post("/chat/completions", body | {"max_tokens": 16 * count + 16})
            numbers = [float(x) for x in _NUMBER.findall(_content(_choices(reply, self.name)[0]))]
            scores = numbers if len(numbers) == count else None
        if scores is None:
            said = _content(_choices(reply, self.name)[0])[:60]
            raise UnavailableError(f"{self.name}: no answer to query {query.id!r} in {said!r}")
        return Answer(tuple(scores), _tokens(reply))

    def _body(self, prompt: Messages, question: str = "") -> dict[str, Any]:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
        if question:
            if messages and messages[-1].get("role") == "user":
                messages[-1]["content"] = f"{messages[-1]['content']}\n\n{question}"
            else:
                messages.append({"role": "user", "content": question})
        return {"model": self.model, "messages": messages}

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The server's answer to a JSON body.

        Raises
        ------
        UnavailableError
            If there is none, after the retries.
        """
        data = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        for attempt in range(self.retries + 1):
            if attempt:
                time.sleep(0.25 * 2**attempt)
            last = attempt == self.retries
            request = urllib.request.Request(self.url + path, data, headers)
            try:
                with urllib.request.urlopen(request, timeout=self.timeout) as response:
                    found = json.loads(response.read())
                if isinstance(found, dict):
                    return found
                raise UnavailableError(f"{self.name}: answered what is no JSON object")
            except urllib.error.HTTPError as error:
                detail = error.read(300).decode("utf-8", "replace").strip().splitlines()
                if last or error.code not in _AGAIN:
                    said = detail[0][:200] if detail else ""
                    raise UnavailableError(f"{self.name}: answered {error.code} {said}".rstrip()) from None
            except (OSError, ValueError) as error:
                if last:
                    raise UnavailableError(f"{self.name}: cannot be reached ({error})") from None
        raise AssertionError


def _choices(reply: dict[str, Any], name: str) -> list[dict[str, Any]]:
    choices = reply.get("choices")
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, dict) for choice in choices):
        raise UnavailableError(f"{name}: answered without choices")
    return choices


def _content(choice: dict[str, Any]) -> str:
    return str((choice.get("message") or {}).get("content") or "")


def _tokens(reply: dict[str, Any]) -> int:
    found = (reply.get("usage") or {}).get("total_tokens")
    return found if isinstance(found, int) else 0


def _letters(choice: dict[str, Any], count: int) -> list[float] | None:
    """Probabilities of the letters at the first token that is one, else by the letter that was written."""
    wanted = _LETTERS[:count]
    for token in (choice.get("logprobs") or {}).get("content") or []:
        mass = dict.fromkeys(wanted, 0.0)
        for top in token.get("top_logprobs") or []:
            letter = str(top.get("token")).strip(" .():*\n").upper()
            if letter in mass:
                mass[letter] += math.exp(min(0.0, float(top["logprob"])))
        total = sum(mass.values())
        if total > 0 and str(token.get("token")).strip(" .():*\n").upper() in mass:
            return [value / total for value in mass.values()]
    written = re.search(r"\b([A-Z])\b", _content(choice).upper())
    if written is None or written[1] not in wanted:
        return None
    return [float(letter == written[1]) for letter in wanted]
