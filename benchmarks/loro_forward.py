"""Race: the protected model against the plain one and against the official layer, written plainly.

The official layer computes (xB)A anew for every layer, with factors of its own, and subtracts it from the result. Ours
multiplies an input by its factors once for all layers that read it, merges terms, and subtracts in place.

    python benchmarks/loro_forward.py [--tokens 128] [--repeats 3]
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from touchstone.language import LanguageModel, threads
from touchstone.language.loro import LoROConfig, protect
from touchstone.language.loro.layers import find

RANK = 24


class Official(nn.Module):
    """A masked linear layer with factors of its own."""

    def __init__(self, plain: nn.Linear, rank: int) -> None:
        super().__init__()
        self.left = torch.rand(plain.in_features, rank) * 0.1
        self.right = torch.rand(rank, plain.out_features) * 0.1
        self.hidden = nn.Parameter(plain.weight.detach() + (self.left @ self.right).T, requires_grad=False)
        self.bias = plain.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.hidden, self.bias) - (x @ self.left) @ self.right


def official(module: nn.Module) -> nn.Module:
    found = copy.deepcopy(module)
    for layer in find(module):
        parent, _, name = layer.name.rpartition(".")
        setattr(found.get_submodule(parent), name, Official(found.get_submodule(layer.name), RANK))  # type: ignore[arg-type]
    return found


def timed(work: Callable[[], Any], repeats: int) -> float:
    work()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    model = LanguageModel.load()
    ids = torch.randint(100, 20_000, (1, chosen.tokens), generator=torch.Generator().manual_seed(0))
    count = threads.fastest(model.module, model.device)
    with torch.inference_mode(), threads.limited(count):
        plain = timed(lambda: model.module(ids).logits, chosen.repeats)
        print(f"plain forward pass of {chosen.tokens} tokens: {plain:.2f} s")
        for name, make in (
            ("ours, low rank", lambda: protect(model.module, LoROConfig(rank=RANK, seed=0))),
            ("ours, one term", lambda: protect(model.module, LoROConfig(rank=RANK, terms=1, pool=1, seed=0))),
            ("ours, full rank", lambda: protect(model.module, LoROConfig(rank=RANK, mask="fwht", seed=0))),
            ("official layer", lambda: official(model.module)),
        ):
            hidden = make()
            seconds = timed(lambda hidden=hidden: hidden(ids).logits, chosen.repeats)
            gap = float((hidden(ids).logits - model.module(ids).logits).abs().max())
            share = (seconds - plain) / plain
            print(f"{name:16s} {seconds:.2f} s, correction {share:+.0%} of the plain pass, largest gap {gap:.0e}")


if __name__ == "__main__":
    main()
