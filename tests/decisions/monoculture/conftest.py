"""A tiny language model over bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from touchstone.language import LanguageModel


@pytest.fixture(scope="package")
def tiny() -> LanguageModel:
    """A random model over bytes: " A" is two tokens, "A" one."""
    # Here, so that tests of tables load no torch.
    import torch
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from touchstone.language import LanguageModel

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(BPE({"<pad>": 0, **{c: i + 1 for i, c in enumerate(alphabet)}}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<pad>")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
        module = LlamaForCausalLM(LlamaConfig(vocab_size=257, max_position_embeddings=4096, pad_token_id=0, **shape))
        with torch.no_grad():
            for weight in module.parameters():
                if weight.ndim == 2:
                    weight.mul_(8)
    return LanguageModel(module, fast, source="tiny", threads=1)
