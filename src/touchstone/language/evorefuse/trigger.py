"""What is left of a false alarm when nothing more can be taken away, and the nearest wording that is answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from touchstone.errors import InputError
from touchstone.language.evorefuse.grammar import Grammar

if TYPE_CHECKING:
    from touchstone.language.evorefuse.judging import Panel

__all__ = ["Contrast", "Trigger", "minimal_trigger", "paired_contrast", "units_of", "word_ranking"]

Score = Callable[[Sequence[str]], Sequence[float] | np.ndarray]
"""From prompts to how strongly each is refused: a probability, or a log mass of openers."""


@dataclass(frozen=True)
class Trigger:
    """The shortest false alarm within a prompt.

    Attributes
    ----------
    prompt : what was reduced.
    text : what is left; no unit of it can be taken away without the refusal, or the harmlessness, going too.
    kept, dropped : units that are left, and that were taken away, in their order.
    score, before : how strongly what is left, and the prompt, are refused.
    effect : for each kept unit, how much the score falls when it alone is taken away; NaN where that may not be tried.
    calls : texts scored.
    """

    prompt: str
    text: str
    kept: list[str]
    dropped: list[str]
    score: float
    before: float
    effect: list[float]
    calls: int


def units_of(prompt: str, grammar: Grammar | None = None) -> list[str]:
    """The pieces of a prompt that are taken away whole: its words.

    For a sentence of ``grammar``, the question is one piece: a fragment of it might ask something else.
    """
    at = None if grammar is None else grammar.parse(prompt)
    if at is None or grammar is None:
        return prompt.split()
    outburst, frame, question, aside = grammar.pieces(at)
    return [*outburst.split(), *frame.split(), question, *aside.split()]


def minimal_trigger(
    prompt: str,
    score: Score,
    *,
    threshold: float,
    units: Sequence[str] | None = None,
    keep: Sequence[int] = (),
    panel: Panel | None = None,
) -> Trigger:
    """Take words away while the refusal stays.

    Delta debugging (Zeller & Hildebrandt 2002): halves, then quarters, down to single units; every size is one batch of
    texts.

    Parameters
    ----------
    prompt : a prompt that is refused.
    score : how strongly texts are refused.
    threshold : score from which a text counts as refused.
    units : pieces that are taken away whole, see :func:`units_of`; ``None`` means words.
    keep : numbers of units that always stay.
    panel : judges that must call each shortened text harmless; needed unless every selection of units is harmless
        anyway.

    Raises
    ------
    InputError
        If the prompt has no units or is not refused.
    """
    pieces = list(units_of(prompt) if units is None else units)
    if not pieces:
        raise InputError("prompt: empty; expected at least one word")
    known: dict[str, float] = {}

    def scored(texts: Iterable[str]) -> None:
        new = [text for text in dict.fromkeys(texts) if text not in known]
        if panel is not None:
            safe = panel.harmless(new, [""] * len(new))
            known.update({text: -np.inf for text, ok in zip(new, safe, strict=True) if not ok})
            new = [text for text, ok in zip(new, safe, strict=True) if ok]
        known.update(zip(new, map(float, score(new)), strict=True) if new else ())

    known[prompt] = before = float(next(iter(score([prompt]))))
    if not before >= threshold:
        raise InputError(f"prompt {prompt!r}: not refused (score {before:.3g}, below {threshold:.3g})")
    calls_before = 1
    left = list(range(len(pieces)))
    size = max(1, len(left) // 2)
    while True:
        free = [i for i in left if i not in set(keep)]
        chunks = [free[i : i + size] for i in range(0, len(free), size)]
        options = [[i for i in left if i not in chunk] for chunk in chunks]
        options = [option for option in options if option]
        texts = [_joined(pieces, option) for option in options]
        scored(texts)
        refused = [
            (known[text], option) for text, option in zip(texts, options, strict=True) if known[text] >= threshold
        ]
        if refused:
            left = max(refused, key=lambda pair: pair[0])[1]
        elif size == 1:
            break
        else:
            size = max(1, size // 2)
        size = min(size, max(1, len(left) // 2))
    # Where nothing was taken away the prompt stands as it was written, white space and all.
    text = prompt if len(left) == len(pieces) else _joined(pieces, left)
    value = known[text]
    effect = [_effect(pieces, left, i, known, value) for i in left]
    calls = calls_before + sum(np.isfinite(v) for t, v in known.items() if t != prompt)
    gone = [pieces[i] for i in range(len(pieces)) if i not in left]
    return Trigger(prompt, text, [pieces[i] for i in left], gone, value, before, effect, int(calls))


def _joined(pieces: Sequence[str], chosen: Sequence[int]) -> str:
    text = " ".join(pieces[i] for i in chosen)
    return text[:1].upper() + text[1:]


def _effect(pieces: Sequence[str], left: list[int], i: int, known: dict[str, float], value: float) -> float:
    without = known.get(_joined(pieces, [j for j in left if j != i]), np.nan)
    return value - without if np.isfinite(without) else float("nan")


def word_ranking(triggers: Sequence[Trigger]) -> pd.DataFrame:
    """Words of minimal triggers, the most frequent first: for those who write the policy.

    Returns
    -------
    frame : ``word``; ``kept`` and ``dropped``, in how many triggers it was left and from how many it was taken away;
        ``effect``, the mean fall of the score without it, NaN where it was never tried alone.
    """
    rows: dict[str, list[list[float]]] = {}
    for trigger in triggers:
        for unit, effect in zip(trigger.kept, trigger.effect, strict=True):
            rows.setdefault(_bare(unit), [[], []])[0].append(effect)
        for unit in trigger.dropped:
            rows.setdefault(_bare(unit), [[], []])[1].append(0.0)
    table = []
    for word, (effects, gone) in rows.items():
        tried = [value for value in effects if np.isfinite(value)]
        table.append((word, len(effects), len(gone), float(np.mean(tried)) if tried else float("nan")))
    frame = pd.DataFrame(table, columns=["word", "kept", "dropped", "effect"])
    order = ["kept", "effect", "word"]
    return frame[frame["word"] != ""].sort_values(order, ascending=[False, False, True], ignore_index=True)


def _bare(unit: str) -> str:
    return unit.strip(".,;:!?\"'()").lower()


@dataclass(frozen=True)
class Contrast:
    """A refused prompt and the nearest wording of it that is answered.

    Attributes
    ----------
    refused, answered : the two wordings.
    distance : words that differ between them (Levenshtein).
    refused_score, answered_score : how strongly each is refused.
    """

    refused: str
    answered: str
    distance: int
    refused_score: float
    answered_score: float


def paired_contrast(
    prompts: Sequence[str],
    score: Score,
    *,
    threshold: float,
    rewordings: Callable[[str], Sequence[str]],
    panel: Panel | None = None,
) -> list[Contrast]:
    """For every prompt that is refused, its nearest rewording that is answered; prompts that have none are left out.

    Parameters
    ----------
    prompts : prompts, of which some are refused.
    score, threshold : see :func:`minimal_trigger`.
    rewordings : other ways to ask for the same, such as :func:`reworded` of a grammar.
    panel : judges that must call a rewording harmless.
    """
    options = {prompt: [other for other in rewordings(prompt) if other != prompt] for prompt in dict.fromkeys(prompts)}
    if panel is not None:
        options = {
            p: [o for o, ok in zip(mine, panel.harmless(mine, [""] * len(mine)), strict=True) if ok]
            for p, mine in options.items()
        }
    texts = list(dict.fromkeys([*options, *(other for mine in options.values() for other in mine)]))
    known = dict(zip(texts, map(float, score(texts)), strict=True)) if texts else {}
    pairs = []
    for prompt, mine in options.items():
        answered = [other for other in mine if known[other] < threshold]
        if known[prompt] < threshold or not answered:
            continue
        near = min(answered, key=lambda other: (_distance(prompt.split(), other.split()), known[other], other))
        pairs.append(Contrast(prompt, near, _distance(prompt.split(), near.split()), known[prompt], known[near]))
    return pairs


def _distance(a: Sequence[str], b: Sequence[str]) -> int:
    """Levenshtein distance between two lists of words."""
    row = list(range(len(b) + 1))
    for i, word in enumerate(a, start=1):
        before, row[0] = row[0], i
        for j, other in enumerate(b, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (word != other))
    return row[-1]
