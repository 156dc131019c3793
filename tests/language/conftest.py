"""Tiny random-weight models of every known layout, and the embedded real one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from touchstone.language import LanguageModel

WORDS = [f"w{i}" for i in range(40)]
CHAT = (
    "{% for m in messages %}{{ '<s> ' if loop.first }}{{ m['role'] }} {{ m['content'] }} </s> {% endfor %}"
    "{% if add_generation_prompt %}assistant{% endif %}"
)

_SHAPE = {"vocab_size": 48, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
_LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "head_dim": 8,
    **_SHAPE,
}
_CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**_LLAMA),
    "mistral": lambda: MistralConfig(**_LLAMA, sliding_window=None),
    "qwen2": lambda: Qwen2Config(**_LLAMA),
    "qwen3": lambda: Qwen3Config(**_LLAMA),
    "gemma2": lambda: Gemma2Config(**_LLAMA, query_pre_attn_scalar=8, sliding_window=64),
    "gemma3_text": lambda: Gemma3TextConfig(**_LLAMA, query_pre_attn_scalar=8, sliding_window=64),
    "gpt2": lambda: GPT2Config(n_embd=32, n_layer=3, n_head=4, n_positions=128, **_SHAPE),
}
LAYOUTS = list(_CONFIGS)


def tokenizer(chat: bool = False) -> PreTrainedTokenizerFast:
    """A word-level tokenizer over forty words, with start, end and padding."""
    vocabulary = {w: i for i, w in enumerate(["<s>", "</s>", "<pad>", "<unk>", "user", "system", "assistant", *WORDS])}
    core = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    )
    if chat:
        fast.chat_template = CHAT
    return fast


def tiny(kind: str = "llama", *, chat: bool = False, seed: int = 0) -> LanguageModel:
    """A random-weight model of the given layout, three blocks of width 32."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = AutoModelForCausalLM.from_config(_CONFIGS[kind]())
        # Random weights of the usual size give near-uniform predictions: greedy choices would hang on rounding.
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(8)
    return LanguageModel(module, tokenizer(chat), source=f"tiny {kind}")


@pytest.fixture(scope="session")
def make_tiny() -> Callable[..., LanguageModel]:
    return tiny


@pytest.fixture
def model() -> LanguageModel:
    return tiny()


@pytest.fixture
def chat_model() -> LanguageModel:
    return tiny(chat=True)


@pytest.fixture(scope="session")
def real_model() -> LanguageModel:
    """The embedded SmolLM2-135M-Instruct, fetched on first use."""
    return LanguageModel.load()
