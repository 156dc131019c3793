"""Defences in front of a guard, each measured on the texts that an attack found and on harmless prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pandas as pd

from touchstone.errors import InputError
from touchstone.evidence import Measurement
from touchstone.language.largo.result import Behaviour
from touchstone.language.largo.trial import Attack

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["ActivationProbe", "Defence", "Paraphrase", "PerplexityFilter", "SmoothVote", "defence_report"]


class Defence(Protocol):
    """Stands between the user's message and the guarded model.

    Attributes
    ----------
    name : in reports.
    """

    @property
    def name(self) -> str: ...

    def admits(self, message: str) -> bool:
        """Whether the message reaches the model at all."""

    def forms(self, message: str) -> list[str]:
        """What the model is given in its place; the reply of the majority counts."""


class PerplexityFilter:
    """Turns away messages whose perplexity, whole or in a window, is above that of harmless ones (arXiv 2309.00614).

    Parameters
    ----------
    model : by which perplexity is measured.
    benign : messages of yours; the two thresholds are the ``quantile`` of theirs.
    window : tokens of a sliding window; the highest counts.
    quantile : of the harmless messages that pass each threshold.

    Raises
    ------
    InputError
        For fewer than two messages, or a window or quantile out of range.
    """

    name = "perplexity filter"

    def __init__(
        self, model: LanguageModel, benign: Sequence[str], *, window: int = 10, quantile: float = 0.99
    ) -> None:
        if len(benign) < 2:
            raise InputError("benign: expected two or more messages to take thresholds from")
        if window < 1 or not 0 < quantile < 1:
            raise InputError(f"window {window}, quantile {quantile}: expected 1 or more, and a number in (0, 1)")
        self._model, self.window = model, window
        self.thresholds = tuple(float(x) for x in np.quantile(self.scores(benign), quantile, axis=0))

    def scores(self, messages: Sequence[str]) -> np.ndarray:
        """Mean negative log-likelihood of each message and of its worst window, nats a token, [messages, 2]."""
        import torch

        from touchstone.language import threads

        model, found = self._model, []
        start = model.tokenizer.bos_token_id
        for message in messages:
            ids = ([] if start is None else [int(start)]) + model.encode_continuation(message)
            if len(ids) < 2:
                found.append((0.0, 0.0))
                continue
            with torch.inference_mode(), threads.suiting(model):
                given = torch.tensor([ids], device=model.device)
                logits = model.module(given, use_cache=False).logits[0, :-1].float()
                losses = torch.nn.functional.cross_entropy(logits, given[0, 1:], reduction="none").cpu().numpy()
            width = min(self.window, len(losses))
            windows = np.convolve(losses, np.ones(width) / width, mode="valid")
            found.append((float(losses.mean()), float(windows.max())))
        return np.array(found)

    def admits(self, message: str) -> bool:
        """See :class:`Defence`."""
        return bool((self.scores([message])[0] <= self.thresholds).all())

    def forms(self, message: str) -> list[str]:
        """See :class:`Defence`."""
        return [message]


class SmoothVote:
    """Answers copies of which a share of the characters is swapped, and takes the majority (arXiv 2310.03684).

    Parameters
    ----------
    copies, share : the paper's defaults.
    perturb : another perturbation of a message, given a generator.
    seed : of the perturbations.
    """

    name = "smoothing vote"

    def __init__(
        self,
        copies: int = 10,
        share: float = 0.10,
        *,
        perturb: Callable[[str, np.random.Generator], str] | None = None,
        seed: int = 0,
    ) -> None:
        if copies < 1 or not 0 <= share <= 1:
            raise InputError(f"copies {copies}, share {share}: expected 1 or more, and a number in [0, 1]")
        self.copies, self.share, self.seed = copies, share, seed
        self._perturb = perturb or self._swapped

    def admits(self, message: str) -> bool:
        """Always: a vote turns nothing away."""
        return True

    def forms(self, message: str) -> list[str]:
        """See :class:`Defence`."""
        rng = np.random.default_rng(self.seed)
        return [self._perturb(message, rng) for _ in range(self.copies)]

    def _swapped(self, message: str, rng: np.random.Generator) -> str:
        letters = list(message)
        count = round(self.share * len(letters))
        for place in rng.choice(len(letters), count, replace=False) if count else ():
            letters[place] = chr(int(rng.integers(32, 127)))
        return "".join(letters)


class Paraphrase:
    """Has a message reworded before it is answered (arXiv 2309.00614).

    Parameters
    ----------
    rewrite : from a message to its rewording, such as ``partial(paraphrased, model)``.
    """

    name = "paraphrase"

    def __init__(self, rewrite: Callable[[str], str]) -> None:
        self._rewrite = rewrite

    @classmethod
    def by(cls, model: LanguageModel, *, max_new_tokens: int = 96) -> Paraphrase:
        """Rewording by a model, greedily."""

        def rewrite(message: str) -> str:
            asked = f"Reword this message in plain English and reply with the rewording only:\n\n{message}"
            return " ".join(model.generate([asked], max_new_tokens=max_new_tokens)[0].split()) or message

        return cls(rewrite)

    def admits(self, message: str) -> bool:
        """Always: rewording turns nothing away."""
        return True

    def forms(self, message: str) -> list[str]:
        """See :class:`Defence`."""
        return [self._rewrite(message)]


class ActivationProbe:
    """Turns away messages that a logistic probe on the last prompt token takes for ones to decline.

    Parameters
    ----------
    attack : holds the model and its prompts; it is not run.
    decline, allow : messages of both kinds, without suffixes; the probe never sees what an attack finds.
    block : whose output is read; the middle one if ``None``.
    """

    name = "activation probe"

    def __init__(
        self, attack: Attack, decline: Sequence[str], allow: Sequence[str], *, block: int | None = None
    ) -> None:
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        if len(decline) < 2 or len(allow) < 2:
            raise InputError("decline, allow: expected two or more messages each")
        self._attack = attack
        blocks = len(attack.model.blocks)
        self._site = attack.model.as_site(f"output.{blocks // 2 if block is None else block}")
        labels = [1] * len(decline) + [0] * len(allow)
        self._probe: Any = make_pipeline(StandardScaler(), LogisticRegression(C=0.1)).fit(
            self._states([*decline, *allow]), labels
        )

    def _states(self, messages: Sequence[str]) -> np.ndarray:
        prompts = [self._attack.template.ask(message).filled("") for message in messages]
        read = self._attack.model.activations(prompts, [self._site], positions="last", chat=False)
        found: np.ndarray = read[self._site].float().numpy()
        return found

    def admits(self, message: str) -> bool:
        """See :class:`Defence`."""
        return not bool(self._probe.predict(self._states([message]))[0])

    def forms(self, message: str) -> list[str]:
        """See :class:`Defence`."""
        return [message]


class _Nothing:
    name = "none"

    def admits(self, message: str) -> bool:
        return True

    def forms(self, message: str) -> list[str]:
        return [message]


def defence_report(
    attack: Attack,
    found: Sequence[tuple[Behaviour, str]],
    defences: Sequence[Defence],
    benign: Sequence[str] = (),
) -> pd.DataFrame:
    """How many found texts still break the guard behind each defence, and how many harmless messages it turns away.

    Parameters
    ----------
    attack : holds the model, its prompts and its judges; it is not run.
    found : behaviours with the texts that an attack found.
    defences : what to measure beside no defence, which is the first row.
    benign : messages of yours from which no threshold came.

    Returns
    -------
    Columns ``defence``, ``admitted`` (share of found texts that reach the model), ``breaks`` (share that break the
    guard) with ``low`` and ``high`` (Wilson, 95 %), ``n``, and ``turned_away`` (share of ``benign``; NaN without any).

    Raises
    ------
    InputError
        If ``found`` is empty.
    """
    if not found:
        raise InputError("found: no text that an attack found; there is nothing to defend against")
    rows = []
    for defence in (_Nothing(), *defences):
        admitted = [defence.admits(f"{behaviour.goal} {text}") for behaviour, text in found]
        hits = [ok and _breaks(attack, defence, *pair) for ok, pair in zip(admitted, found, strict=True)]
        rate = Measurement.rate(defence.name, sum(hits), len(hits))
        away = float(np.mean([not defence.admits(message) for message in benign])) if benign else float("nan")
        rows.append((defence.name, float(np.mean(admitted)), rate.value, rate.low, rate.high, rate.n, away))
    return pd.DataFrame(rows, columns=["defence", "admitted", "breaks", "low", "high", "n", "turned_away"])


def _breaks(attack: Attack, defence: Defence, behaviour: Behaviour, text: str) -> bool:
    forms = defence.forms(f"{behaviour.goal} {text}")
    prompts = [attack.template.ask(form).filled("") for form in forms]
    return sum(reply.broke for reply in attack.replies(behaviour, prompts)) > len(forms) / 2
