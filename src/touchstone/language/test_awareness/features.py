"""Features: what a model's residual stream holds, at every layer, over the tokens that show or follow awareness."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from touchstone.errors import InputError
from touchstone.language.layout import Site
from touchstone.language.test_awareness.labels import Label, Rule
from touchstone.language.test_awareness.pairs import Pair
from touchstone.language.test_awareness.quotes import find_quote, sentences
from touchstone.language.test_awareness.reading import Space, joint, layer_sites, span_means, tokens_in, tokens_of
from touchstone.tensors import read_tensors, write_tensors

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = ["Cell", "Features", "Pooling", "balanced", "build_grid", "cell_features", "cue_features", "span_features"]

SCHEMA = "touchstone.awareness-features/1"
Pooling = Literal["span", "whole", "last", "end"]


@dataclass(frozen=True)
class Features:
    """Mean activations over spans, with their classes.

    Attributes
    ----------
    x : float32 [n, L + 1, d]: at layer 0 the embedding, at layer l the residual stream after block l.
    y : int64 [n]: 1 for aware (or made up), 0 for not.
    groups : str [n]: rows of one group never stand on both sides of a split.
    tokens : the token ids that were pooled, for baselines that see words and nothing else.
    layers : which layers ``x`` holds, in its order.
    """

    x: np.ndarray
    y: np.ndarray
    groups: np.ndarray
    tokens: tuple[tuple[int, ...], ...]
    layers: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, chosen: np.ndarray) -> Features:
        """Some of the rows, by index or mask."""
        index = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
        return Features(
            self.x[index], self.y[index], self.groups[index], tuple(self.tokens[i] for i in index), self.layers
        )

    def save(self, path: str | Path) -> Path:
        """Write one ``.safetensors`` file with a JSON header."""
        record = {
            "schema": SCHEMA,
            "groups": [str(group) for group in self.groups],
            "tokens": [list(ids) for ids in self.tokens],
            "layers": list(self.layers),
        }
        return write_tensors(path, {"x": self.x, "y": self.y}, record)

    @classmethod
    def load(cls, path: str | Path) -> Features:
        """Read a file of :meth:`save`; raises :class:`InputError` if it is missing, damaged or something else."""
        tensors, record = read_tensors(path, SCHEMA, "features")
        try:
            found = cls(
                tensors["x"],
                tensors["y"],
                np.array(record["groups"], dtype=str),
                tuple(tuple(map(int, ids)) for ids in record["tokens"]),
                tuple(map(int, record["layers"])),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"features {path}: damaged ({type(error).__name__}: {error})") from None
        shape = (len(found.y), len(found.layers))
        if (
            found.x.ndim != 3
            or found.x.shape[:2] != shape
            or not len(found.groups) == len(found.tokens) == len(found.y)
        ):
            raise InputError(f"features {path}: damaged (shapes do not agree)")
        return found


@dataclass(frozen=True)
class Cell:
    """A prompt of the 2 × 2 of cue and format.

    Attributes
    ----------
    prompt : the request in its format.
    cue : characters of its entities.
    hypothetical : whether they are made up: the class.
    format : which format.
    group : the pair's group.
    """

    prompt: str
    cue: tuple[int, int]
    hypothetical: bool
    format: int
    group: str


def build_grid(
    pairs: Sequence[Pair], formats: Sequence[str], *, design: Literal["crossed", "confounded"] = "crossed"
) -> list[Cell]:
    """Prompts in which cue and format do not go together, so that a probe of the one cannot be a detector of the other.

    Parameters
    ----------
    pairs : the requests.
    formats : two or more layouts with one ``{}`` for the request.
    design : ``"crossed"``: each side of each pair in every format. ``"confounded"``, for comparison: real requests in
        the first format and made-up ones in the last, as where tests and everyday use differ in both.
    """
    if len(formats) < 2 or any(layout.count("{}") != 1 for layout in formats):
        raise InputError("formats: expected two or more texts with one {} each")
    if design not in ("crossed", "confounded"):
        raise InputError(f"design {design!r}: expected 'crossed' or 'confounded'")
    cells = []
    for pair in pairs:
        for hypothetical in (False, True):
            chosen = range(len(formats)) if design == "crossed" else [len(formats) - 1 if hypothetical else 0]
            for k in chosen:
                before, after = formats[k].split("{}")
                start, end = pair.cue(hypothetical)
                cue = (len(before) + start, len(before) + end)
                text = before + pair.side(hypothetical) + after
                cells.append(Cell(text, cue, hypothetical, k, pair.group))
    return cells


def cue_features(
    model: LanguageModel,
    pairs: Sequence[Pair],
    *,
    tokens: int = 8,
    group: Literal["pair", "cue"] = "pair",
    system: str | None = None,
    layers: Sequence[int] | Literal["all"] = "all",
    space: Space = "residual",
    batch_size: int = 32,
    progress: Callable[[int], None] | None = None,
) -> Features:
    """Features of a model that does not reason: means over the tokens that follow a cue, which both sides of a pair
    share.

    Parameters
    ----------
    model : the model.
    pairs : trigger pairs.
    tokens : how many tokens after the cue are pooled.
    group : ``"pair"`` keeps the two sides of a pair together; ``"cue"`` all pairs that share an entity.
    system : system message.
    layers : layers to read, ``"all"`` for the embedding and every block.
    space : what is read, see :func:`~touchstone.language.test_awareness.reading.layer_sites`.
    batch_size, progress : see :meth:`LanguageModel.generate`.

    Raises
    ------
    InputError
        If a prompt has no token after its cue.
    """
    cells = [
        Cell(pair.side(side), pair.cue(side), side, 0, pair.id if group == "pair" else pair.group)
        for pair in pairs
        for side in (False, True)
    ]
    return cell_features(
        model, cells, tokens=tokens, system=system, layers=layers, space=space, batch_size=batch_size, progress=progress
    )


def cell_features(
    model: LanguageModel,
    cells: Sequence[Cell],
    *,
    tokens: int = 8,
    system: str | None = None,
    layers: Sequence[int] | Literal["all"] = "all",
    space: Space = "residual",
    batch_size: int = 32,
    progress: Callable[[int], None] | None = None,
) -> Features:
    """The same for prompts of :func:`build_grid`; see :func:`cue_features`."""
    if tokens < 1:
        raise InputError(f"tokens {tokens}: expected 1 or more")
    ids, spans = [], []
    for cell in cells:
        text = model.render(cell.prompt, system=system)
        at = text.rfind(cell.prompt)
        if at < 0:
            raise InputError(f"prompt {cell.prompt[:40]!r}: the chat template changes it, so its cue cannot be found")
        row, offsets = tokens_of(model, text, templated=model.tokenizer.chat_template is not None)
        # A token may hold the cue's last character and more: those that are pooled begin after it.
        after = [i for i, (a, b) in enumerate(offsets) if a >= at + cell.cue[1] and a < b <= at + len(cell.prompt)]
        if not after:
            raise InputError(f"prompt {cell.prompt[:40]!r}: no token follows its cue")
        ids.append(row)
        spans.append([(after[0], after[:tokens][-1] + 1)])
    chosen, sites = _layers(model, layers, space)
    x = span_means(model, ids, spans, sites, batch_size=batch_size, progress=progress)
    return Features(
        x,
        np.array([int(cell.hypothetical) for cell in cells]),
        np.array([cell.group for cell in cells], dtype=str),
        tuple(tuple(row[a:b]) for row, [(a, b)] in zip(ids, spans, strict=True)),
        chosen,
    )


def span_features(
    model: LanguageModel,
    labels: Sequence[Label],
    *,
    pooling: Pooling = "span",
    rule: Rule = "paper",
    layers: Sequence[int] | Literal["all"] = "all",
    space: Space = "residual",
    balance: bool = True,
    seed: int = 4,
    system: str | None = None,
    batch_size: int = 32,
    progress: Callable[[int], None] | None = None,
) -> Features:
    """Features of a model that reasons: the chat prompt and the reasoning are read once, and means are kept.

    Parameters
    ----------
    model : the model that wrote the traces.
    labels : judged traces.
    pooling : ``"span"``: one row a quote, the mean over its tokens. A trace without awareness has nothing to quote:
        one of its sentences is drawn, as long as a quote is. ``"whole"``: one row a trace, the mean over its
        reasoning. ``"last"``: one row a trace, the reasoning's last token. ``"end"``: one row a trace, the last token
        of the mark that ends the reasoning, from where the answer is written.
    rule : which traces are of which class, see :meth:`Label.positive`.
    layers, space : see :func:`cue_features`.
    balance : drop random rows of the larger class until both are of one size.
    seed : fixes which sentences are drawn and which rows are dropped; 4 is the official code's.
    system : system message under which the traces were written.
    batch_size, progress : see :meth:`LanguageModel.generate`.

    Raises
    ------
    InputError
        If a class is empty. Quotes are looked for in the reasoning only, never in the prompt.
    """
    if pooling not in ("span", "whole", "last", "end"):
        raise InputError(f"pooling {pooling!r}: expected 'span', 'whole', 'last' or 'end'")
    used = [(label, bool(kind)) for label in labels if (kind := label.positive(rule)) is not None]
    if pooling == "span":
        used = [(label, kind) for label, kind in used if not kind or label.evidence(rule)]
    for kind, what in ((True, "aware"), (False, "unaware")):
        if not any(found == kind for _, found in used):
            raise InputError(f"labels: no {what} trace under rule {rule!r}; a probe needs both classes")
    rng = np.random.default_rng(seed)
    lengths = [len(quote) for label, kind in used if kind for quote in label.evidence(rule)]
    ids, spans, kinds, groups = [], [], [], []
    for label, kind in used:
        row, found = _located(model, label, kind, pooling, rule, lengths, rng, system)
        if found:
            ids.append(row)
            spans.append(found)
            kinds += [int(kind)] * len(found)
            groups += [label.trace.group] * len(found)
    y, names = np.array(kinds), np.array(groups, dtype=str)
    pooled = tuple(tuple(row[a:b]) for row, found in zip(ids, spans, strict=True) for a, b in found)
    chosen, sites = _layers(model, layers, space)
    if balance:
        keep = np.zeros(len(y), dtype=bool)
        keep[balanced(y, rng)] = True
        # Rows that are dropped need not be read.
        ends = np.cumsum([len(found) for found in spans])
        flags = np.split(keep, ends[:-1])
        spans = [
            [span for span, here in zip(found, flag, strict=True) if here]
            for found, flag in zip(spans, flags, strict=True)
        ]
        y, names = y[keep], names[keep]
        pooled = tuple(tokens for tokens, here in zip(pooled, keep, strict=True) if here)
    x = span_means(model, ids, spans, sites, batch_size=batch_size, progress=progress)
    return Features(x, y, names, pooled, chosen)


def balanced(y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Indices, in order, of rows that leave both classes of one size: random rows of the larger one are dropped."""
    classes = [np.flatnonzero(y == value) for value in (0, 1)]
    size = min(map(len, classes))
    return np.sort(np.concatenate([rng.permutation(rows)[:size] for rows in classes]))


