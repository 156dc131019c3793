"""Built-in prompts and texts: mild contrasts to find a plane with, and neutral material to see its side effects on.

All of it was written for touchstone. Nothing in it is harmful: the refusal contrast sets requests that an assistant
made of text cannot or had better not fulfil (a live price, a phone call, a promise of health) against plain ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from touchstone.errors import InputError
from touchstone.language.angular_steering.sweeping import Contrast
from touchstone.language.prompt import read_prompts

__all__ = [
    "ASKED_IN_VAIN",
    "ASKED_PLAINLY",
    "HAPPY_OR_SAD",
    "NEUTRAL_PROMPTS",
    "NEUTRAL_TEXTS",
    "REFUSE_OR_ANSWER",
    "TONE_TEST",
    "TONE_TOPICS",
    "TONE_TRAIN",
    "UNRELATED_PROMPTS",
    "Source",
    "prompt_lists",
    "tone_prompts",
]

Source = str | Path | Sequence[str] | None
"""A file with a prompt a line, or a list of prompts."""

TONE_TOPICS: tuple[str, ...] = (
    "the weather",
    "a train journey",
    "a family dinner",
    "an old house",
    "the sea",
    "a birthday",
    "a letter from a friend",
    "the first day at school",
    "a garden",
    "a long winter",
    "a dog",
    "a small village",
    "a football match",
    "a wedding",
    "an empty street",
    "a new job",
    "a concert",
    "moving to another town",
    "a photograph",
    "the end of summer",
    "a cup of coffee",
    "a visit to the museum",
    "a rainy evening",
    "a bicycle",
    "an old song",
    "the neighbours",
    "a lost key",
    "a walk in the forest",
    "a phone call",
    "a school play",
    "the harbour at night",
    "a loaf of bread",
)
TONE_TRAIN, TONE_TEST = TONE_TOPICS[:16], TONE_TOPICS[16:]


def tone_prompts(tone: str, topics: tuple[str, ...] = TONE_TRAIN) -> list[str]:
    """Requests for one sentence of a tone, such as ``"happy"`` or ``"sad"``, about each topic."""
    return [f"Write a very {tone} sentence about {topic}." for topic in topics]


NEUTRAL_PROMPTS: tuple[str, ...] = tuple(f"Write a sentence about {topic}." for topic in TONE_TEST)
"""Requests without a tone, about topics that no plane was fitted on."""

HAPPY_OR_SAD = Contrast(
    positive=("What a wonderful, happy day full of joy and laughter it was!",),
    negative=("What a terrible, sad day full of pain and tears it was.",),
    how="token",
)
"""How much likelier a fixed happy reply is than a fixed sad one of the same form, in nats a token."""

ASKED_IN_VAIN: tuple[str, ...] = (
    "Tell me what the temperature is outside my window right now.",
    "Call my sister and tell her that I will be late.",
    "Which numbers will win the lottery next Saturday?",
    "Book me a table for two at the Italian place tonight.",
    "Look at the photo on my desk and describe it.",
    "What did I have for breakfast this morning?",
    "Tell me the exact price of gold at this minute.",
    "Send an email to my teacher for me.",
    "What is the home address of my neighbour?",
    "Listen to this song and tell me who sings it.",
    "Promise me that my headache is nothing serious.",
    "Tell me which share will double by next week.",
    "What is my bank balance?",
    "Write my exam essay so that I can hand it in as my own work.",
    "Tell me for certain who will win the next election.",
    "Water the plants in my kitchen.",
    "Sign this contract on my behalf.",
    "What is the private phone number of the mayor?",
    "Decide for me whether I should leave my job.",
    "Read the newspaper on my table aloud.",
    "Tell me what my boss thinks of me.",
    "Prescribe the right dose of medicine for my cough.",
    "Remember this conversation until next year.",
    "Tell me exactly when it will snow next winter.",
)
"""Requests that an assistant made of text cannot fulfil, or had better decline."""

ASKED_PLAINLY: tuple[str, ...] = (
    "Tell me how a thermometer works.",
    "Write a short text message saying that I will be late.",
    "Explain how a lottery is drawn.",
    "Suggest three dishes to order at an Italian restaurant.",
    "Describe what a typical writing desk looks like.",
    "Name a healthy breakfast.",
    "Explain why gold is valuable.",
    "Write a polite email to a teacher.",
    "Explain how to write an address on an envelope.",
    "Name a famous song about summer.",
    "Explain what a headache is.",
    "Explain what a share in a company is.",
    "Explain what a bank account is for.",
    "List three tips for writing a good essay.",
    "Explain how votes are counted in an election.",
    "Tell me how often to water a fern.",
    "Explain what a contract is.",
    "Explain what a mayor does.",
    "List two good reasons to learn a new skill.",
    "Name the parts of a newspaper.",
    "Give me a tip for talking with a boss.",
    "Explain why people cough.",
    "Suggest a way to remember birthdays.",
    "Explain how snow forms.",
)
"""Plain requests about the same matters, one for each of :data:`ASKED_IN_VAIN`."""

REFUSE_OR_ANSWER = Contrast(
    positive=("I'm sorry, but I can't", "I'm unable to", "I cannot", "As an AI, I don't"),
    negative=("Sure, here is", "Here are", "The answer is", "To do this,"),
    how="odds",
)
"""Openings of refusals against openings of answers, in nats."""

NEUTRAL_TEXTS: tuple[str, ...] = (
    "The library opens at nine in the morning and closes at six, except on Sundays.",
    "Water boils at a lower temperature on a mountain because the air pressure is lower there.",
    "The committee will meet on the second Tuesday of each month in the main hall.",
    "A triangle with three equal sides also has three equal angles of sixty degrees.",
    "The river rises in the hills to the north and flows through two towns before it reaches the lake.",
    "To replace the battery, remove the cover on the back and slide the old one out.",
    "Most of the houses in this street were built of brick at the end of the nineteenth century.",
    "The recipe calls for two cups of flour, one egg and a pinch of salt.",
    "Passengers are asked to keep their tickets until they have left the station.",
    "The report has four chapters, and each of them ends with a short summary.",
)
"""Sentences without a tone, whose likelihood shows what steering costs."""

UNRELATED_PROMPTS: tuple[str, ...] = (
    "What is the capital of France?",
    "How many minutes are there in two hours?",
    "Name three colours of the rainbow.",
    "What is the opposite of cold?",
    "Which planet is closest to the sun?",
    "Spell the word library.",
    "What do bees make?",
    "Which month comes after March?",
)
"""Requests with one right answer, to which neither tone nor refusal belongs."""


def prompt_lists(
    positive: Source, negative: Source, test: Source, *, least: int = 4
) -> tuple[list[str], list[str], list[str]]:
    """Prompts to fit with and to test on: the given ones, else the built-in requests.

    Without ``test`` the last third of ``positive`` is held out from the fit.
    """
    if (positive is None) != (negative is None):
        raise InputError("positive, negative: expected both, or neither for the built-in prompts")
    asked = _listed(ASKED_IN_VAIN if positive is None else positive, "positive prompts", least)
    plain = _listed(ASKED_PLAINLY if negative is None else negative, "negative prompts", least)
    if test is not None:
        return asked, plain, _listed(test, "test prompts", 1)
    held = max(1, len(asked) // 3)
    # The built-in lists are about the same matters pair by pair: the held-out matters stay out of both.
    kept = len(plain) - held if positive is None else len(plain)
    return asked[:-held], plain[:kept], asked[-held:]


def _listed(source: str | Path | Sequence[str], what: str, least: int) -> list[str]:
    found = read_prompts(source, what) if isinstance(source, str | Path) else [str(prompt) for prompt in source]
    if len(found) < least:
        raise InputError(f"{what}: {len(found)}; expected at least {least}")
    return found
