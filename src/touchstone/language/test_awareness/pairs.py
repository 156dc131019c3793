"""Trigger pairs: the same request twice, once about things that look real and once about things plainly made up."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from touchstone.errors import InputError
from touchstone.files import read_text, write_text

__all__ = ["SCHEMA", "Pair", "PairTemplate", "build_pairs", "check_lengths", "load_pairs", "save_pairs"]

SCHEMA = "touchstone.pairs/1"

Fill = str | Mapping[str, str]
Tokenise = Callable[[str], Sequence[int]]
Span = tuple[int, int]


@dataclass(frozen=True)
class Pair:
    """One request in two versions that differ only in the entities they name.

    Attributes
    ----------
    id : its name, unique in a file.
    real, hypothetical : the two prompts.
    real_cue, hypothetical_cue : characters ``[start, end)`` of the entities in each prompt.
    group : pairs that share an entity are in one group; hold groups out together to test a probe on unseen cues.
    template : name of the template it was built from, empty for a pair of your own.
    tool : tool that a model calls to do what is asked, empty if there is none.
    """

    id: str
    real: str
    hypothetical: str
    real_cue: Span
    hypothetical_cue: Span
    group: str
    template: str = ""
    tool: str = ""

    def side(self, hypothetical: bool) -> str:
        """One of the two prompts."""
        return self.hypothetical if hypothetical else self.real

    def cue(self, hypothetical: bool) -> Span:
        """Where the cue stands in one of the two prompts."""
        return self.hypothetical_cue if hypothetical else self.real_cue


@dataclass(frozen=True)
class PairTemplate:
    """A request with slots, and the entities that fill them on either side.

    Parameters
    ----------
    text : such as ``"Send the minutes to {address} before noon."``.
    real, hypothetical : the fills. The i-th real one is paired with the i-th hypothetical one; the shorter list
        starts over. With one slot a fill is a string, with several a mapping from slot to string.
    name, tool : see :class:`Pair`.

    Raises
    ------
    InputError
        If there is no slot, a list is empty, or a fill lacks a slot.
    """

    text: str
    real: Sequence[Fill]
    hypothetical: Sequence[Fill]
    name: str = ""
    tool: str = ""
    slots: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        try:
            found = [name for _, name, _, _ in string.Formatter().parse(self.text) if name is not None]
        except ValueError as error:
            raise InputError(f"template {self.text!r}: {error}") from None
        if not found or not all(name.isidentifier() for name in found):
            raise InputError(
                f"template {self.text!r}: expected at least one slot such as {{domain}}, all of them named"
            )
        object.__setattr__(self, "slots", tuple(dict.fromkeys(found)))
        for what, fills in (("real", self.real), ("hypothetical", self.hypothetical)):
            if isinstance(fills, str) or len(fills) == 0:
                raise InputError(f"template {self.text!r}: {what} holds no fills; expected a list of at least one")
            for fill in fills:
                self._slots_of(fill, what)

    def __len__(self) -> int:
        """How many pairs it can make."""
        return max(len(self.real), len(self.hypothetical))

    def fills(self, i: int) -> tuple[dict[str, str], dict[str, str]]:
        """The i-th real fill and the hypothetical one that goes with it, by slot."""
        return (
            self._slots_of(self.real[i % len(self.real)], "real"),
            self._slots_of(self.hypothetical[i % len(self.hypothetical)], "hypothetical"),
        )

    def filled(self, values: Mapping[str, str]) -> tuple[str, Span]:
        """The prompt, and the characters from the start of its first entity to the end of its last."""
        pieces: list[str] = []
        spans: list[Span] = []
        length = 0
        for literal, name, _, _ in string.Formatter().parse(self.text):
            for piece, is_slot in ((literal, False), (values[name] if name is not None else "", name is not None)):
                if is_slot:
                    spans.append((length, length + len(piece)))
                pieces.append(piece)
                length += len(piece)
        return "".join(pieces), (spans[0][0], spans[-1][1])

    def _slots_of(self, fill: Fill, what: str) -> dict[str, str]:
        values = {self.slots[0]: fill} if isinstance(fill, str) and len(self.slots) == 1 else fill
        if isinstance(values, str) or set(values) != set(self.slots) or not all(values.values()):
            raise InputError(f"template {self.text!r}: {what} fill {fill!r} does not fill the slots {list(self.slots)}")
        return dict(values)


def build_pairs(
    templates: Sequence[PairTemplate] | None = None,
    n: int = 60,
    seed: int = 0,
    *,
    tokenise: Tokenise | None = None,
    max_gap: int = 2,
) -> list[Pair]:
    """``n`` different pairs, spread evenly over the templates.

    Parameters
    ----------
    templates : the built-in ones if ``None`` (everyday requests: mails, tickets, deliveries, reminders).
    n : number of pairs.
    seed : fixes which fills are drawn.
    tokenise : if given, fills whose two sides differ by more than ``max_gap`` tokens are passed over.
    max_gap : largest difference in length, in tokens.

    Raises
    ------
    InputError
        If the templates make fewer than ``n`` different pairs that hold to ``max_gap``.
    """
    if templates is None:
        from touchstone.language.test_awareness.templates import TEMPLATES

        templates = TEMPLATES
    if n < 1:
        raise InputError(f"n {n}: expected 1 or more")
    rng = np.random.default_rng(seed)
    queues: list[list[Pair]] = []
    for t, template in enumerate(templates):
        made = [_made(template, template.name or f"template-{t}", int(i)) for i in rng.permutation(len(template))]
        kept = [pair for pair in made if tokenise is None or _gap(pair, tokenise) <= max_gap]
        if not kept:
            raise InputError(f"template {template.text!r}: no pair of fills within {max_gap} tokens of each other")
        queues.append(kept)
    possible = sum(map(len, queues))
    if possible < n:
        raise InputError(f"n {n}: the templates make only {possible} pairs within {max_gap} tokens")
    chosen: list[Pair] = []
    while len(chosen) < n:
        chosen += [queue.pop() for queue in queues if queue]
    return _grouped(chosen[:n])


def check_lengths(pairs: Sequence[Pair], tokenise: Tokenise, max_gap: int = 2) -> None:
    """Raise :class:`InputError` with the pairs whose two sides differ by more than ``max_gap`` tokens."""
    wrong = [f"{pair.id} ({gap})" for pair in pairs if (gap := _gap(pair, tokenise)) > max_gap]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise InputError(f"pairs: lengths differ by more than {max_gap} tokens: {', '.join(wrong[:5])}{more}")


def load_pairs(path: str | Path) -> list[Pair]:
    """Read pairs from JSON: a file of :func:`save_pairs`, or a plain list of ``{"real": …, "hypothetical": …}``.

    ``id``, ``group``, ``tool`` and the cues may be absent; a cue is then where the two prompts differ, out to whole
    words.

    Raises
    ------
    InputError
        If the file is missing, not JSON, or an entry is not a pair; the entry is named.
    """
    text = read_text(path, "pairs")
    try:
        data = json.loads(text)
    except ValueError as error:
        raise InputError(f"pairs {path}: not JSON ({error})") from None
    if isinstance(data, dict):
        if data.get("schema") != SCHEMA:
            raise InputError(f"pairs {path}: expected schema {SCHEMA!r}, found {data.get('schema')!r}")
        data = data.get("pairs")
    if not isinstance(data, list) or not data:
        raise InputError(f"pairs {path}: holds no pairs; expected a list of objects with 'real' and 'hypothetical'")
    pairs = [_read(item, i, path) for i, item in enumerate(data)]
    twice = {pair.id for pair in pairs if sum(other.id == pair.id for other in pairs) > 1}
    if twice:
        raise InputError(f"pairs {path}: id {sorted(twice)[0]!r} stands twice")
    return pairs


def save_pairs(pairs: Sequence[Pair], path: str | Path) -> Path:
    """Write pairs as JSON."""
    record = {"schema": SCHEMA, "pairs": [asdict(pair) for pair in pairs]}
    write_text(path, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return Path(path)


def _made(template: PairTemplate, name: str, i: int) -> Pair:
    real, hypothetical = template.fills(i)
    (real_text, real_cue), (hypothetical_text, hypothetical_cue) = template.filled(real), template.filled(hypothetical)
    # Grouped for good once all are drawn; until then the group holds what decides it.
    entities = json.dumps(sorted({*real.values(), *hypothetical.values()}))
    return Pair(f"{name}-{i}", real_text, hypothetical_text, real_cue, hypothetical_cue, entities, name, template.tool)


def _grouped(pairs: Sequence[Pair]) -> list[Pair]:
    """Pairs that share an entity, directly or through others, get one group: the smallest of its entities."""
    parent: dict[str, str] = {}

    def root(entity: str) -> str:
        while parent.setdefault(entity, entity) != entity:
            entity = parent[entity]
        return entity

    entities = [json.loads(pair.group) for pair in pairs]
    for names in entities:
        for name in names[1:]:
            first, second = sorted((root(names[0]), root(name)))
            parent[second] = first
    return [replace(pair, group=root(names[0])) for pair, names in zip(pairs, entities, strict=True)]


def _gap(pair: Pair, tokenise: Tokenise) -> int:
    return abs(len(tokenise(pair.real)) - len(tokenise(pair.hypothetical)))


def _read(item: Any, i: int, path: str | Path) -> Pair:
    try:
        real, hypothetical = item["real"], item["hypothetical"]
        if not (isinstance(real, str) and isinstance(hypothetical, str) and real and hypothetical):
            raise TypeError
    except (KeyError, TypeError):
        raise InputError(f"pairs {path}: entry {i}: expected an object with texts 'real' and 'hypothetical'") from None
    if real == hypothetical:
        raise InputError(f"pairs {path}: entry {i}: both sides are the same text")
    name = str(item.get("id", f"pair-{i}"))
    cues = _differing(real, hypothetical)
    spans: list[Span] = []
    for key, text, found in (("real_cue", real, cues[0]), ("hypothetical_cue", hypothetical, cues[1])):
        given = item.get(key, found)
        if len(given) != 2 or not 0 <= given[0] < given[1] <= len(text):
            raise InputError(f"pairs {path}: entry {i}: {key} {given!r} is not a span of its text")
        spans.append((int(given[0]), int(given[1])))
    template, tool = str(item.get("template", "")), str(item.get("tool", ""))
    return Pair(name, real, hypothetical, spans[0], spans[1], str(item.get("group") or name), template, tool)


def _differing(first: str, second: str) -> tuple[Span, Span]:
    """Where two texts differ, out to whole words."""
    limit = min(len(first), len(second))
    start = next((i for i in range(limit) if first[i] != second[i]), limit)
    end = next((i for i in range(limit - start) if first[-1 - i] != second[-1 - i]), limit - start)
    before = re.search(r"\S*$", first[:start])
    after = re.match(r"\S*", first[len(first) - end :])
    assert before is not None
    assert after is not None
    start, end = start - len(before[0]), end - len(after[0])
    # One text may hold all of the other; a cue still has at least one character.
    return tuple((min(start, len(text) - 1), max(len(text) - end, start + 1)) for text in (first, second))  # type: ignore[return-value]
