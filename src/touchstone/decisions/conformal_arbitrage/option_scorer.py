"""Scores of options by a causal language model: how likely each is as the continuation of the prompt."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from touchstone.errors import InputError
from touchstone.files import write_text

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["REDUCES", "OptionScorer", "Reduce"]

Reduce = Literal["sum", "mean", "first_token"]
REDUCES: tuple[Reduce, ...] = ("sum", "mean", "first_token")
# Prompts that are scored before their results are kept.
_CHUNK = 32


class OptionScorer:
    """Log-probabilities of options after prompts; the prompt is read once for all of its options.

    Parameters
    ----------
    model : a :class:`~touchstone.language.LanguageModel`, or a transformers model with its ``tokenizer``.
    tokenizer : of a transformers model.
    reduce : ``"sum"`` of the tokens' log-probabilities, which favours short options; their ``"mean"``; or that of the
        ``"first_token"``. A router calibrated on one is not valid for another.
    chat : whether prompts go through the model's chat template; by default options continue the text as it is.
    lead, tail : text put before and after each option; a space and nothing by default.
    cache : folder in which scores are kept, by model, prompt and options.

    Raises
    ------
    InputError
        If ``reduce`` is unknown, or a transformers model comes without a tokenizer.
    """

    def __init__(
        self,
        model: LanguageModel | Any,
        tokenizer: Any = None,
        *,
        reduce: Reduce = "sum",
        chat: bool = False,
        lead: str = " ",
        tail: str = "",
        cache: str | Path | None = None,
    ) -> None:
        from touchstone.language.model import LanguageModel as Model

        if reduce not in REDUCES:
            raise InputError(f"reduce {reduce!r}: expected one of {', '.join(REDUCES)}")
        if not isinstance(model, Model):
            if tokenizer is None:
                raise InputError("tokenizer: a transformers model needs one")
            model = Model(model, tokenizer)
        self.model: LanguageModel = model
        self.reduce, self.chat, self.lead, self.tail = reduce, chat, lead, tail
        self.cache = None if cache is None else Path(cache)
        self.source = self.model.source

    def score(
        self,
        prompts: Sequence[str],
        options: Sequence[Sequence[str]],
        *,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[float]]:
        """Log-probability of each option in nats, one row a prompt.

        Raises
        ------
        InputError
            If there are not as many lists of options as prompts, or a prompt has none.
        """
        if isinstance(prompts, str) or len(prompts) != len(options):
            raise InputError(f"options: expected one list for each of {len(prompts)} prompts, got {len(options)}")
        for i, row in enumerate(options):
            if isinstance(row, str) or not row:
                raise InputError(f"options of prompt {i}: expected a list of at least one text")
        found = [self._kept(prompt, texts) or [] for prompt, texts in zip(prompts, options, strict=True)]
        todo = [i for i, row in enumerate(found) if not row]
        if progress is not None and len(todo) < len(found):
            progress(len(found) - len(todo))
        for begin in range(0, len(todo), _CHUNK):
            some = todo[begin : begin + _CHUNK]
            scores = self._computed([prompts[i] for i in some], [options[i] for i in some])
            for i, values in zip(some, scores, strict=True):
                found[i] = values
                self._keep(prompts[i], options[i], values)
            if progress is not None:
                progress(len(some))
        return found

    def _computed(self, prompts: Sequence[str], options: Sequence[Sequence[str]]) -> list[list[float]]:
        pieces = [[self._piece(option) for option in row] for row in options]
        scores = self.model.log_likelihood(list(prompts), pieces, chat=self.chat)
        values = scores.mean if self.reduce == "mean" else scores.total
        return [[float(x) for x in row if not math.isnan(x)] for row in values]

    def _piece(self, option: str) -> str:
        text = f"{self.lead}{option}{self.tail}"
        if self.reduce != "first_token":
            return text
        first = self.model.encode_continuation(text)[:1]
        piece = str(self.model.tokenizer.decode(first))
        if not first or self.model.encode_continuation(piece) != first:
            raise InputError(f"option {option!r}: its first token is no text of its own; use another reduce")
        return piece

    def _place(self, prompt: str, options: Sequence[str]) -> Path:
        assert self.cache is not None
        key = json.dumps([self.source, self.reduce, self.chat, self.lead, self.tail, prompt, list(options)])
        return self.cache / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"

    def _kept(self, prompt: str, options: Sequence[str]) -> list[float] | None:
        if self.cache is None or not (place := self._place(prompt, options)).is_file():
            return None
        try:
            row = json.loads(place.read_text(encoding="utf-8"))
        except (ValueError, OSError):
            return None
        whole = isinstance(row, list) and len(row) == len(options) and all(isinstance(x, float) for x in row)
        return row if whole else None

    def _keep(self, prompt: str, options: Sequence[str], row: list[float]) -> None:
        if self.cache is not None:
            write_text(self._place(prompt, options), json.dumps(row, allow_nan=False))
