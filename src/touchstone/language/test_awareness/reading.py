"""Reading activations: one forward pass a text, of which hooks keep only means over spans, at all layers at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from touchstone.errors import InputError
from touchstone.language import threads
from touchstone.language.batching import Batch, batches, pad_left, positions_of
from touchstone.language.layout import Site

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel

__all__ = [
    "Space",
    "Tokens",
    "joint",
    "layer_sites",
    "project_tokens",
    "span_means",
    "tokens_in",
    "tokens_of",
]

Tokens = tuple[list[int], list[tuple[int, int]]]
"""Token ids of a text, and the characters that each stands for."""

# Most tokens of a batch, padding included.
_BUDGET = 4096
# A shared head shorter than this costs more in its own pass than it saves.
_SHORTEST_HEAD = 16


Space = Literal["residual", "mlp_input"]


def layer_sites(model: LanguageModel, space: Space = "residual") -> list[Site]:
    """Where layers 0 (the embedding), 1, … L are read.

    ``"residual"``: layer l is what block l (counted from 1) leaves in the residual stream, as in the paper.
    ``"mlp_input"``: what the MLP of block l reads, which is also what its gate rows are multiplied with.
    """
    if space not in ("residual", "mlp_input"):
        raise InputError(f"space {space!r}: expected 'residual' or 'mlp_input'")
    return model.sites("embedding", "output" if space == "residual" else "mlp_input")


def joint(head: str, tail: str, *, templated: bool) -> str:
    """What stands between a rendered prompt and its reply: nothing, or the space that decoding has dropped.

    A chat template ends where a reply begins, and only one that ends with a letter could run into it.
    """
    if not tail or tail[:1].isspace() or head[-1:].isspace():
        return ""
    return "" if templated and not head[-1:].isalnum() else " "


def tokens_of(model: LanguageModel, text: str, *, templated: bool) -> Tokens:
    """Tokens of a text; ``templated`` if it went through the chat template, which writes the special tokens itself.

    Raises
    ------
    InputError
        If the tokenizer cannot tell which characters a token stands for, or the text is longer than the model's
        context.
    """
    if not getattr(model.tokenizer, "is_fast", False):
        raise InputError(f"model {model.source}: its tokenizer gives no offsets; expected a fast one")
    found = model.tokenizer(text, add_special_tokens=not templated, return_offsets_mapping=True, truncation=False)
    ids = [int(i) for i in found["input_ids"]]
    longest = getattr(model.module.config, "max_position_embeddings", None)
    if longest is not None and len(ids) > longest:
        raise InputError(f"text of {len(ids)} tokens: model {model.source} reads at most {longest}")
    return ids, [(int(start), int(end)) for start, end in found["offset_mapping"]]


def tokens_in(offsets: Sequence[tuple[int, int]], start: int, end: int) -> tuple[int, int] | None:
    """Tokens ``[first, after)`` that share a character with ``[start, end)``; ``None`` if there are none."""
    inside = [i for i, (a, b) in enumerate(offsets) if a < end and b > start]
    return (inside[0], inside[-1] + 1) if inside else None


def span_means(
    model: LanguageModel,
    ids: Sequence[Sequence[int]],
    spans: Sequence[Sequence[tuple[int, int]]],
    sites: Sequence[Site],
    *,
    batch_size: int = 32,
    progress: Callable[[int], None] | None = None,
) -> np.ndarray:
    """Mean activations over spans of tokens, float32 [spans, sites, width], the spans of each text in turn.

    No hidden state of a single token is kept: a pass leaves ``sites × width`` numbers a span behind.
    """
    starts = np.concatenate([[0], np.cumsum([len(rows) for rows in spans])]).astype(int)
    means = np.empty((int(starts[-1]), len(sites), model.width), dtype=np.float32)
    for row_spans, row, length in zip(spans, range(len(ids)), map(len, ids), strict=True):
        if any(not 0 <= a < b <= length for a, b in row_spans):
            raise InputError(f"spans of text {row}: one is empty or outside its {length} tokens")
    wanted = [i for i in range(len(ids)) if spans[i]]
    for batch in batches([len(ids[i]) for i in wanted], batch_size, budget=_BUDGET):
        rows = [wanted[k] for k in batch]
        first = min(start for i in rows for start, _ in spans[i])
        seen = _forward(model, ids, rows, sites, first, partial(_means, [spans[i] for i in rows]))
        for s, site in enumerate(sites):
            values = seen[site].cpu().numpy()
            for k, i in enumerate(rows):
                means[starts[i] : starts[i + 1], s] = values[k, : len(spans[i])]
        if progress is not None:
            progress(len(rows))
    return means


def project_tokens(
    model: LanguageModel,
    ids: Sequence[Sequence[int]],
    site: Site,
    direction: np.ndarray,
    *,
    batch_size: int = 32,
    progress: Callable[[int], None] | None = None,
) -> list[np.ndarray]:
    """The product of every token's activation at ``site`` with ``direction`` [width]; one float32 array a text."""
    found: list[Any] = [None] * len(ids)
    vector = torch.from_numpy(np.asarray(direction, dtype=np.float32)).to(model.device)
    for rows in batches([len(row) for row in ids], batch_size, budget=_BUDGET):
        seen = _forward(model, ids, rows, [site], 0, lambda hidden, shift: hidden.float() @ vector)
        values = seen[site].cpu().numpy()
        for k, i in enumerate(rows):
            found[i] = values[k, values.shape[1] - len(ids[i]) :]
        if progress is not None:
            progress(len(rows))
    return found


