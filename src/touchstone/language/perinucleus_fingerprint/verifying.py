"""Verification from text alone: a fixed threshold or as few keys as it takes, through any ``prompt -> text``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from touchstone.errors import InputError
from touchstone.language.perinucleus_fingerprint.testing import (
    SequentialTest,
    exact_bound,
    hoeffding_bound,
    threshold,
)

if TYPE_CHECKING:
    from touchstone.language.perinucleus_fingerprint.fingerprints import FingerprintSet

__all__ = ["Verdict", "ask", "verify", "verify_sequentially"]


@dataclass(frozen=True)
class Verdict:
    """What the keys showed.

    Attributes
    ----------
    hits, queries, needed : answered keys, keys shown, and hits that claim ownership.
    p_value_exact, p_value_hoeffding : bounds on the chance that an unrelated model answers as many. After a sequential
        test the exact one is the bound that holds wherever one stops, exp(-log likelihood ratio).
    owned : whether ownership is claimed at ``alpha``.
    positives : indices of answered keys, for tracing.
    transcript : for each key in the order asked: its index, the key, the reply and whether it hit.
    """

    hits: int
    queries: int
    needed: int
    p_value_exact: float
    p_value_hoeffding: float
    owned: bool
    alpha: float
    positives: list[int]
    transcript: list[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)


def ask(target: Any, pairs: FingerprintSet, indices: Sequence[int], **sampling: Any) -> list[dict[str, Any]]:
    """Show keys and look at the replies; ``sampling`` goes to ``generate`` of a model."""
    keys = [pairs.pairs[i].key for i in indices]
    if hasattr(target, "generate"):
        # One token more than a response: an endpoint may begin its reply with a space of its own.
        length = pairs.response_length + 1
        replies = target.generate(keys, chat=pairs.chat, max_new_tokens=length, **sampling)
    elif callable(target):
        replies = list(target(keys))
    else:
        raise InputError("target: expected a model or a function from a list of prompts to a list of replies")
    if len(replies) != len(keys) or not all(isinstance(reply, str) for reply in replies):
        raise InputError(f"target: expected {len(keys)} replies as text, one for each prompt")
    return [
        {"index": int(i), "key": key, "reply": reply, "hit": pairs.pairs[i].hit_by(reply)}
        for i, key, reply in zip(indices, keys, replies, strict=True)
    ]


def verify(
    target: Any,
    pairs: FingerprintSet,
    *,
    queries: int = 10,
    alpha: float = 1e-3,
    seed: int = 0,
    indices: Sequence[int] | None = None,
    **sampling: Any,
) -> Verdict:
    """Does ``target`` answer as the fingerprinted model would?

    Parameters
    ----------
    target : a model, an endpoint, or any function from a list of prompts to a list of replies.
    pairs : the fingerprints; keys that were shown before are left out.
    queries : keys to show; which ones follows from ``seed`` before anything is asked, without which no p-value holds.
    alpha : wanted rate of false claims.
    indices : keys to show, in place of a draw.

    Raises
    ------
    InputError
        If so few keys cannot reach ``alpha``, too few are left, or the scheme's responses are not a secret draw among
        k candidates, so that nothing bounds what an unrelated model hits (the bound is vacuous).
    """
    chance = _bounded(pairs)
    order = list(indices) if indices is not None else pairs.unused(queries, seed)
    needed = threshold(len(order), chance, alpha)
    rows = ask(target, pairs, order, **sampling)
    hits = sum(row["hit"] for row in rows)
    return Verdict(
        hits,
        len(order),
        needed,
        exact_bound(hits, len(order), chance),
        hoeffding_bound(hits, len(order), chance),
        hits >= needed,
        alpha,
        [row["index"] for row in rows if row["hit"]],
        rows,
    )


def verify_sequentially(
    target: Any,
    pairs: FingerprintSet,
    *,
    recall: float = 0.6,
    alpha: float = 1e-3,
    beta: float = 1e-2,
    most: int = 100,
    seed: int = 0,
    **sampling: Any,
) -> Verdict:
    """Show one key after the other and stop as soon as the test decides, so that few keys are spent."""
    chance = _bounded(pairs)
    test = SequentialTest(chance, recall, alpha, beta)
    free = len(pairs) - len(set(pairs.used))
    rows: list[dict[str, Any]] = []
    peak = 0.0
    for index in pairs.unused(min(most, free), seed):
        rows += ask(target, pairs, [index], **sampling)
        state = test.show(rows[-1]["hit"])
        peak = max(peak, test.log_ratio)
        if state != "go on":
            break
    hits = sum(row["hit"] for row in rows)
    return Verdict(
        hits,
        len(rows),
        0,
        min(1.0, math.exp(-peak)),
        hoeffding_bound(hits, len(rows), chance),
        test.state == "owned",
        alpha,
        [row["index"] for row in rows if row["hit"]],
        rows,
    )


def _bounded(pairs: FingerprintSet) -> float:
    if pairs.chance >= 1:
        raise InputError(
            f"scheme {pairs.scheme!r} with k={pairs.k}: nothing bounds what an unrelated model hits, so that no "
            "claim can rest on it; draw perinucleus fingerprints with k above n_responses"
        )
    return pairs.chance
