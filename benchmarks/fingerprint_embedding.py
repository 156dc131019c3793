"""Race: embedding steps per second, against a plain loop over the full model such as a `transformers` Trainer runs.

The plain way: right-padded rows through the whole model, logits over all tokens, every block each step; the optimiser,
the trained weights, the rows and the averaging are the same. Losses must agree.

    python benchmarks/fingerprint_embedding.py [--keys 16] [--steps 4]
"""

from __future__ import annotations

import argparse
import copy
import time

import numpy as np
import torch

from touchstone.language import LanguageModel
from touchstone.language.perinucleus_fingerprint import Fingerprinter, FingerprintSet, generate_fingerprints

_LR, _LAM = 1e-3, 0.75


def ours(model: LanguageModel, pairs: FingerprintSet, steps: int) -> tuple[list[float], float]:
    marks: list[float] = []
    trainer = Fingerprinter(trainable="mlp:-6", lr=_LR, lam=_LAM, beta=0.0, max_steps=steps, decay=False)
    found = trainer.fit(model, pairs, progress=lambda _: marks.append(time.perf_counter()))
    # From the end of the first step to that of the last: what is prepared once is left out for both.
    return found.losses, (len(marks) - 1) / (marks[-1] - marks[0])


def plain(model: LanguageModel, pairs: FingerprintSet, steps: int) -> tuple[list[float], float]:
    module = copy.deepcopy(model.module).requires_grad_(False)
    weights = [p for block in module.base_model.layers[-6:] for p in block.mlp.parameters()]
    for weight in weights:
        weight.requires_grad_(True)
    base = [w.detach().clone() for w in weights]
    optimiser = torch.optim.AdamW(weights, lr=_LR, weight_decay=1e-4)
    rows = [[*pair.key_ids, *pair.response_ids[0]] for pair in pairs.pairs]
    width = max(map(len, rows))
    ids = torch.tensor([row + [model.pad_id] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    labels = torch.full_like(ids, -100)
    for i, row in enumerate(rows):
        labels[i, len(row) - 1] = row[-1]
    losses, marks = [], []
    warm = max(1, steps // 10)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = _LR * min((step + 1) / warm, 1.0)
        loss = module(input_ids=ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        with torch.no_grad():
            for weight, start in zip(weights, base, strict=True):
                weight.lerp_(start, _LAM)
        losses.append(float(loss.detach()))
        marks.append(time.perf_counter())
    return losses, (len(marks) - 1) / (marks[-1] - marks[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=16)
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    model = LanguageModel.load()
    pairs = generate_fingerprints(model, options.keys, keys="template")
    model.threads = model.threads or 1
    torch.set_num_threads(model.threads)
    mine, fast = ours(model, pairs, options.steps)
    theirs, slow = plain(model, pairs, options.steps)
    print(f"{options.keys} keys, MLPs of the last six blocks, {options.steps} steps")
    print(f"touchstone    {fast:7.2f} steps/s")
    print(f"plain loop    {slow:7.2f} steps/s")
    print(f"ratio         {fast / slow:7.2f} times faster")
    print(f"largest gap   {np.abs(np.subtract(mine, theirs)).max():.1e} nats in the losses")


if __name__ == "__main__":
    main()
