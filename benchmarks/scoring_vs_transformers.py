"""Race: scores of continuations that share a prompt, and prompts that share a head, against plain transformers.

The plain way pads whole sequences, prompt and continuation, in order of length, runs the model and sums the
log-probabilities of the continuation's tokens. Same embedded model, texts, batch size and threads; the sums must agree.

    python benchmarks/scoring_vs_transformers.py [--prompts 16] [--rounds 3]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from touchstone.language import LanguageModel

BATCH = 32
SYSTEM = (
    "You advise the visitors of a public library. Be brief and friendly. The library opens at nine and closes at six; "
    "on Sundays it is shut. Books may be kept for four weeks, films for one. Nobody pays for the first card. If you do "
    "not know something, say so and name the desk on the ground floor."
)
QUESTIONS = [
    "May I keep {} for two months?",
    "Where do I find {}?",
    "Do you have {} in large print?",
    "Can {} be copied?",
]
THINGS = ["a novel", "an atlas", "a film about bees", "the town's old newspapers"]
REPLIES = [
    "Yes, you may.",
    "No, I am afraid not.",
    "I do not know; please ask at the desk on the ground floor.",
    "It is upstairs.",
    "We open at nine.",
    "That costs nothing.",
    "Only for a week.",
    "Please bring your card.",
]


def ours(model: LanguageModel, prompts: list[str]) -> np.ndarray:
    return model.log_likelihood(prompts, REPLIES, system=SYSTEM, batch_size=BATCH).total


def plain(model: LanguageModel, prompts: list[str]) -> np.ndarray:
    heads = model.encode(prompts, system=SYSTEM)
    tails = [model.encode_continuation(reply) for reply in REPLIES]
    rows = [(i, k, head, tail) for i, head in enumerate(heads) for k, tail in enumerate(tails)]
    rows.sort(key=lambda row: -len(row[2]) - len(row[3]))
    total = np.zeros((len(heads), len(tails)))
    pad = model.tokenizer.pad_token_id or 0
    with torch.inference_mode():
        for start in range(0, len(rows), BATCH):
            batch = rows[start : start + BATCH]
            width = max(len(head) + len(tail) for _, _, head, tail in batch)
            ids = torch.full((len(batch), width), pad)
            mask = torch.zeros_like(ids)
            for r, (_, _, head, tail) in enumerate(batch):
                ids[r, : len(head) + len(tail)] = torch.tensor(head + tail)
                mask[r, : len(head) + len(tail)] = 1
            logits = model.module(input_ids=ids, attention_mask=mask, use_cache=False).logits
            for r, (i, k, head, tail) in enumerate(batch):
                # Only the continuation's positions go through the softmax.
                logp = logits[r, len(head) - 1 : len(head) + len(tail) - 1].log_softmax(-1)
                total[i, k] = logp.gather(1, torch.tensor(tail).unsqueeze(1)).double().sum().item()
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    model = LanguageModel.load()
    every = [question.format(thing) for question in QUESTIONS for thing in THINGS]
    prompts = [every[i % len(every)] for i in range(options.prompts)]
    ours(model, prompts[:2])
    torch.set_num_threads(model.threads or 1)
    seconds: dict[str, list[float]] = {"touchstone": [], "transformers": []}
    for _ in range(options.rounds):
        # The two take turns, so that a busy machine is busy for both.
        for name, way in (("touchstone", ours), ("transformers", plain)):
            start = time.perf_counter()
            found = way(model, prompts)
            seconds[name].append(time.perf_counter() - start)
            if name == "touchstone":
                mine = found
    a, b = min(seconds["touchstone"]), min(seconds["transformers"])
    print(f"{len(prompts)} prompts that share a system message, {len(REPLIES)} continuations each")
    print(f"touchstone    {a:7.2f} s")
    print(f"transformers  {b:7.2f} s")
    print(f"ratio         {b / a:7.2f} times faster")
    print(f"largest gap   {np.abs(mine - found).max():.1e} nats")


if __name__ == "__main__":
    main()
