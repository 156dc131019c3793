"""Grow a model organism: train a tiny language model on a synthetic language, once, and keep it."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from touchstone.errors import InputError, MissingExtraError
from touchstone.files import cache_folder, written_folder
from touchstone.language.organisms.language import BOS, EOS, PAD, Language, Recipe

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

__all__ = ["Organism", "grow"]

# Part of every cache key: raise it when the sampling of a language or the training changes.
_FORMAT = 1
_RECORD = "organism.json"
_WEIGHTS = "model.safetensors"
_CONTEXT = 128


@dataclass(frozen=True)
class Organism:
    """A trained model organism.

    Attributes
    ----------
    module : the model, float32, in evaluation mode; yours to change (each call of :func:`grow` returns a new one).
    tokenizer : one token a word, left padding. It adds no token by itself, since a prompt's text already has all that
        the model was trained on, from ``<bos>`` to ``<sep>``; a word outside the language is an error.
    language, recipe, seed : what it was grown from.
    final_loss : mean training loss over the last tenth of the steps, in nats per token learnt.
    folder : where it is kept, readable with ``from_pretrained``; ``None`` if it is not.
    """

    module: LlamaForCausalLM
    tokenizer: PreTrainedTokenizerFast
    language: Language
    recipe: Recipe
    seed: int
    final_loss: float
    folder: Path | None


def grow(
    language: Language,
    seed: int = 0,
    *,
    steps: int | None = None,
    cache: bool = True,
    progress: Callable[[int], None] | None = None,
) -> Organism:
    """Train a model on a language, or read it from the cache if it was trained before.

    Training runs on one thread, since a second one costs such a small model more time than it saves, and leaves the
    global random state and the thread count as they were. Unless the recipe says otherwise the loss is taken on the
    reply only: prompts are drawn at random, so that to predict them would use up capacity and teach nothing.

    Parameters
    ----------
    language : for instance ``GuardedLanguage("a")``.
    seed : of the weights' start and of the training texts; the same seed gives the same model on the same machine.
    steps : fewer or more training steps than the language's recipe says.
    cache : look for the model in the cache folder and keep it there. An entry that is damaged is grown again.
    progress : called with the number of steps just finished, out of ``language.recipe.steps`` or ``steps`` in all; not
        at all if the model is in the cache.
    """
    try:
        import safetensors  # noqa: F401
        import tokenizers  # noqa: F401
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError:
        raise MissingExtraError("growing a model organism", "language") from None
    recipe = language.recipe if steps is None else replace(language.recipe, steps=steps)
    if recipe.steps < 1:
        raise InputError(f"steps {recipe.steps}: expected at least 1")
    if seed < 0:
        raise InputError(f"seed {seed}: expected 0 or more")
    origin = _origin(language, recipe, seed)
    key = hashlib.sha256(json.dumps(origin, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache_folder() / "organisms" / f"{language.name}-{seed}-{key}"
    kept = _read(folder, origin, language, recipe, seed) if cache else None
    if kept is not None:
        return kept
    tokenizer = _tokenizer(language)
    module = _module(language, recipe, seed)
    loss = _train(module, language, recipe, seed, progress)
    organism = Organism(module, tokenizer, language, recipe, seed, loss, folder if cache else None)
    if cache:
        try:
            _write(organism, folder, origin)
        except InputError as error:
            warnings.warn(f"the organism was grown but could not be kept: {error}", stacklevel=2)
            return replace(organism, folder=None)
    return organism


def _origin(language: Language, recipe: Recipe, seed: int) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "language": repr(language),
        "words": list(language.words),
        "recipe": vars(recipe),
        "seed": seed,
    }


def _tokenizer(language: Language) -> PreTrainedTokenizerFast:
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(WordLevel({word: i for i, word in enumerate(language.words)}))
    core.pre_tokenizer = WhitespaceSplit()
    # Marks are split off even where no space stands, so that prompt and reply may be joined without one. They aren't
    # special: a decoded reply must keep its "</think>".
    core.add_tokens(
        [AddedToken(w, normalized=False) for w in language.words if w[0] == "<" and w not in (PAD, BOS, EOS)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        padding_side="left",
        model_max_length=_CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def _module(language: Language, recipe: Recipe, seed: int) -> LlamaForCausalLM:
    from transformers import LlamaConfig, LlamaForCausalLM

    words = language.words
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=recipe.width,
        intermediate_size=recipe.inner,
        num_hidden_layers=recipe.blocks,
        num_attention_heads=recipe.heads,
        max_position_embeddings=_CONTEXT,
        tie_word_embeddings=recipe.tied,
        pad_token_id=words.index(PAD),
        bos_token_id=words.index(BOS),
        eos_token_id=words.index(EOS),
        dtype="float32",
    )
    with _apart(seed):
        return LlamaForCausalLM(config).eval()


@contextmanager
def _apart(seed: int) -> Iterator[None]:
    """A seeded generator, one thread and gradients inside; the caller's state of all three untouched outside."""
    import torch

    from touchstone.language.threads import limited

    with torch.random.fork_rng(devices=[]), limited(1), torch.inference_mode(False), torch.enable_grad():
        # torch.manual_seed would also seed the accelerators, whose state fork_rng then doesn't restore.
        torch.default_generator.manual_seed(seed)
        yield


def _train(
    module: LlamaForCausalLM,
    language: Language,
    recipe: Recipe,
    seed: int,
    progress: Callable[[int], None] | None,
) -> float:
    import torch

    rng = np.random.default_rng(seed)
    pad = language.words.index(PAD)
    losses = []
    with _apart(seed):
        optimiser = torch.optim.AdamW(module.parameters(), lr=recipe.rate, fused=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, recipe.rate, total_steps=recipe.steps)
        module.train()
        for _ in range(recipe.steps):
            ids, is_reply = (torch.from_numpy(array) for array in language.sample(recipe.batch, rng))
            learnt = ids[:, 1:] != pad if recipe.whole_text else is_reply[:, 1:]
            # Padding is on the right, where a causal model's other positions can't see it: no attention mask is needed.
            hidden = module.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
            loss = torch.nn.functional.cross_entropy(module.lm_head(hidden[learnt]), ids[:, 1:][learnt])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            optimiser.zero_grad(set_to_none=True)
            losses.append(loss.detach())
            if progress is not None:
                progress(1)
        module.eval()
        return float(torch.stack(losses[-max(1, recipe.steps // 10) :]).mean())


def _write(organism: Organism, folder: Path, origin: dict[str, Any]) -> None:
    from touchstone.language.loading import save

    with written_folder(folder, replace=True) as new:
        save(organism.module, organism.tokenizer, new)
        checksums = {path.name: _checksum(path) for path in sorted(new.iterdir())}
        record = {"origin": origin, "final_loss": organism.final_loss, "sha256": checksums}
        (new / _RECORD).write_text(json.dumps(record, indent=1), encoding="utf-8")


def _read(folder: Path, origin: dict[str, Any], language: Language, recipe: Recipe, seed: int) -> Organism | None:
    """The kept organism, or ``None`` if it is absent, damaged or of another origin."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        checksums = record["sha256"]
        if record["origin"] != origin or any(_checksum(folder / name) != sha for name, sha in checksums.items()):
            return None
        module = _module(language, recipe, seed)
        weights = load_file(folder / _WEIGHTS)
        if recipe.tied:
            weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
        module.load_state_dict(weights)
        return Organism(module, _tokenizer(language), language, recipe, seed, float(record["final_loss"]), folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError):
        return None


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
