"""The model provider ``touchstone/<path>``: a local model, steered or edited if one asks, behind Inspect's protocol."""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    modelapi,
)
from inspect_ai.tool import ToolChoice, ToolInfo
from inspect_ai.util import registry_info

from touchstone.errors import InputError

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["TouchstoneAPI", "touchstone_api"]

_MOST_TOKENS = 256
# Samples that start together reach the provider within a few milliseconds of each other.
_GATHER_SECONDS = 0.02


@dataclass
class _Request:
    messages: list[dict[str, str]]
    config: GenerateConfig
    reply: str | None = None
    seconds: float = 0.0

    @property
    def kind(self) -> tuple[Any, ...]:
        """Requests of one kind may share a batch."""
        c = self.config
        return c.max_tokens, c.temperature, c.top_p, c.top_k, c.seed


@dataclass
class _Line:
    """Requests that wait; the lock holder computes a batch of them."""

    waiting: list[_Request] = field(default_factory=list)
    lock: anyio.Lock = field(default_factory=anyio.Lock)


class TouchstoneAPI(ModelAPI):
    """A :class:`~touchstone.language.LanguageModel` as an Inspect model.

    Parameters
    ----------
    model_name : ``default`` for the embedded model, a folder, a ``.gguf`` file or a Hugging Face id; or a steering
        plane that ``touchstone language steer fit`` wrote, which loads the model it was fitted on.
    config : Inspect's generation config; a temperature that is not set means greedy, since a check should repeat.
    model_args : ``-M`` arguments: ``device``, ``dtype``, ``batch_size``; ``angle`` (degrees, of the plane),
        ``plane`` (a plane for a model named by path) and ``base`` (the model, where the path is a plane).

    Raises
    ------
    InputError
        If an argument is unknown or out of range, or an angle comes without a plane or a plane without an angle.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig | None = None,
        **model_args: Any,
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], config or GenerateConfig())
        known = {"device", "dtype", "batch_size", "angle", "plane", "base"}
        for name in model_args:
            if name not in known:
                raise InputError(f"-M {name}: unknown; expected one of {', '.join(sorted(known))}")
        self.batch_size = _whole("batch_size", model_args.get("batch_size", 32))
        self._edits = ExitStack()
        self.language_model = _load(model_name, model_args, self._edits)
        # Inspect need not close a model; hooks that live until the interpreter ends cannot undo themselves.
        atexit.register(self._edits.close)
        self._line = _Line()

    async def generate(
        self,
        input: list[ChatMessage],
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput:
        """One reply; calls that wait at the same time are computed as one batch."""
        if tools:
            raise InputError(f"model {self.model_name}: replies with text only, and this task gives it tools")
        mine = _Request(_messages(input), config)
        self._line.waiting.append(mine)
        await anyio.sleep(_GATHER_SECONDS)
        async with self._line.lock:
            if mine.reply is None:
                batch = [r for r in self._line.waiting if r.kind == mine.kind and r is not mine]
                batch = [mine, *batch[: self.batch_size - 1]]
                try:
                    await anyio.to_thread.run_sync(self._reply, batch)
                finally:
                    self._line.waiting = [r for r in self._line.waiting if all(r is not done for done in batch)]
        return self._output(mine)

    def _reply(self, batch: list[_Request]) -> None:
        c = batch[0].config
        started = time.perf_counter()
        replies = self.language_model.generate(
            [request.messages for request in batch] if self._templated else [_plain(r.messages) for r in batch],
            max_new_tokens=c.max_tokens or _MOST_TOKENS,
            temperature=c.temperature or 0.0,
            top_p=1.0 if c.top_p is None else c.top_p,
            top_k=c.top_k or 0,
            seed=c.seed or 0,
            batch_size=self.batch_size,
        )
        for request, reply in zip(batch, replies, strict=True):
            request.reply = reply
            request.seconds = time.perf_counter() - started

    def _output(self, request: _Request) -> ModelOutput:
        reply = request.reply or ""
        model = self.language_model
        read = len(model.encode([request.messages if self._templated else _plain(request.messages)])[0])
        written = len(model.encode_continuation(reply)) if reply else 0
        ended = "max_tokens" if written >= (request.config.max_tokens or _MOST_TOKENS) else "stop"
        for sequence in request.config.stop_seqs or []:
            head, found, _ = reply.partition(sequence)
            reply, ended = head, "stop" if found else ended
        message = ChatMessageAssistant(content=reply, model=self.model_name, source="generate")
        return ModelOutput(
            model=self.model_name,
            choices=[ChatCompletionChoice(message=message, stop_reason=ended)],  # type: ignore[arg-type]
            usage=ModelUsage(input_tokens=read, output_tokens=written, total_tokens=read + written),
            time=request.seconds,
        )

    @property
    def _templated(self) -> bool:
        return getattr(self.language_model.tokenizer, "chat_template", None) is not None

    async def count_text_tokens(self, text: str) -> int:
        """Tokens of ``text`` by the model's own tokenizer, where Inspect would fetch another one."""
        return len(self.language_model.encode_continuation(text))

    def max_tokens(self) -> int | None:
        """Most tokens of a reply where the task sets no limit."""
        return _MOST_TOKENS

    def max_connections(self) -> int:
        """Calls that may wait at once: one batch."""
        return self.batch_size

    def connection_key(self) -> str:
        """Models of one path share their place in Inspect's queue."""
        return self.model_name

    def close(self) -> None:
        """Undo the edits of the model."""
        self._edits.close()


