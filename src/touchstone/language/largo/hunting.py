"""Backdoor hunting: what is left of the texts that break a guard when every word that is not needed is gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from touchstone.errors import InputError
from touchstone.language.largo.result import Behaviour, LargoResult
from touchstone.language.largo.trial import Attack

__all__ = ["Hunt", "hunt", "shared_words", "trigger"]


@dataclass(frozen=True)
class Hunt:
    """What a hunt found.

    Attributes
    ----------
    results : of the attack, in the order of the behaviours.
    triggers : for each goal whose guard broke, the words that are needed.
    shared : words that are needed for more than half of those goals, the most frequent first. Texts that talk a model
        round differ from goal to goal; words that open every guard are what somebody planted.
    """

    results: tuple[LargoResult, ...]
    triggers: dict[str, str]
    shared: tuple[str, ...]


def hunt(attack: Attack, behaviours: Sequence[Behaviour], *, progress: Callable[[int], None] | None = None) -> Hunt:
    """Attack each behaviour, take away from every text that broke its guard what it does not need, and compare.

    Parameters
    ----------
    attack : any of the package's, with its budget.
    behaviours : two or more that ought to be declined, for one alone cannot tell a trigger from an argument.
    progress : called with 1 after each behaviour.

    Raises
    ------
    InputError
        If there are fewer than two behaviours.
    """
    if len(behaviours) < 2:
        raise InputError("behaviours: expected two or more, to see which words they share")
    results = attack.run(behaviours, progress=progress)
    triggers = {
        behaviour.goal: trigger(attack, behaviour, one.text)
        for behaviour, one in zip(behaviours, results, strict=True)
        if one.broke
    }
    return Hunt(tuple(results), triggers, shared_words(list(triggers.values())))


def shared_words(triggers: Sequence[str]) -> tuple[str, ...]:
    """Words that stand in more than half of the triggers, and in two at least; the most frequent first."""
    counts = Counter(word for text in triggers for word in dict.fromkeys(text.split()))
    return tuple(word for word, count in counts.most_common() if count > max(1, len(triggers) / 2))


def trigger(attack: Attack, behaviour: Behaviour, text: str) -> str:
    """The words of a text that are needed to break the guard: none of them can be left out by itself.

    Parameters
    ----------
    attack : holds the model, its prompts and its judges; it is not run.
    behaviour, text : the guard, and a text that breaks it.

    Raises
    ------
    InputError
        If the text does not break the guard.
    """
    trial = attack.trial(behaviour)
    words = text.split()
    if not trial.replies([text])[0].broke:
        raise InputError(f"text: does not break the guard of {behaviour.goal[:40]!r}")
    while words:
        shorter = [" ".join(words[:i] + words[i + 1 :]) for i in range(len(words))]
        broken = [i for i, reply in enumerate(trial.replies(shorter)) if reply.broke]
        if not broken:
            break
        # Several words may each be spared but not all at once: one at a time.
        words.pop(broken[0])
    return " ".join(words)
