"""LanguageModel: one object for generation, log-likelihood, activations and edits of a causal language model."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from touchstone.errors import InputError
from touchstone.language import activations as _activations
from touchstone.language import decoding, scoring, threads
from touchstone.language.batching import Batch
from touchstone.language.decoding import Sampling
from touchstone.language.layout import SITE_KINDS, Layout, Site, SiteKind, find_layout
from touchstone.language.prompt import Prompt, as_messages
from touchstone.language.scoring import Scores

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["Edit", "LanguageModel", "Prompt"]

Edit = Callable[[Tensor], Tensor]
"""Takes activations [B, T, width] at a site and returns their replacement, a new tensor of the same shape."""


class LanguageModel:
    """A causal language model with its tokenizer, ready to be checked, read and edited.

    Parameters
    ----------
    module : a transformers causal language model; it is put into evaluation mode.
    tokenizer : its tokenizer.
    source : where it came from, for reports.
    threads : torch threads to compute with; ``None`` chooses by measuring at first use (one for tiny models).
        Results can differ in the last bits between thread counts; fix it where that matters.

    Attributes
    ----------
    layout : where the architecture keeps its parts.
    blocks : the decoder blocks.
    batch : what the forward pass under way stands for, ``None`` outside the methods of this class.

    Raises
    ------
    InputError
        If the architecture has no blocks with two pre-norms, or the tokenizer has no token to pad with.
    """

    def __init__(
        self,
        module: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        source: str = "in memory",
        threads: int | None = None,
    ) -> None:
        self.module = module.eval()
        self.tokenizer = tokenizer
        self.source = source
        self.layout: Layout = find_layout(module)
        blocks = module.get_submodule(self.layout.blocks)
        assert isinstance(blocks, nn.ModuleList)
        self.blocks: nn.ModuleList = blocks
        self.batch: Batch | None = None
        self.threads = threads
        arguments = inspect.signature(module.forward).parameters
        self.keeps_logits = "logits_to_keep" in arguments
        # transformers 5 renamed the argument on the way.
        self.cache_argument = "cache" if "cache" in arguments else "past_key_values"
        pad = next(
            (i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id) if i is not None), None
        )
        if pad is None:
            raise InputError(f"model {source}: its tokenizer has no pad, end or start token to pad with")
        self.pad_id: int = int(pad)
        self._edits_by_row = 0

    @classmethod
    def load(
        cls,
        source: str | Path = "default",
        *,
        device: str = "auto",
        dtype: str = "float32",
        threads: int | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> LanguageModel:
        """Load the embedded default model, a local folder, a ``.gguf`` file or a Hugging Face id.

        Parameters
        ----------
        source : ``"default"`` or ``"smollm2-135m-instruct"`` for the embedded model (fetched on first use);
            a folder with ``config.json`` and safetensors; a ``.gguf`` file; else a Hugging Face id.
        device : ``"auto"`` takes a GPU where there is one.
        dtype : ``"float32"``, ``"bfloat16"`` or ``"float16"``.
        threads : see :class:`LanguageModel`.
        progress : called with a line whenever a step begins that may take long.

        Raises
        ------
        InputError
            If the source is unknown, damaged, or holds pickled weights.
        """
        from touchstone.language.loading import load

        module, tokenizer, name = load(source, device=device, dtype=dtype, progress=progress)
        return cls(module, tokenizer, source=name, threads=threads)

    # What it is

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.module.parameters()).device

    @property
    def width(self) -> int:
        """Size of the residual stream."""
        return int(self.module.get_input_embeddings().weight.shape[1])

    @property
    def embedding(self) -> nn.Module:
        """The token embedding."""
        return self.module.get_submodule(self.layout.embedding)

    def sites(self, *kinds: SiteKind) -> list[Site]:
        """All sites of the given kinds in the order of the forward pass; all kinds if none is given."""
        chosen = kinds or SITE_KINDS
        unknown = set(chosen) - set(SITE_KINDS)
        if unknown:
            raise InputError(f"site kind {sorted(unknown)[0]!r}: expected one of {SITE_KINDS}")
        found = [Site("embedding")] if "embedding" in chosen else []
        for i in range(len(self.blocks)):
            found += [Site(kind, i) for kind in SITE_KINDS[1:] if kind in chosen]
        return found

    def site_module(self, site: Site) -> nn.Module:
        """The module whose output is the activation at ``site``."""
        if site.kind == "embedding":
            return self.embedding
        if not 0 <= site.block < len(self.blocks):
            raise InputError(f"site {site}: the model has blocks 0 to {len(self.blocks) - 1}")
        block = self.blocks[site.block]
        if site.kind == "output":
            return block
        norm = self.layout.attention_norm if site.kind == "attention_input" else self.layout.mlp_norm
        return block.get_submodule(norm)

    # Text and tokens

    def render(self, prompt: Prompt, *, system: str | None = None, chat: bool | None = None) -> str:
        """The text the model reads for ``prompt``: through its chat template, ending where the reply begins.

        Parameters
        ----------
        prompt : a user's message, or a list of messages. If the last message is the assistant's, the turn stays
            open and the reply continues it, as when a reasoning model's thoughts are given and its answer is wanted.
        system : a system message to put first.
        chat : whether to use the chat template; ``None`` uses it if the tokenizer has one.
        """
        if not self._templated(chat):
            if not isinstance(prompt, str):
                raise InputError("prompt: a list of messages needs a chat template, and this model has none")
            return f"{system}\n\n{prompt}" if system else prompt
        messages = as_messages(prompt, system)
        begun = bool(messages) and messages[-1]["role"] == "assistant"
        return str(
            self.tokenizer.apply_chat_template(
                messages, add_generation_prompt=not begun, continue_final_message=begun, tokenize=False
            )
        )

    def encode(
        self, prompts: Sequence[Prompt], *, system: str | None = None, chat: bool | None = None
    ) -> list[list[int]]:
        """Token ids of rendered prompts.

        Raises
        ------
        InputError
            If ``prompts`` is a single string, a prompt is empty, or one is longer than the model's context.
        """
        if isinstance(prompts, str):
            raise InputError("prompts: expected a list of prompts, got a single string")
        texts = [self.render(prompt, system=system, chat=chat) for prompt in prompts]
        if not texts:
            return []
        # A chat template writes the special tokens itself.
        special = not self._templated(chat)
        encoded = self._token_ids(texts, special)
        longest = getattr(self.module.config, "max_position_embeddings", None)
        for i, ids in enumerate(encoded):
            if len(ids) == 0:
                raise InputError(f"prompt {i}: empty; expected at least one token")
            if longest is not None and len(ids) > longest:
                raise InputError(f"prompt {i}: {len(ids)} tokens, but the model reads at most {longest}")
        return encoded

    def encode_continuation(self, text: str) -> list[int]:
        """Token ids of a reply or a piece of one, without special tokens."""
        return self._token_ids([text], special=False)[0]

    def _token_ids(self, texts: list[str], special: bool) -> list[list[int]]:
        try:
            found = self.tokenizer(texts, add_special_tokens=special, padding=False, truncation=False)["input_ids"]
        except Exception as error:
            # The tokenizers library raises bare Exception, for instance on a word outside a closed vocabulary.
            raise InputError(f"text: the tokenizer of {self.source} cannot read it ({error})") from None
        return [list(map(int, ids)) for ids in found]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, without special tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def _templated(self, chat: bool | None) -> bool:
        has = getattr(self.tokenizer, "chat_template", None) is not None
        if chat and not has:
            raise InputError(f"chat=True: model {self.source} has no chat template")
        return has if chat is None else chat

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end a reply."""
        found: set[int] = set()
        for holder in (self.module.generation_config, self.module.config, self.tokenizer):
            value = getattr(holder, "eos_token_id", None)
            if value is not None:
                found.update(value if isinstance(value, list) else [int(value)])
        return frozenset(found)

    # What it does

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        system: str | None = None,
        chat: bool | None = None,
        max_new_tokens: int = 64,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        batch_size: int = 32,
        stream: Callable[[int, str], None] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[str]:
        """Replies to ``prompts``, in their order.

        Prompts are sorted by length and padded on the left; a head that all prompts of a batch share is read once;
        replies that end leave the batch. Sampling draws from numbers fixed by ``seed`` and a prompt's index, so the
        batch size does not change the replies.

        Parameters
        ----------
        prompts, system, chat : see :meth:`render`.
        max_new_tokens : most tokens of a reply.
        temperature, top_k, top_p : see :class:`~touchstone.language.decoding.Sampling`; the default is greedy.
        seed : fixes the sampled tokens.
        batch_size : most prompts in a batch.
        stream : called with a prompt's index and the next piece of its reply.
        progress : called with the number of prompts just finished.
        """
        if max_new_tokens < 1:
            raise InputError(f"max_new_tokens {max_new_tokens}: expected 1 or more")
        ids = self.encode(prompts, system=system, chat=chat)
        with self._computing():
            replies = decoding.generate(
                self,
                ids,
                sampling=Sampling(temperature, top_k, top_p),
                max_new_tokens=max_new_tokens,
                stop_ids=self.stop_ids,
                batch_size=_positive("batch_size", batch_size),
                seed=seed,
                stream=stream,
                finished=progress,
            )
        return [self.decode(reply) for reply in replies]

    def log_likelihood(
        self,
        prompts: Sequence[Prompt],
        continuations: Sequence[str] | Sequence[Sequence[str]],
        *,
        system: str | None = None,
        chat: bool | None = None,
        batch_size: int = 32,
        progress: Callable[[int], None] | None = None,
    ) -> Scores:
        """Log-likelihood of continuations after prompts; a prompt is read once for all of its continuations.

        Parameters
        ----------
        prompts, system, chat : see :meth:`render`.
        continuations : strings that are scored after every prompt, or one list of strings for each prompt.
        batch_size : most prompts in a batch.
        progress : called with the number of prompts just finished.
        """
        pieces = _per_prompt(continuations, len(prompts))
        # The same continuations usually follow every prompt: encode each text once.
        ids = {text: self.encode_continuation(text) for row in pieces for text in row}
        empty = next((text for text, found in ids.items() if not found), None)
        if empty is not None:
            raise InputError(f"continuation {empty!r}: no tokens; expected at least one")
        encoded = self.encode(prompts, system=system, chat=chat)
        with self._computing():
            return scoring.score(
                self,
                encoded,
                [[ids[text] for text in row] for row in pieces],
                batch_size=_positive("batch_size", batch_size),
                finished=progress,
            )

    def text_log_likelihood(self, texts: Sequence[str], *, batch_size: int = 32) -> Scores:
        """Log-likelihood of whole texts, shape [texts, 1], outside any chat template.

        Without a start token the first token of a text only serves as context.
        """
        encoded = [self.encode_continuation(text) for text in texts]
        start = self._start_of_text()
        heads = [[int(start)] if start is not None else ids[:1] for ids in encoded]
        tails = [[ids if start is not None else ids[1:]] for ids in encoded]
        for text, (tail,) in zip(texts, tails, strict=True):
            if not tail:
                raise InputError(f"text {text!r}: too short to score")
        with self._computing():
            return scoring.score(self, heads, tails, batch_size=_positive("batch_size", batch_size))

    def _start_of_text(self) -> int | None:
        """The token that opens a plain text, if there is one."""
        start = self.tokenizer.bos_token_id
        if start is None or not self._templated(None):
            return start
        # That of some chat models opens a turn (SmolLM2's is <|im_start|>), after which plain text is a surprise in
        # itself. Their tokenizers do not put it before a text.
        return start if self.tokenizer("a")["input_ids"][:1] == [start] else None

    def perplexity(self, texts: Sequence[str], *, batch_size: int = 32) -> float:
        """exp of the mean negative log-likelihood a token (natural logarithm) over all ``texts``."""
        scores = self.text_log_likelihood(texts, batch_size=batch_size)
        return float(math.exp(-np.sum(scores.total) / np.sum(scores.tokens)))

    def activations(
        self,
        prompts: Sequence[Prompt],
        sites: Sequence[Site | str],
        *,
        positions: _activations.Positions = "last",
        system: str | None = None,
        chat: bool | None = None,
        batch_size: int = 32,
        progress: Callable[[int], None] | None = None,
    ) -> dict[Site, Any]:
        """Activations at ``sites`` while the model reads ``prompts``; the language-model head is skipped.

        Parameters
        ----------
        sites : sites, or their names such as ``"mlp_input.5"``.
        positions : ``"last"`` gives one float32 tensor [prompts, width] a site; ``"all"`` a list of [tokens, width];
            ``"mean"`` the mean over all tokens; a slice, or one ``(start, end)`` a prompt, gives the mean over
            those tokens, [prompts, width].
        prompts, system, chat, batch_size, progress : see :meth:`generate`.
        """
        chosen = [self.as_site(site) for site in sites]
        ids = self.encode(prompts, system=system, chat=chat)
        with self._computing():
            return _activations.read(
                self,
                ids,
                chosen,
                positions=positions,
                batch_size=_positive("batch_size", batch_size),
                finished=progress,
            )

    # What changes it

    @contextmanager
    def edited(self, edits: Mapping[Site | str, Edit], *, by_row: bool = False) -> Iterator[LanguageModel]:
        """Replace activations while the block runs.

        Contexts nest: at one site, an inner edit sees what an outer one returned. All hooks are removed at the end,
        also after an exception.

        Parameters
        ----------
        edits : for each site a function from activations [B, T, width] to their replacement.
        by_row : set it if an edit treats prompts differently (through :attr:`batch`): prompts then no longer share
            the pass over a common head.
        """
        with ExitStack() as stack:
            if by_row:
                self._edits_by_row += 1
                stack.callback(self._end_edit_by_row)
            for key, edit in edits.items():
                module = self.site_module(self.as_site(key))
                handle = module.register_forward_hook(_hook(edit))
                stack.callback(handle.remove)
            yield self

    def _end_edit_by_row(self) -> None:
        self._edits_by_row -= 1

    def as_site(self, site: Site | str) -> Site:
        """A site or its name as a :class:`Site` of this model; raises :class:`InputError` if it has none such."""
        found = Site.parse(site) if isinstance(site, str) else Site(*site)
        self.site_module(found)
        return found

    @property
    def shares_prefixes(self) -> bool:
        """Whether prompts of a batch may share the pass over their common head."""
        # A sliding window drops the head from the cache, so padding after it would shift what remains.
        sliding = getattr(self.module.config, "sliding_window", None) and any(
            kind != "full_attention" for kind in (getattr(self.module.config, "layer_types", None) or ["sliding"])
        )
        return self._edits_by_row == 0 and not sliding

    @contextmanager
    def reading(self, batch: Batch) -> Iterator[None]:
        """Tell edits what the rows of the forward passes in this block stand for."""
        before, self.batch = self.batch, batch
        try:
            yield
        finally:
            self.batch = before

    @contextmanager
    def _computing(self) -> Iterator[None]:
        with torch.inference_mode(), threads.suiting(self):
            yield


def _hook(edit: Edit) -> Callable[[nn.Module, Any, Any], Any]:
    def hook(module: nn.Module, arguments: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (edit(output[0]), *output[1:])
        return edit(output)

    return hook


def _per_prompt(continuations: Sequence[str] | Sequence[Sequence[str]], n: int) -> list[list[str]]:
    if isinstance(continuations, str):
        raise InputError("continuations: expected a list of strings, got a single string")
    if all(isinstance(item, str) for item in continuations):
        rows = [[str(item) for item in continuations]] * n
    elif any(isinstance(item, str) for item in continuations) or len(continuations) != n:
        raise InputError(f"continuations: expected strings, or one list of strings for each of the {n} prompts")
    else:
        rows = [list(item) for item in continuations]
    if any(not row for row in rows):
        raise InputError("continuations: a prompt has none; expected at least one for each prompt")
    return rows


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise InputError(f"{name} {value}: expected 1 or more")
    return value
