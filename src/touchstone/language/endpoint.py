"""A language model behind an OpenAI-compatible server: the text half of the protocol, without activations."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, Protocol

from touchstone.errors import InputError, MissingExtraError
from touchstone.language.prompt import Prompt, as_messages

__all__ = ["RemoteModel", "TextModel"]


class TextModel(Protocol):
    """What a check that only reads text asks of a model; :class:`LanguageModel` and :class:`RemoteModel` have it."""

    source: str

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        system: str | None = None,
        chat: bool | None = None,
        max_new_tokens: int = 64,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        stream: Callable[[int, str], None] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[str]: ...


class RemoteModel:
    """A model served at ``base_url`` under the name ``model``.

    Parameters
    ----------
    base_url : such as ``"http://localhost:8000/v1"``.
    model : name that the server knows it by.
    api_key : key; ``None`` takes ``$OPENAI_API_KEY``, and servers that need none get a placeholder.
    timeout : seconds to wait for one reply.
    retries : how often a request is repeated after a failure that may pass.
    requests : most requests under way at once.

    Raises
    ------
    MissingExtraError
        If the ``openai`` client is not installed.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        timeout: float = 120.0,
        retries: int = 2,
        requests: int = 8,
    ) -> None:
        try:
            import openai
        except ImportError:
            raise MissingExtraError("A remote endpoint", "remote") from None
        if not base_url.startswith(("http://", "https://")):
            raise InputError(f"endpoint {base_url!r}: expected a URL such as http://localhost:8000/v1")
        self.base_url = base_url
        self.model = model
        self.source = f"{model} at {base_url}"
        self.requests = requests
        self._client = openai.OpenAI(
            base_url=base_url,
            api_key=api_key or os.environ.get("OPENAI_API_KEY") or "none",
            timeout=timeout,
            max_retries=retries,
        )

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        system: str | None = None,
        chat: bool | None = None,
        max_new_tokens: int = 64,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        stream: Callable[[int, str], None] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[str]:
        """Replies to ``prompts``, in their order; see :meth:`LanguageModel.generate`.

        ``chat=False`` uses the completions endpoint, otherwise chat completions. Whether sampled replies repeat
        for a ``seed`` is up to the server. With ``stream``, the callback is called from several threads.

        Raises
        ------
        InputError
            If the server cannot be reached or answers with an error.
        """
        if isinstance(prompts, str):
            raise InputError("prompts: expected a list of prompts, got a single string")
        options = {"max_tokens": max_new_tokens, "temperature": temperature, "top_p": top_p, "seed": seed}

        def one(i: int) -> str:
            show = None if stream is None else lambda piece: stream(i, piece)
            if chat is False:
                return self._complete(prompts[i], system, options, show)
            return self._chat(prompts[i], system, options, show)

        replies = [""] * len(prompts)
        with ThreadPoolExecutor(self.requests) as pool:
            places = {pool.submit(self._guarded, one, i): i for i in range(len(prompts))}
            try:
                for future in as_completed(places):
                    replies[places[future]] = future.result()
                    if progress is not None:
                        progress(1)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return replies

    def _guarded(self, one: Callable[[int], str], i: int) -> str:
        import openai

        try:
            return one(i)
        except openai.APIConnectionError:
            raise InputError(f"endpoint {self.base_url}: cannot be reached") from None
        except openai.APIStatusError as error:
            detail = str(error.message).strip().splitlines()[0][:200]
            raise InputError(f"endpoint {self.base_url}: answered {error.status_code}: {detail}") from None
        except openai.OpenAIError as error:
            raise InputError(f"endpoint {self.base_url}: {str(error).splitlines()[0][:200]}") from None

    def _chat(
        self, prompt: Prompt, system: str | None, options: dict[str, Any], show: Callable[[str], None] | None
    ) -> str:
        messages: Any = as_messages(prompt, system)
        if show is None:
            reply = self._client.chat.completions.create(model=self.model, messages=messages, **options)
            return (reply.choices[0].message.content or "") if reply.choices else ""
        pieces = []
        for event in self._client.chat.completions.create(model=self.model, messages=messages, stream=True, **options):
            piece = event.choices[0].delta.content if event.choices else None
            if piece:
                pieces.append(piece)
                show(piece)
        return "".join(pieces)

    def _complete(
        self, prompt: Prompt, system: str | None, options: dict[str, Any], show: Callable[[str], None] | None
    ) -> str:
        if not isinstance(prompt, str):
            raise InputError("prompt: a list of messages needs chat completions, not chat=False")
        text = f"{system}\n\n{prompt}" if system else prompt
        reply = self._client.completions.create(model=self.model, prompt=text, **options)
        found = str(reply.choices[0].text) if reply.choices else ""
        if show is not None:
            show(found)
        return found
