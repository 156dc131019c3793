"""The nine mutators and the recombiner as rules over a grammar: no language model, no doubt about harmlessness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from touchstone.language.evorefuse.grammar import Grammar, Instruction, Slot, default_grammar
from touchstone.language.evorefuse.judging import GrammarJudge, TargetWordJudge
from touchstone.language.evorefuse.mutants import FAMILIES, Mutant, Writers

__all__ = ["RuleMutator", "RuleRecombiner", "calmed", "default_rules", "reworded"]

_SLOTS: dict[str, Slot] = {"context": "frame", "words": "aside", "emotion": "outburst"}


@dataclass(frozen=True)
class RuleMutator:
    """Puts a part of one kind into its slot.

    Parameters
    ----------
    grammar : where the parts come from; a text that is no sentence of it has no mutant.
    name : kind of the part, such as ``fiction`` or ``anger``.
    slot : where it goes.
    drift : whether a mutator of words may also exchange the action for another one of its kind, every other time.
    """

    grammar: Grammar
    name: str
    slot: Slot
    drift: bool = False

    def __call__(self, texts: Sequence[str], rngs: Sequence[np.random.Generator]) -> list[Mutant | None]:
        return [self._one(text, rng) for text, rng in zip(texts, rngs, strict=True)]

    def _one(self, text: str, rng: np.random.Generator) -> Mutant | None:
        at = self.grammar.parse(text)
        if at is None:
            return None
        actions = [i for i, a in enumerate(self.grammar.actions) if a.kind == self.name and i != at.action]
        if self.drift and actions and rng.random() < 0.5:
            return _mutant(self.grammar, replace(at, action=int(rng.choice(actions)), calm=False), self.name)
        parts = self.grammar.parts(self.slot)
        choices = [i for i, part in enumerate(parts) if part.kind == self.name and i != getattr(at, self.slot)]
        if not choices:
            return None
        chosen: dict[str, Any] = {self.slot: int(rng.choice(choices))}
        return _mutant(self.grammar, replace(at, **chosen), self.name)


@dataclass(frozen=True)
class RuleRecombiner:
    """Takes each slot from one of two parents, at least one from either where they differ."""

    grammar: Grammar

    def __call__(
        self, first: Sequence[str], second: Sequence[str], rngs: Sequence[np.random.Generator]
    ) -> list[Mutant | None]:
        return [self._one(a, b, rng) for a, b, rng in zip(first, second, rngs, strict=True)]

    def _one(self, first: str, second: str, rng: np.random.Generator) -> Mutant | None:
        a, b = self.grammar.parse(first), self.grammar.parse(second)
        if a is None or b is None:
            return None
        slots = ("action", "outburst", "frame", "aside")
        differ = [slot for slot in slots if getattr(a, slot) != getattr(b, slot)]
        if len(differ) < 2:
            return None
        from_second = rng.random(len(differ)) < 0.5
        if from_second.all() or not from_second.any():
            flipped = int(rng.integers(len(differ)))
            from_second[flipped] = not from_second[flipped]
        taken = {slot: getattr(b, slot) for slot, second in zip(differ, from_second, strict=True) if second}
        calm = b.calm if "action" in taken else a.calm
        return _mutant(self.grammar, replace(a, **taken, calm=calm), "recombination")


def _mutant(grammar: Grammar, instruction: Instruction, origin: str) -> Mutant:
    asked = grammar.actions[instruction.action].calm
    return Mutant(grammar.text(instruction), f'It only asks: "{asked}" The rest is wording.', origin)


def default_rules(grammar: Grammar | None = None, *, drift: bool = True) -> Writers:
    """Nine rule mutators, a recombiner and two judges: ``EvoRefuse(model, **default_rules())``.

    Parameters
    ----------
    grammar : the built-in one if ``None``; ``default_grammar().with_requests([...])`` puts your own requests in.
    drift : whether a search may move on to other actions of the grammar, or must stay with what its seed asks.
    """
    grammar = grammar or default_grammar()
    own = tuple(action.question for action in grammar.actions if action.kind == "own")
    return {
        "mutators": [
            RuleMutator(grammar, kind, _SLOTS[family], drift) for family, kinds in FAMILIES.items() for kind in kinds
        ],
        "recombiner": RuleRecombiner(grammar),
        "judges": (GrammarJudge(grammar), TargetWordJudge(own)),
    }


def reworded(grammar: Grammar, text: str) -> list[str]:
    """Calmer wordings of a sentence of the grammar, the nearest first; none for another text.

    Parts are left out and the verb is exchanged for the calm one, in every combination.
    """
    at = grammar.parse(text)
    if at is None:
        return []
    found: dict[str, int] = {}
    for outburst in {at.outburst, 0}:
        for frame in {at.frame, 0}:
            for aside in {at.aside, 0}:
                for calm in {at.calm, True}:
                    new = Instruction(at.action, outburst, frame, aside, calm)
                    changed = sum(getattr(new, slot) != getattr(at, slot) for slot in ("outburst", "frame", "aside"))
                    found.setdefault(grammar.text(new), changed + (calm != at.calm))
    found.pop(text, None)
    return sorted(found, key=lambda other: (found[other], other))


def calmed(grammar: Grammar, text: str) -> str:
    """The calm question alone that a sentence of the grammar asks; another text as it is."""
    at = grammar.parse(text)
    return text if at is None else grammar.text(Instruction(at.action, calm=True))