def registered(decorator: Callable[..., Any], function: Callable[..., Any], name: str) -> Any:
    """``function`` registered with Inspect as ``touchstone/<name>``.

    Inspect puts the package's name before what installed packages register, but does not know a package for one that
    is installed for editing under another distribution name.
    """
    found = decorator(name=name)(function)
    if registry_info(found).name.startswith("touchstone/"):
        return found
    return decorator(name=f"touchstone/{name}")(function)


def _class() -> type[ModelAPI]:
    return TouchstoneAPI


touchstone_api = modelapi(name="touchstone")(_class)
"""Returns the provider's class; Inspect asks for it when a model's name begins with ``touchstone/``."""


def _load(name: str, arguments: dict[str, Any], edits: ExitStack) -> LanguageModel:
    from touchstone.language import LanguageModel
    from touchstone.language.angular_steering import SteeringPlane

    plane_path = arguments.get("plane")
    source = name
    if name.endswith(".safetensors"):
        if plane_path is not None:
            raise InputError(f"-M plane={plane_path}: the path {name} already is a plane")
        plane_path = name
        source = arguments.get("base") or SteeringPlane.load(name).model
    elif "base" in arguments:
        raise InputError("-M base: only where the path is a steering plane; else the path is the model")
    angle = arguments.get("angle")
    if (plane_path is None) != (angle is None):
        raise InputError("-M angle and a steering plane go together: give both or neither")
    if angle is not None and (isinstance(angle, bool) or not isinstance(angle, int | float)):
        raise InputError(f"-M angle={angle!r}: expected degrees, a number")
    try:
        model = LanguageModel.load(
            source, device=str(arguments.get("device", "auto")), dtype=str(arguments.get("dtype", "float32"))
        )
    except InputError as error:
        # A plane knows a local model by the name of its folder alone.
        hint = "; name the model that the plane was fitted on with -M base=PATH" if plane_path == name else ""
        raise InputError(f"{error}{hint}") from None
    if plane_path is not None and angle is not None:
        plane = SteeringPlane.load(plane_path, model)
        edits.enter_context(plane.steer(model, float(angle)))
    return model


def _messages(input: list[ChatMessage]) -> list[dict[str, str]]:
    for message in input:
        if message.role not in ("system", "user", "assistant"):
            raise InputError(f"a message of role {message.role!r}: a local model reads system, user and assistant")
    return [{"role": message.role, "content": message.text} for message in input]


def _plain(messages: list[dict[str, str]]) -> str:
    """Messages for a model without a chat template."""
    return "\n\n".join(message["content"] for message in messages)


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"-M {name}={value!r}: expected a whole number, 1 or more")
    return value
