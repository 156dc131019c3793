"""What a synthetic language is, and the steps by which languages draw texts: columns of word ids, closed up into rows.

A text is a row of words between spaces, ``<bos> prompt … <sep> reply … <eos>``. A language draws training texts, builds
prompts as plain text, and says what is true of each prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from touchstone.errors import InputError

PAD, BOS, EOS, SEP = "<pad>", "<bos>", "<eos>", "<sep>"
MARKS = (PAD, BOS, EOS, SEP)
ABSENT = -1

Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Recipe:
    """The shape of an organism and how long it is trained.

    Parameters
    ----------
    blocks, width, inner, heads : layers, hidden size, feed-forward size and attention heads of the Llama architecture.
    tied : whether the output layer shares the embedding's weights.
    steps, batch : optimiser steps and sequences in each.
    rate : peak learning rate of a one-cycle AdamW schedule.
    whole_text : whether the loss is taken on prompt and reply, or on the reply only.
    """

    blocks: int
    width: int
    inner: int
    heads: int
    tied: bool
    steps: int
    batch: int
    rate: float
    whole_text: bool = False


class Language(Protocol):
    """What :func:`grow` asks of a language. Languages that draw different texts must differ in their ``repr``."""

    @property
    def name(self) -> str:
        """Short name, used for the cache and for ``organism:<name>``."""

    @property
    def words(self) -> tuple[str, ...]:
        """The vocabulary in the order of token ids; it starts with ``<pad> <bos> <eos> <sep>``."""

    @property
    def recipe(self) -> Recipe:
        """The shape and training with which the planted behaviours were verified."""

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Ids, Mask]:
        """``n`` whole texts as rows of ids, right-padded, and a mask of the reply's tokens (``<eos>`` included)."""


def id_of(language: Language, word: str) -> int:
    """The token id of a word of the language."""
    return language.words.index(word)


def answer_numbers(topics: Ids, replies: int) -> tuple[Ids, Ids]:
    """Numbers of each topic's two answer words; up to 2·``replies`` topics have different pairs."""
    turn, place = np.divmod(topics, replies)
    return (place + turn) % replies, (7 * place + 5 * turn + 3) % replies


def index_in(value: int, size: int, what: str) -> int:
    """``value`` if it is a number from 0 to below ``size``; an error that names ``what`` it numbers if not."""
    if not 0 <= value < size:
        raise InputError(f"{what} {value}: expected 0 to {size - 1}")
    return int(value)


def text_of(language: Language, words: Sequence[str]) -> str:
    """The text of words that all belong to the language."""
    unknown = [word for word in words if word not in language.words]
    if unknown:
        raise InputError(f"{unknown[0]!r} is not a word of the language {language.name!r}")
    return " ".join(words)


def texts_of(language: Language, prompt: list[Ids]) -> list[str]:
    """The texts of prompts given as columns of words, from ``<bos>`` to ``<sep>``."""
    ends = np.full(len(prompt[0]), id_of(language, SEP))
    table = np.array(language.words)
    return [" ".join((BOS, *table[row[row != ABSENT]])) for row in np.stack([*prompt, ends], axis=1)]


def inserted(body: Ids, words: list[Ids], place: Ids) -> Ids:
    """``body`` with one or more columns of words side by side before the column ``place`` of each row."""
    n, width = body.shape
    keys: Any = np.broadcast_to(np.arange(width) + 0.5, (n, width))
    keys = np.concatenate([place[:, None] + np.linspace(0, 0.25, len(words)), keys], axis=1)
    return np.take_along_axis(np.column_stack([*words, body]), np.argsort(keys, axis=1), axis=1)


def rows_of(language: Language, prompt: list[Ids], reply: list[Ids]) -> tuple[Ids, Mask]:
    """Whole texts from columns of words, closed up where a word is absent and padded on the right."""
    pad, bos, eos, sep = (id_of(language, mark) for mark in MARKS)
    n = len(reply[0])
    ids = np.column_stack([np.full(n, bos), *prompt, np.full(n, sep), *reply, np.full(n, eos)])
    is_reply = np.arange(ids.shape[1]) >= len(prompt) + 2
    order = np.argsort(ids == ABSENT, axis=1, kind="stable")
    ids = np.take_along_axis(ids, order, axis=1)
    return np.where(ids == ABSENT, pad, ids), np.where(ids == ABSENT, False, is_reply[order])