def _layers(
    model: LanguageModel, layers: Sequence[int] | Literal["all"], space: Space
) -> tuple[tuple[int, ...], list[Site]]:
    sites = layer_sites(model, space)
    chosen = tuple(range(len(sites))) if isinstance(layers, str) else tuple(int(layer) for layer in layers)
    if not chosen or not all(0 <= layer < len(sites) for layer in chosen):
        raise InputError(f"layers {layers!r}: expected 'all' or numbers from 0 (embedding) to {len(sites) - 1}")
    return chosen, [sites[layer] for layer in chosen]


def _located(
    model: LanguageModel,
    label: Label,
    aware: bool,
    pooling: Pooling,
    rule: Rule,
    lengths: Sequence[int],
    rng: np.random.Generator,
    system: str | None,
) -> tuple[list[int], list[tuple[int, int]]]:
    """Token ids of prompt and reasoning, and the spans of tokens to pool."""
    head, reasoning = model.render(label.trace.prompt, system=system), label.trace.reasoning
    templated = model.tokenizer.chat_template is not None
    gap = joint(head, reasoning, templated=templated)
    mark = label.trace.end if pooling == "end" and label.trace.answer is not None else ""
    row, offsets = tokens_of(model, head + gap + reasoning + mark, templated=templated)
    start = len(head) + len(gap)
    if pooling == "span":
        quotes = label.evidence(rule) if aware else label.quotes[0] or _drawn(reasoning, lengths, rng)
        places = [find_quote(quote, reasoning) for quote in quotes]
        pieces = [(start + place[0], start + place[1]) for place in places if place is not None]
    elif pooling == "end":
        pieces = [(start + len(reasoning), start + len(reasoning) + len(mark))] if mark else []
    else:
        pieces = [(start, start + len(reasoning))] if reasoning.strip() else []
    spans = [span for a, b in pieces if (span := tokens_in(offsets, a, b)) is not None]
    return row, [(b - 1, b) for _, b in spans] if pooling in ("last", "end") else spans


def _drawn(reasoning: str, lengths: Sequence[int], rng: np.random.Generator) -> tuple[str, ...]:
    """A sentence about as long as a quote, so that length does not tell the classes apart."""
    wanted = int(rng.choice(lengths)) if lengths else 80
    said = sentences(reasoning)
    if not said:
        return ()
    order = rng.permutation(len(said))
    return (said[min(order, key=lambda i: abs(len(said[i]) - wanted))],)
