"""Race: steered against unsteered generation, and our operator against the projection-matrix form.

The reference form multiplies every activation by a d × d projection, d² multiply-adds a token and point; ours takes
two dot products and two scaled additions. Both are hooked at all 2 L norms and generate the same number of tokens.

    python benchmarks/steering_overhead.py [--rounds 5] [--tokens 24] [--large]

`--large` adds a random-weight model of width 2048 with 4 blocks.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time

import torch
from torch import Tensor

from touchstone.language import LanguageModel
from touchstone.language.angular_steering import SteeringPlane
from touchstone.language.angular_steering.prompts import tone_prompts


def plane_of(model: LanguageModel) -> SteeringPlane:
    return SteeringPlane.fit(model, tone_prompts("happy"), tone_prompts("sad"))


def projection_edit(plane: SteeringPlane, degrees: float):
    """h − P h + ‖P h‖ [b1 b2] R [1 0]ᵀ with the projection P as a matrix, on the positive side of the feature."""
    basis = torch.stack([plane.b1, plane.b2])
    projection = basis.T @ basis
    angle = math.radians(degrees)
    target = math.cos(angle) * plane.b1 + math.sin(angle) * plane.b2

    def edit(h: Tensor) -> Tensor:
        inside = h @ projection
        turned = h - inside + inside.norm(dim=-1, keepdim=True) * target
        return torch.where((h @ plane.b1 > 0).unsqueeze(-1), turned, h)

    return dict.fromkeys(plane.sites, edit)


def seconds(model: LanguageModel, prompts: list[str], tokens: int) -> float:
    # No stop token: every arm does the same number of steps.
    start = time.perf_counter()
    model.generate(prompts, max_new_tokens=tokens)
    return time.perf_counter() - start


def race(name: str, model: LanguageModel, plane: SteeringPlane, rounds: int, tokens: int, batch: int) -> None:
    type(model).stop_ids = property(lambda self: frozenset())  # type: ignore[method-assign, assignment]
    prompts = ["Write one sentence about the sea." if model.source != "random" else "a b c"] * batch
    seconds(model, prompts, 2)
    ratios: dict[str, list[float]] = {"ours": [], "projection matrix": []}
    for _ in range(rounds):
        # Every arm stands between two unsteered runs, so that a drift of the machine cancels.
        for arm in ratios:
            before = seconds(model, prompts, tokens)
            if arm == "ours":
                with plane.steer(model, 180.0):
                    steered = seconds(model, prompts, tokens)
            else:
                with model.edited(projection_edit(plane, 180.0)):
                    steered = seconds(model, prompts, tokens)
            after = seconds(model, prompts, tokens)
            ratios[arm].append(2 * steered / (before + after))
    print(f"{name}, batch {batch}, {len(plane.sites)} points of width {plane.width}, {model.threads} thread(s)")
    for arm, values in ratios.items():
        print(
            f"  {arm:18s} / unsteered  {statistics.median(values):.3f}  (min {min(values):.3f}, max {max(values):.3f})"
        )


def operator_race(width: int, rows: int = 256) -> None:
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(rows, 1, width, generator=generator)
    b1, b2 = torch.linalg.qr(torch.randn(width, 2, generator=generator))[0].T
    from touchstone.language.angular_steering.operators import Turn, basis_of, cos_sin

    turn, unit = Turn(basis_of(b1, b2), "set", "adaptive"), cos_sin(torch.tensor(180.0, dtype=torch.float64))
    projection = torch.outer(b1, b1) + torch.outer(b2, b2)

    def reference() -> Tensor:
        inside = h @ projection
        turned = h - inside + inside.norm(dim=-1, keepdim=True) * -b1
        return torch.where((h @ b1 > 0).unsqueeze(-1), turned, h)

    def timed(function) -> float:
        best = math.inf
        for _ in range(20):
            start = time.perf_counter()
            function()
            best = min(best, time.perf_counter() - start)
        return best

    assert torch.allclose(turn.apply(h, unit), reference(), atol=1e-4)
    ours, theirs = timed(lambda: turn.apply(h, unit)), timed(reference)
    print(f"operator alone, width {width}, {rows} tokens: ours {ours * 1e6:.0f} µs, projection {theirs * 1e6:.0f} µs, "
          f"{theirs / ours:.1f} times faster")  # fmt: skip


def large() -> LanguageModel:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    config = LlamaConfig(vocab_size=64, hidden_size=2048, intermediate_size=5632, num_hidden_layers=4,
                         num_attention_heads=16, num_key_value_heads=16, max_position_embeddings=256)  # fmt: skip
    torch.manual_seed(0)
    core = Tokenizer(WordLevel({"<pad>": 0, "<unk>": 1, "a": 2, "b": 3, "c": 4, "d": 5}, unk_token="<unk>"))
    core.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", unk_token="<unk>")
    return LanguageModel(LlamaForCausalLM(config), tokenizer, source="random")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--large", action="store_true")
    options = parser.parse_args()
    for width in (576, 2048, 3584):
        operator_race(width)
    model = LanguageModel.load()
    plane = plane_of(model)
    for batch in (1, 16):
        race("SmolLM2-135M-Instruct", model, plane, options.rounds, options.tokens, batch)
    if options.large:
        wide = large()
        plane = SteeringPlane.fit(wide, ["a b", "a c"], ["d b", "d c"])
        for batch in (1, 16):
            race("random Llama of 4 blocks", wide, plane, options.rounds, options.tokens, batch)


if __name__ == "__main__":
    main()
