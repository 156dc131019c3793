"""Who can be a Primary or a Guardian: a function, a local model, a served model or a person, behind one protocol.

A party scores the options of queries, larger is better. It says ``how`` it does so, because a router that was
calibrated on scores of one kind is not valid for another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from touchstone.errors import InputError, TouchstoneError

if TYPE_CHECKING:
    from touchstone.decisions.conformal_arbitrage.option_scorer import OptionScorer

__all__ = [
    "Answer",
    "FunctionParty",
    "LocalParty",
    "Messages",
    "Party",
    "Query",
    "UnavailableError",
    "checked",
    "text_of",
]

Messages = str | Sequence[dict[str, str]]


class UnavailableError(TouchstoneError):
    """A party did not answer: a server is down or answers nonsense, or no person was there in time."""


@dataclass(frozen=True)
class Query:
    """A question with a finite set of answers.

    Attributes
    ----------
    id : its name in logs.
    prompt : a text, or the messages of a conversation.
    options : the answers there are.
    """

    id: str
    prompt: Messages
    options: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """Scores of a query's options, in their order, and what they took.

    Attributes
    ----------
    scores : one an option, larger is better.
    tokens : that a server counted.
    minutes : that a person took.
    """

    scores: tuple[float, ...]
    tokens: int = 0
    minutes: float = 0.0


class Party(Protocol):
    """Scores options; ``name`` is for logs, ``how`` for checks that scores are of the kind calibrated on."""

    name: str
    how: str

    def score(self, queries: Sequence[Query]) -> list[Answer]:
        """Scores of each query's options, in the order of the queries."""


class FunctionParty:
    """A function of prompt and options that returns a score for each; called for one query after the other."""

    def __init__(
        self, function: Callable[[Messages, tuple[str, ...]], Sequence[float]], *, name: str = "", how: str = "function"
    ) -> None:
        self.function = function
        self.name = name or getattr(function, "__name__", "function")
        self.how = how

    def score(self, queries: Sequence[Query]) -> list[Answer]:
        return [Answer(tuple(map(float, self.function(query.prompt, query.options)))) for query in queries]


class LocalParty:
    """A language model on this machine: the log-probability of each option after the prompt, see :class:`OptionScorer`.

    With ``chat`` off, options continue the last message as plain text.
    """

    def __init__(self, scorer: OptionScorer) -> None:
        self.scorer = scorer
        self.name = scorer.source
        self.how: str = scorer.reduce
        # A model on one machine computes one batch at a time.
        self._lock = threading.Lock()

    def score(self, queries: Sequence[Query]) -> list[Answer]:
        prompts = [text_of(query.prompt) for query in queries]
        with self._lock:
            rows = self.scorer.score(prompts, [query.options for query in queries])
        return [Answer(tuple(row)) for row in rows]


def text_of(prompt: Messages) -> str:
    """The text of a prompt: the last message of a conversation."""
    return prompt if isinstance(prompt, str) else str(prompt[-1]["content"])


def checked(answer: Answer, query: Query, party: Party) -> Answer:
    """The answer, if it has a finite score for each option.

    Raises
    ------
    UnavailableError
        If it has not.
    """
    from math import isfinite

    if len(answer.scores) != len(query.options):
        raise UnavailableError(
            f"{party.name}: {len(answer.scores)} scores for the {len(query.options)} options of query {query.id!r}"
        )
    if not all(map(isfinite, answer.scores)):
        raise UnavailableError(f"{party.name}: a score of query {query.id!r} is not finite")
    return answer


def party(description: str, *, key_variable: str = "OPENAI_API_KEY", timeout: float = 60.0) -> Party:
    """A party by one line of text, as the command line takes it.

    ``http://host:8000/v1#model`` : a server, asked for a letter; ``…#model?scores`` asks it for numbers.
    ``queue:FILE`` : people, by a queue file. ``local:MODEL`` : a language model here; ``local:MODEL?mean`` to reduce
    otherwise. ``call:package.module:function`` : a function of (prompt, options).

    Parameters
    ----------
    key_variable : environment variable with the server's key.
    timeout : seconds to wait for a server or a person.

    Raises
    ------
    InputError
        If the line is none of these.
    """
    kind, _, rest = description.partition(":")
    if kind in ("http", "https"):
        from touchstone.decisions.conformal_arbitrage.endpoint import EndpointParty

        url, _, model = description.partition("#")
        model, _, ask = model.partition("?")
        return EndpointParty(url, model, ask=ask or "letter", key_variable=key_variable, timeout=timeout)
    if kind == "queue" and rest:
        from touchstone.decisions.conformal_arbitrage.queue import QueueParty

        return QueueParty(rest, timeout=timeout)
    if kind == "local" and rest:
        from touchstone.decisions.conformal_arbitrage.option_scorer import OptionScorer
        from touchstone.language import LanguageModel

        name, _, reduce = rest.partition("?")
        return LocalParty(OptionScorer(LanguageModel.load(name), reduce=reduce or "sum"))  # type: ignore[arg-type]
    if kind == "call" and rest.count(":") == 1:
        return FunctionParty(_function(rest), name=rest)
    raise InputError(
        f"party {description!r}: expected http://HOST/v1#MODEL, queue:FILE, local:MODEL or call:MODULE:FUNCTION"
    )


def _function(place: str) -> Callable[[Messages, tuple[str, ...]], Sequence[float]]:
    import sys
    from importlib import import_module

    module, name = place.split(":")
    # As with `python -m`: a module beside the place where the command was called.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InputError(f"party call:{place}: cannot be imported ({error})") from None
    if not callable(found):
        raise InputError(f"party call:{place}: is not a function")
    return found
