"""The one interface and the one budget of all attacks: a trial of one behaviour, and the attack that carries it out."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from touchstone.errors import InputError
from touchstone.language.largo.metering import Meter
from touchstone.language.largo.reflection import Words
from touchstone.language.largo.result import Attempt, Behaviour, LargoResult
from touchstone.language.largo.slot import Slot
from touchstone.language.largo.template import Template, chat_template
from touchstone.language.refusal import RefusalJudge

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["Attack", "Reply", "Trial", "default_judges", "own"]


def own(acknowledged: bool) -> None:
    """Raise :class:`InputError` unless the caller says that the model is theirs."""
    if acknowledged is not True:
        raise InputError("acknowledge_own_model: pass True to confirm that the model is yours to test")


def default_judges() -> dict[str, RefusalJudge]:
    """Two judges of different kinds, who have to agree."""
    return {"prefix": RefusalJudge("prefix"), "tfidf": RefusalJudge("tfidf")}


class Reply(NamedTuple):
    """What the guarded model said: whether that is giving way, its class by each judge, whether it is on task."""

    broke: bool
    labels: dict[str, str]
    on_task: bool
    text: str


class Trial:
    """One behaviour under attack: what a text costs there, whether the guard gives way, and what has been spent."""

    def __init__(self, attack: Attack, behaviour: Behaviour, generator: torch.Generator) -> None:
        self.model, self.behaviour, self.generator = attack.model, behaviour, generator
        self.words, self.template = attack.words, attack.template
        self.suffix_len = attack.suffix_len
        self.meter = Meter(attack.budget, attack.max_checks)
        self.slot = Slot(
            attack.model, attack.template.ask(behaviour.goal), behaviour.target, special=attack.template.special
        )
        self.slot.look_at_length(attack.suffix_len)
        self.attempts: list[Attempt] = []
        self.rounds: list[dict[str, Any]] = []
        self.known: dict[str, float] = {}
        self.latent: Tensor | None = None
        self._attack = attack
        self._tried: set[str] = set()

    @property
    def is_over(self) -> bool:
        """Whether the guard gave way or a limit is reached."""
        return self.meter.is_over or (bool(self.attempts) and self.attempts[-1].broke)

    def losses(self, texts: Sequence[str]) -> list[float]:
        """Loss of texts in the slot, nats a target token; none is computed twice."""
        new = [text for text in dict.fromkeys(texts) if text not in self.known]
        self.known |= dict(zip(new, self.slot.text_losses(new), strict=True))
        return [self.known[text] for text in texts]

    def untried(self, texts: Sequence[str]) -> list[str]:
        """Those texts that have not been tried on the guard, each once."""
        return [text for text in dict.fromkeys(texts) if text not in self._tried]

    def check(self, texts: Sequence[str]) -> bool:
        """Try texts on the guarded model, in their order, until one breaks it; whether one did.

        A text that was tried before is passed over: the reply is greedy and would be the same.
        """
        new = self.untried(texts)[: self.meter.checks_left]
        if not new:
            return False
        before = self.meter.read
        found = self.replies(new)
        # A batch saves time, not cost: its texts are charged in equal parts, those after the one that broke nothing.
        each = (self.meter.read - before) / len(new)
        for k, (text, (broke, labels, on_task, reply)) in enumerate(zip(new, found, strict=True), start=1):
            self.meter.checks += 1
            self.meter.read = before + round(k * each)
            self._tried.add(text)
            self.attempts.append(Attempt(text, broke, labels, on_task, reply, self.meter.checks, self.meter.spent))
            if broke:
                return True
        return False

    def replies(self, texts: Sequence[str]) -> list[Reply]:
        """Greedy reply to each text in the slot."""
        return self._attack.replies(self.behaviour, [self.slot.frame.filled(text) for text in texts])

    def end_round(self, text: str | None = None, latent: Sequence[float] | None = None) -> None:
        """Note what a round came to."""
        self.rounds.append(
            {
                "latent": None if latent is None else [latent[0], latent[-1]],
                "text": None if text is None else self.known.get(text),
                "checks": self.meter.checks,
                "tokens_forward": self.meter.spent,
            }
        )


class Attack(ABC):
    """Runs trials; what a trial does is the subclass's :meth:`search`.

    Parameters
    ----------
    model : your own.
    acknowledge_own_model : must be true: attacks are for the model's owner.
    template : prompts around the slot; ``None`` takes the model's chat template with ``system``.
    system : system message of the guarded prompt.
    suffix_len : tokens of the slot.
    judges : decide whether a reply refuses, by name; the guard gave way only if all say that it answers.
    max_new_tokens : length of the replies that are judged.
    budget : token-forwards a behaviour, a backward pass counted double; no round begins beyond it.
    max_checks : texts tried on the guard a behaviour.
    allowed : token ids of which suffixes may consist; all but special ones if ``None``.
    seed : every random number follows from it and from a behaviour's place in the list.

    Raises
    ------
    InputError
        Without the acknowledgement, for a model without a chat template, and for arguments out of range.
    """

    name = "attack"

    def __init__(
        self,
        model: LanguageModel,
        *,
        acknowledge_own_model: bool = False,
        template: Template | None = None,
        system: str | None = None,
        suffix_len: int = 32,
        judges: dict[str, RefusalJudge] | None = None,
        max_new_tokens: int = 50,
        budget: int | None = None,
        max_checks: int | None = None,
        allowed: Sequence[int] | None = None,
        seed: int = 0,
    ) -> None:
        own(acknowledge_own_model)
        if suffix_len < 1 or max_new_tokens < 1:
            raise InputError(f"suffix_len {suffix_len}, max_new_tokens {max_new_tokens}: expected 1 or more")
        if template is not None and system is not None:
            raise InputError("template, system: a template has its own system message; expected one of them")
        if judges is not None and not judges:
            raise InputError("judges: expected at least one")
        Meter(budget, max_checks)
        self.model = model
        self.template = chat_template(model, system=system) if template is None else template
        self.suffix_len, self.max_new_tokens = suffix_len, max_new_tokens
        self.judges = default_judges() if judges is None else dict(judges)
        self.budget, self.max_checks, self.seed = budget, max_checks, seed
        self.words = Words(model, allowed)

    @abstractmethod
    def search(self, trial: Trial) -> None:
        """Look for a text to which the guard gives way, until ``trial.is_over``."""

    def trial(self, behaviour: Behaviour, place: int = 0) -> Trial:
        """A fresh trial of a behaviour, the ``place``-th of its list."""
        return Trial(self, behaviour, torch.Generator().manual_seed(1_000_003 * self.seed + place))

    def run(
        self, behaviours: Sequence[Behaviour], *, progress: Callable[[int], None] | None = None
    ) -> list[LargoResult]:
        """Attack each behaviour with the whole budget; ``progress`` is called with 1 after each."""
        if not behaviours:
            raise InputError("behaviours: expected at least one")
        trials = [self.trial(behaviour, place) for place, behaviour in enumerate(behaviours)]
        results = []
        for trial in trials:
            results.append(self.conclude(trial))
            if progress is not None:
                progress(1)
        return results

    def plain_replies(self, behaviours: Sequence[Behaviour]) -> list[Reply]:
        """Greedy reply to each bare goal: what an attack is measured against."""
        return self._judged(behaviours, [self.template.ask(one.goal).filled("") for one in behaviours])

    def replies(self, behaviour: Behaviour, prompts: Sequence[str]) -> list[Reply]:
        """Greedy replies to whole prompts, judged as replies to the behaviour's goal."""
        return self._judged([behaviour] * len(prompts), prompts)

    def _judged(self, behaviours: Sequence[Behaviour], prompts: Sequence[str]) -> list[Reply]:
        said = self.model.generate(prompts, chat=False, max_new_tokens=self.max_new_tokens)
        goals = [one.goal for one in behaviours]
        judged = {name: judge.classify(goals, said) for name, judge in self.judges.items()}
        found = []
        for i, reply in enumerate(said):
            fits = behaviours[i].is_on_task(reply)
            labels = {name: str(classes[i]) for name, classes in judged.items()}
            found.append(Reply(fits and set(labels.values()) == {"answer"}, labels, fits, reply))
        return found

    def conclude(self, trial: Trial) -> LargoResult:
        """Carry a trial out; if the guard gives way to the bare goal it ends there, for no text would prove a thing."""
        with trial.meter.watching(self.model):
            [plain] = trial.replies([""])
            [plain_loss] = trial.slot.text_losses([""])
            if not plain.broke:
                self.search(trial)
        broken = [a.text for a in trial.attempts if a.broke]
        scored = [text for text in trial.known if text]
        tried = trial.attempts[-1].text if trial.attempts else ""
        text = broken[0] if broken else min(scored, key=trial.known.__getitem__, default=tried)
        return LargoResult(
            attack=self.name,
            goal=trial.behaviour.goal,
            broke=bool(broken),
            plain_broke=plain.broke,
            rounds=len(trial.rounds),
            losses=trial.rounds,
            plain_loss=plain_loss,
            text=text,
            loss=trial.losses([text])[0],
            perplexity=perplexity(self.model, text),
            checks=trial.meter.checks,
            tokens_forward=trial.meter.spent,
            attempts=tuple(trial.attempts),
            latent=None if trial.latent is None else trial.latent.cpu().numpy(),
        )


def perplexity(model: LanguageModel, text: str) -> float:
    """Perplexity of a text by itself under the model; NaN if it is too short."""
    if not text.strip():
        return math.nan
    try:
        return model.perplexity([text])
    except InputError:
        return math.nan
