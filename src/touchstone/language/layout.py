"""Where the parts of a causal language model are: an explicit table, then a duck-typed search, else an error."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import nn

from touchstone.errors import InputError

__all__ = ["SITE_KINDS", "Layout", "Site", "find_layout"]

SiteKind = Literal["embedding", "attention_input", "mlp_input", "output"]
SITE_KINDS: tuple[SiteKind, ...] = ("embedding", "attention_input", "mlp_input", "output")


class Site(NamedTuple):
    """A place in the residual stream whose activations can be read or replaced.

    ``embedding`` is the output of the token embedding; ``attention_input`` and ``mlp_input`` are the outputs of a
    block's two pre-norms, that is, what attention and MLP read; ``output`` is the block's output.
    """

    kind: SiteKind
    block: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "embedding" else f"{self.kind}.{self.block}"

    @classmethod
    def parse(cls, text: str) -> Site:
        """Read ``"embedding"`` or ``"attention_input.5"``; raises :class:`InputError` on anything else."""
        match = re.fullmatch(r"(embedding)|(attention_input|mlp_input|output)\.(\d+)", text)
        if match is None:
            raise InputError(f"site {text!r}: expected 'embedding' or one of {SITE_KINDS[1:]} with '.<block>'")
        return cls("embedding") if match[1] else cls(match[2], int(match[3]))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Layout:
    """Attribute paths of one architecture; those of a block's parts are relative to the block.

    Attributes
    ----------
    blocks : path of the list of decoder blocks.
    embedding : path of the token embedding.
    attention_norm, mlp_norm : the pre-norms whose outputs attention and MLP read.
    attention_readers, mlp_readers : linear layers that read those outputs; edits of weights fold into them.
    gate : the gated MLP's gate projection, ``None`` where the MLP has no gate.
    transposed : whether those linear layers store ``[in, out]`` (GPT-2's Conv1D) in place of ``[out, in]``.
    """

    blocks: str = "model.layers"
    embedding: str = "model.embed_tokens"
    attention_norm: str = "input_layernorm"
    mlp_norm: str = "post_attention_layernorm"
    attention_readers: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    mlp_readers: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    gate: str | None = "mlp.gate_proj"
    transposed: bool = False


_LLAMA = Layout()
# In Gemma 2 and 3, post_attention_layernorm normalises attention's output, not the MLP's input.
_GEMMA = Layout(mlp_norm="pre_feedforward_layernorm")
_GEMMA3_VISION = Layout(
    blocks="model.language_model.layers",
    embedding="model.language_model.embed_tokens",
    mlp_norm="pre_feedforward_layernorm",
)
_GPT2 = Layout(
    blocks="transformer.h",
    embedding="transformer.wte",
    attention_norm="ln_1",
    mlp_norm="ln_2",
    attention_readers=("attn.c_attn",),
    mlp_readers=("mlp.c_fc",),
    gate=None,
    transposed=True,
)

_TABLE: dict[str, Layout] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "smollm3": _LLAMA,
    "gemma": _LLAMA,
    "gemma2": _GEMMA,
    "gemma3_text": _GEMMA,
    "gemma3": _GEMMA3_VISION,
    "gpt2": _GPT2,
}

_ATTENTION_NORMS = ("input_layernorm", "ln_1", "attention_norm", "attn_norm", "ln1", "norm1", "self_attn_layer_norm")
_MLP_NORMS = (
    "pre_feedforward_layernorm",
    "post_attention_layernorm",
    "ln_2",
    "ffn_norm",
    "mlp_norm",
    "ln2",
    "norm2",
    "final_layer_norm",
)


def find_layout(module: nn.Module) -> Layout:
    """The layout of ``module``.

    Raises
    ------
    InputError
        If the architecture is not in the table and has no list of blocks with two named pre-norms.
    """
    config = getattr(module, "config", None)
    kind = str(getattr(config, "model_type", "")) or type(module).__name__
    layout = _TABLE.get(kind)
    if layout is not None and _fits(module, layout):
        return layout
    layout = _search(module)
    if layout is None:
        raise InputError(
            f"model of type {kind!r}: no decoder blocks with two pre-norms found; "
            f"known layouts: {', '.join(_TABLE)}, and models whose blocks name their norms alike"
        )
    return layout


def _get(module: nn.Module, path: str) -> nn.Module | None:
    try:
        return module.get_submodule(path)
    except AttributeError:
        return None


def _fits(module: nn.Module, layout: Layout) -> bool:
    blocks = _get(module, layout.blocks)
    return (
        isinstance(blocks, nn.ModuleList)
        and len(blocks) > 0
        and _get(module, layout.embedding) is not None
        and all(_get(blocks[0], path) is not None for path in (layout.attention_norm, layout.mlp_norm))
    )


def _search(module: nn.Module) -> Layout | None:
    reader = getattr(module, "get_input_embeddings", None)
    embedding = reader() if callable(reader) else None
    where = next((name for name, part in module.named_modules() if part is embedding), None)
    if where is None:
        return None
    for name, part in module.named_modules():
        if not isinstance(part, nn.ModuleList) or len(part) == 0:
            continue
        children = dict(part[0].named_children())
        attention_norm = next((norm for norm in _ATTENTION_NORMS if norm in children), None)
        mlp_norm = next((norm for norm in _MLP_NORMS if norm in children), None)
        if attention_norm and mlp_norm:
            return _with_readers(Layout(name, where, attention_norm, mlp_norm, (), (), None), part[0])
    return None


def _with_readers(layout: Layout, block: nn.Module) -> Layout:
    """Add the linear layers that read the norms' outputs, where they have the usual names."""
    for known in (_LLAMA, _GPT2):
        paths = (*known.attention_readers, *known.mlp_readers)
        if all(_get(block, path) is not None for path in paths):
            return Layout(
                layout.blocks,
                layout.embedding,
                layout.attention_norm,
                layout.mlp_norm,
                known.attention_readers,
                known.mlp_readers,
                known.gate,
                known.transposed,
            )
    return layout