def _means(spans: Sequence[Sequence[tuple[int, int]]], hidden: Tensor, shift: Tensor) -> Tensor:
    """Means over each row's spans, [B, spans, width]; rows with fewer spans than the most end with zeros."""
    weights = torch.zeros((len(spans), max(map(len, spans)), hidden.shape[1]))
    for k, (row, before) in enumerate(zip(spans, shift.tolist(), strict=True)):
        for j, (start, end) in enumerate(row):
            weights[k, j, before + start : before + end] = 1 / (end - start)
    return torch.bmm(weights.to(hidden.device), hidden.float())


def _forward(
    model: LanguageModel,
    ids: Sequence[Sequence[int]],
    rows: Sequence[int],
    sites: Sequence[Site],
    first: int,
    keep: Callable[[Tensor, Tensor], Tensor],
) -> dict[Site, Tensor]:
    """What ``keep`` makes of the activations of some texts at each site.

    A head that all of them share is read once, as far as nothing before token ``first`` is asked for. ``keep`` is given
    activations [B, T, width] of what follows, and the number of padding tokens before each text minus that of the
    head's tokens, [B]: a text's token i stands at place i + that number.
    """
    seen: dict[Site, Tensor] = {}

    def recorder(site: Site) -> Callable[[nn.Module, Any, Any], None]:
        def record(module: nn.Module, arguments: Any, output: Any) -> None:
            seen[site] = keep(output[0] if isinstance(output, tuple) else output, shift)

        return record

    texts = [ids[i] for i in rows]
    shared = _shared(model, texts, first)
    tokens, mask = pad_left([row[shared:] for row in texts], model.pad_id, model.device)
    shift = (mask == 0).sum(dim=-1) - shared
    indices = torch.tensor(rows, dtype=torch.long, device=model.device)
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        stack.enter_context(threads.suiting(model))
        extra: dict[str, Any] = {"use_cache": False}
        if shared:
            head = torch.tensor([texts[0][:shared]], dtype=torch.long, device=model.device)
            extra = {"use_cache": True, model.cache_argument: DynamicCache(config=model.module.config)}
            with model.reading(Batch(None, prompt=True)):
                model.module.base_model(input_ids=head, **extra)
            extra[model.cache_argument].batch_repeat_interleave(len(texts))
            mask = torch.cat([mask.new_ones((len(texts), shared)), mask], dim=1)
        for site in sites:
            stack.callback(model.site_module(site).register_forward_hook(recorder(site)).remove)
        stack.enter_context(model.reading(Batch(indices, prompt=True)))
        places = positions_of(mask)[:, shared:]
        model.module.base_model(input_ids=tokens, attention_mask=mask, position_ids=places, **extra)
    return seen


def _shared(model: LanguageModel, texts: Sequence[Sequence[int]], first: int) -> int:
    """How long a head of all texts to read once; 0 where it would not pay, or edits tell texts apart."""
    if len(texts) < 2 or not model.shares_prefixes:
        return 0
    low, high = min(map(list, texts)), max(map(list, texts))
    limit = min(first, min(map(len, texts)) - 1)
    shared = next((i for i in range(limit) if low[i] != high[i]), max(0, limit))
    return shared if shared >= _SHORTEST_HEAD else 0
