"""Race: guided extraction with two models against greedy decoding with one, and against the official way.

The official way reads the whole sequences of both models anew at every token, without a cache, and carries on rows that
are finished; it is written plainly here. All must agree on what they write.

    python benchmarks/guided_extraction.py [--prefixes 16] [--tokens 32]
"""

from __future__ import annotations

import argparse
import copy
import math
import time

import torch

from touchstone.language import LanguageModel
from touchstone.language.batching import pad_left, positions_of
from touchstone.language.unlearned_extraction import GuidedExtractor

_W, _GAMMA = 1.4, 1e-5
_OPENINGS = (
    "The name of the",
    "She was born in",
    "According to the",
    "A recipe for",
    "The first chapter",
    "In the year",
)


def moved(model: LanguageModel) -> LanguageModel:
    """A second model of the same speed whose predictions differ a little."""
    module = copy.deepcopy(model.module)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.02 * parameter.std() * torch.randn(parameter.shape, generator=generator))
    return LanguageModel(module, model.tokenizer, source="moved", threads=model.threads)


@torch.inference_mode()
def official(pre: LanguageModel, post: LanguageModel, prefixes: list[str], tokens: int) -> list[list[int]]:
    rows = pre.encode(prefixes, chat=False)
    ids, mask = pad_left(rows, pre.pad_id, pre.device)
    start = ids.shape[1]
    for _ in range(tokens):
        a, b = (
            m.module(input_ids=ids, attention_mask=mask, position_ids=positions_of(mask)).logits[:, -1].log_softmax(-1)
            for m in (pre, post)
        )
        scores = (b + _W * (a - b)).masked_fill(a < a.amax(-1, keepdim=True) + math.log(_GAMMA), -torch.inf)
        ids = torch.cat([ids, scores.argmax(-1, keepdim=True)], dim=1)
        mask = torch.cat([mask, mask.new_ones((len(mask), 1))], dim=1)
    found = []
    for row in ids[:, start:].tolist():
        end = next((i for i, token in enumerate(row) if token in pre.stop_ids), len(row))
        found.append(row[:end])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prefixes", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--model", default="default")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    pre = LanguageModel.load(options.model)
    post = moved(pre)
    prefixes = [f"{_OPENINGS[i % len(_OPENINGS)]}{' very' * (i // len(_OPENINGS))}" for i in range(options.prefixes)]
    attack = GuidedExtractor(pre, post, w=_W, gamma=_GAMMA)
    size = options.prefixes
    pre.generate(prefixes[:2], max_new_tokens=2, chat=False)

    def greedy() -> object:
        return pre.generate(prefixes, max_new_tokens=options.tokens, chat=False, batch_size=size)

    def ours() -> object:
        return [one.ids for one in attack.generate(prefixes, max_new_tokens=options.tokens, batch_size=size)]

    def theirs() -> object:
        return official(pre, post, prefixes, options.tokens)

    best: dict[str, float] = {}
    written: dict[str, object] = {}
    for _ in range(options.rounds):
        for name, run in (("greedy, one model", greedy), ("guided", ours), ("official way", theirs)):
            start = time.perf_counter()
            written[name] = run()
            best[name] = min(best.get(name, math.inf), time.perf_counter() - start)
    for name, seconds in best.items():
        print(f"{name:20} {seconds:7.2f} s  {seconds / best['greedy, one model']:5.2f} times greedy")
    print(f"guided and official write the same: {written['guided'] == written['official way']}")
    print(f"official over guided: {best['official way'] / best['guided']:.1f} times")


if __name__ == "__main__":
    main()
