"""Race: asking a model about triples with what all questions share read once, against a full prompt a question.

The plain way is the official loop's in `transformers`: batches of full prompts, logits of all positions, no reuse.

    python benchmarks/triple_probing.py [--triples 64]
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np
import torch

from touchstone.language import LanguageModel, threads
from touchstone.language.batching import pad_left, positions_of
from touchstone.language.knowledge_unlearning_eval import TripleProbe
from touchstone.language.knowledge_unlearning_eval.world import make_world


@torch.inference_mode()
def plain(model: LanguageModel, prompts: list[str], batch: int) -> np.ndarray:
    rows = model.encode(prompts, chat=False)
    words = [model.encode_continuation(f" {word}")[0] for word in ("Yes", "No", "Unknown")]
    found = []
    with threads.suiting(model):
        for start in range(0, len(rows), batch):
            ids, mask = pad_left(rows[start : start + batch], model.pad_id, model.device)
            logits = model.module(input_ids=ids, attention_mask=mask, position_ids=positions_of(mask)).logits[:, -1]
            found.append(logits.softmax(-1)[:, words])
    return torch.cat(found).numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--triples", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    model = LanguageModel.load()
    triples = make_world(0).graph.triples[: options.triples]
    best: dict[str, float] = {}
    results: dict[str, np.ndarray] = {}
    for _ in range(options.rounds):
        probe = TripleProbe(model, "complete", batch_size=options.batch)
        start = time.perf_counter()
        results["ours"] = probe.score(triples).options
        best["ours"] = min(best.get("ours", math.inf), time.perf_counter() - start)
        start = time.perf_counter()
        results["plain"] = plain(model, probe.prompts(triples), options.batch)
        best["plain"] = min(best.get("plain", math.inf), time.perf_counter() - start)
    for name, seconds in best.items():
        print(f"{name:6} {seconds:7.2f} s  {len(triples) / seconds:6.1f} triples a second")
    gap = np.abs(results["ours"] - results["plain"]).max()
    print(f"{best['plain'] / best['ours']:.1f} times faster, probabilities within {gap:.1g}")


if __name__ == "__main__":
    main()
