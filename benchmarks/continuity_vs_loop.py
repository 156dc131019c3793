"""Race: single-change TV at every length of a grid, from one pass an edited prompt, against a pass a prompt and length.

The plain way is that of an evaluation harness: every prompt, base or edited, at every length is a prompt of its own
with logits over all of its tokens. Same embedded model, edits, and threads; the TVs must agree.

    python benchmarks/continuity_vs_loop.py [--lengths 16] [--draws 4] [--rounds 2]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from touchstone.language import LanguageModel
from touchstone.language.isolation_continuity import pattern
from touchstone.language.isolation_continuity.divergence import total_variation
from touchstone.language.isolation_continuity.reading import next_log_probs

Rows = list[list[int]]


def ours(model: LanguageModel, base: list[int], edited: Rows, after: list[int]) -> np.ndarray:
    found = next_log_probs(model, [base, *edited], after)
    return total_variation(found[:1], found[1:])


def plain(model: LanguageModel, base: list[int], edited: Rows, after: list[int]) -> np.ndarray:
    found = np.zeros((len(edited), len(after)))
    with torch.inference_mode():
        for j, place in enumerate(after):
            logps = []
            for row in (base, *edited):
                logits = model.module(input_ids=torch.tensor([row[: place + 1]]), use_cache=False).logits
                logps.append(logits[0, -1].log_softmax(-1).numpy())
            found[:, j] = [total_variation(logps[0], other) for other in logps[1:]]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, default=16, help="lengths of the grid, up to 256 tokens")
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    model = LanguageModel.load()
    body = pattern(model, length=256)
    rng = np.random.default_rng(0)
    # One change in the first tokens serves every length of the grid.
    lengths = np.unique(np.linspace(16, 256, options.lengths).round().astype(int)).tolist()
    base = [*body.head, *body.ids]
    edited = [body.edited(256, [int(rng.integers(12))], rng) for _ in range(options.draws)]
    after = [len(body.head) + n - 1 for n in lengths]
    ours(model, base, edited[:1], after[:1])
    torch.set_num_threads(model.threads or 1)
    seconds: dict[str, list[float]] = {"touchstone": [], "loop": []}
    for _ in range(options.rounds):
        # The two take turns, so that a busy machine is busy for both.
        for name, way in (("touchstone", ours), ("loop", plain)):
            start = time.perf_counter()
            found = way(model, base, edited, after)
            seconds[name].append(time.perf_counter() - start)
            if name == "touchstone":
                mine = found
    a, b = min(seconds["touchstone"]), min(seconds["loop"])
    print(f"{options.draws} edited prompts and {len(lengths)} lengths up to 256 tokens")
    print(f"touchstone    {a:7.2f} s")
    print(f"loop          {b:7.2f} s")
    print(f"ratio         {b / a:7.2f} times faster")
    print(f"largest gap   {np.abs(mine - found).max():.1e} in TV")


if __name__ == "__main__":
    main()
