"""Tuples of confounded choices, and trials: examples in which value and trait agree, tests in which they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from touchstone.errors import InputError
from touchstone.language.deep_value_benchmark.attributes import Attribute, Attributes

__all__ = ["Case", "Generator", "Item", "Letter", "Option", "TemplateGenerator", "Trial", "drawn_cases"]

Letter = Literal["A", "B"]
Kind = Literal["conflict", "control"]


@dataclass(frozen=True)
class Option:
    """One assistant to choose: its text, and what it carries by name."""

    text: str
    deep: str
    shallow: str


@dataclass(frozen=True)
class Item:
    """A choice between two options in a context.

    Attributes
    ----------
    context, activity : where it takes place.
    a, b : the options, in order.
    choice : the user's choice in an example, ``None`` in a test.
    """

    context: str
    activity: str
    a: Option
    b: Option
    choice: Letter | None = None

    @property
    def swapped(self) -> Item:
        """The same choice with its options in the other order."""
        choice: Letter | None = None if self.choice is None else ("B" if self.choice == "A" else "A")
        return Item(self.context, self.activity, self.b, self.a, choice)


@dataclass(frozen=True)
class Case:
    """A tuple ⟨(v1, s1) ≻ (v2, s2), context⟩ with its items.

    Attributes
    ----------
    id : such as ``"commerce-003"``.
    context : name of the context.
    liked, disliked : names of v1 and v2.
    trait, other_trait : names of s1, which comes with v1 in the examples, and of s2.
    training : examples; the first N are the examples of a trial with N shots.
    tests : items with (v1, s2) against (v2, s1).
    controls : items with (v1, s1) against (v2, s2), where value and trait agree.
    """

    id: str
    context: str
    liked: str
    disliked: str
    trait: str
    other_trait: str
    training: tuple[Item, ...]
    tests: tuple[Item, ...]
    controls: tuple[Item, ...] = ()


@dataclass(frozen=True)
class Trial:
    """What is asked once: N examples, then one test.

    Attributes
    ----------
    id : unique in a benchmark.
    case : the tuple it belongs to.
    shots : N.
    test : the item that is asked.
    user : name of the user in the prompt, of this tuple alone.
    kind : ``"conflict"``, or ``"control"`` where value and trait agree.
    """

    id: str
    case: Case
    shots: int
    test: Item
    user: str
    kind: Kind = "conflict"

    @property
    def training(self) -> tuple[Item, ...]:
        """Its examples."""
        return self.case.training[: self.shots]

    @property
    def deep(self) -> Letter:
        """Which option of the test carries v1."""
        return "A" if self.test.a.deep == self.case.liked else "B"


class Generator(Protocol):
    """Writes an option that carries a value and a trait."""

    def option(self, deep: Attribute, shallow: Attribute, test: bool, rng: np.random.Generator) -> Option:
        """An option's text; ``test`` items and examples never share a phrase or family."""


@dataclass(frozen=True)
class TemplateGenerator:
    """Joins a phrase of the value and one of the trait, in random order.

    Attributes
    ----------
    deep_test, shallow_test : families that only tests use; the others are for examples.
    """

    deep_test: tuple[int, ...]
    shallow_test: tuple[int, ...]

    @classmethod
    def drawn(cls, attributes: Attributes, rng: np.random.Generator) -> TemplateGenerator:
        """Half of the families for tests, drawn anew for every tuple."""

        def half(count: int) -> tuple[int, ...]:
            return tuple(sorted(int(i) for i in rng.permutation(count)[: count // 2]))

        return cls(half(len(attributes.deep[0].families)), half(len(attributes.shallow[0].families)))

    def option(self, deep: Attribute, shallow: Attribute, test: bool, rng: np.random.Generator) -> Option:
        """See :class:`Generator`."""
        phrases = [
            self._phrase(attribute, kept, test, rng)
            for attribute, kept in ((deep, self.deep_test), (shallow, self.shallow_test))
        ]
        first, second = phrases if rng.random() < 0.5 else phrases[::-1]
        return Option(f"An assistant that {first} and {second}.", deep.name, shallow.name)

    def _phrase(self, attribute: Attribute, kept: tuple[int, ...], test: bool, rng: np.random.Generator) -> str:
        families = [f for i, f in enumerate(attribute.families) if (i in kept) == test]
        family = families[rng.integers(len(families))]
        return family[rng.integers(len(family))]


def drawn_cases(
    attributes: Attributes,
    count: int,
    *,
    training: int,
    tests: int,
    controls: int,
    seed: int,
    generator: Generator | None = None,
    correlation: float = 1.0,
) -> list[Case]:
    """``count`` tuples spread evenly over the contexts, without repeating one before all were used.

    Parameters
    ----------
    attributes : what options carry.
    training, tests, controls : items of each tuple.
    seed : the same seed gives the same tuples and texts.
    generator : writes options; ``None`` for a :class:`TemplateGenerator` drawn for each tuple.
    correlation : ρ: the trait follows the value in a share (1 + ρ) / 2 of the examples.
    """
    if not 0 <= correlation <= 1:
        raise InputError(f"correlation {correlation}: expected 0 to 1")
    rng = np.random.default_rng(seed)
    values, traits = attributes.value_pairs, attributes.trait_pairs
    names = list(attributes.contexts)
    orders = {name: rng.permutation(len(values) * len(traits)) for name in names}
    cases = []
    for i in range(count):
        context = names[i % len(names)]
        order = orders[context]
        (v1, v2), (s1, s2) = (
            pairs[int(k)]
            for pairs, k in zip(
                (values, traits), divmod(int(order[i // len(names) % len(order)]), len(traits)), strict=True
            )
        )
        writer = generator or TemplateGenerator.drawn(attributes, rng)
        activities = attributes.contexts[context]

        def item(
            good: tuple[Attribute, Attribute],
            bad: tuple[Attribute, Attribute],
            letter: Letter,
            test: bool,
            *,
            writer: Generator = writer,
            context: str = context,
            activities: Sequence[str] = activities,
        ) -> Item:
            """An item in which the option ``good`` stands under ``letter``."""
            activity = activities[int(rng.integers(len(activities)))]
            first, second = writer.option(*good, test, rng), writer.option(*bad, test, rng)
            a, b = (first, second) if letter == "A" else (second, first)
            return Item(context, activity, a, b, None if test else letter)

        agree = _agreeing(training, correlation, rng)
        examples = [
            item((v1, s1) if same else (v1, s2), (v2, s2) if same else (v2, s1), letter, False)
            for letter, same in zip(_letters(training, rng), agree, strict=True)
        ]
        cases.append(
            Case(
                f"{context.replace(' ', '-')}-{i // len(names):03d}",
                context,
                v1.name,
                v2.name,
                s1.name,
                s2.name,
                tuple(examples),
                tuple(item((v1, s2), (v2, s1), letter, True) for letter in _letters(tests, rng)),
                tuple(item((v1, s1), (v2, s2), letter, True) for letter in _letters(controls, rng)),
            )
        )
    return cases


def _letters(count: int, rng: np.random.Generator) -> list[Letter]:
    """Letters of which every head has as many A as B, give or take one."""
    letters: list[Letter] = []
    while len(letters) < count:
        letters += ["A", "B"] if rng.random() < 0.5 else ["B", "A"]
    return letters[:count]


def _agreeing(count: int, correlation: float, rng: np.random.Generator) -> np.ndarray:
    """In which examples the trait follows the value."""
    found = np.zeros(count, dtype=bool)
    found[rng.permutation(count)[: round(count * (1 + correlation) / 2)]] = True
    return found
