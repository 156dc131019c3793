"""Race: probes of all layers at once, ranking of gate rows, and span means, each against the plain way.

1. L2 logistic probes of all layers by one solver, against a loop of SGD probes over the layers (a linear layer with two
   outputs, 300 epochs, batch 128), the recipe of public ports. Same random features; both must fit the training rows.
2. The K gate rows closest to a direction: one product a layer and a running list, against a loop over rows. Same rows.
3. Means over spans kept by hooks, against keeping all hidden states of a pass and averaging afterwards. Same means.

    python benchmarks/awareness_probe_and_edit.py [--layers 16] [--spans 1500] [--width 5120]

`--layers 64` is the shape of a 32B model (3 GB of features).
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from touchstone.language import LanguageModel
from touchstone.language.test_awareness import build_pairs
from touchstone.language.test_awareness.edit import rank_rows
from touchstone.language.test_awareness.linear import fit_logistic
from touchstone.language.test_awareness.reading import layer_sites, span_means


def timed(function, *arguments):
    start = time.perf_counter()
    result = function(*arguments)
    return time.perf_counter() - start, result


def sgd_loop(x: torch.Tensor, y: torch.Tensor) -> list[torch.nn.Linear]:
    probes = []
    for layer in x:
        torch.manual_seed(0)
        probe = torch.nn.Linear(x.shape[2], 2)
        optimiser = torch.optim.SGD(probe.parameters(), lr=0.008)
        for _ in range(300):
            for rows in torch.randperm(len(y)).split(128):
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(probe(layer[rows]), y[rows]).backward()
                optimiser.step()
        probes.append(probe)
    return probes


def probes(layers: int, spans: int, width: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(layers, spans, width, generator=generator)
    y = torch.randint(2, (spans,), generator=generator)
    ours, fit = timed(fit_logistic, x, y)
    theirs, loop = timed(sgd_loop, x, y)
    mine = float(((fit.decide(x)[:, 0] > 0).long() == y).float().mean())
    with torch.inference_mode():
        other = float(np.mean([(p(layer).argmax(-1) == y).float().mean() for p, layer in zip(loop, x, strict=True)]))
    print(f"probes, {layers} layers, {spans} spans, width {width}")
    print(f"  all at once  {ours:8.2f} s   fits {mine:.3f} of the training rows, {fit.iterations} iterations")
    print(f"  SGD loop     {theirs:8.2f} s   fits {other:.3f}")
    print(f"  ratio        {theirs / ours:8.1f} times faster")


def row_loop(weights: list[torch.Tensor], direction: torch.Tensor, k: int) -> list[tuple[int, int]]:
    scored = []
    for layer, weight in enumerate(weights):
        for row in range(len(weight)):
            cosine = torch.nn.functional.cosine_similarity(weight[row], direction, dim=0)
            scored.append((-float(cosine), layer, row))
    return [(layer, row) for _, layer, row in sorted(scored)[:k]]


def ranking(layers: int = 8, rows: int = 6912, width: int = 1280, k: int = 100) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(rows, width, generator=generator) for _ in range(layers)]
    direction = torch.randn(width, generator=generator)
    rank_rows(weights, direction, k)
    ours, (where, which, _) = timed(rank_rows, weights, direction, k)
    theirs, expected = timed(row_loop, weights, direction, k)
    same = sum(a == b for a, b in zip(zip(where.tolist(), which.tolist(), strict=True), expected, strict=True))
    print(f"ranking, {layers} layers of {rows} rows, width {width}, K {k}")
    print(f"  products     {ours:8.3f} s   {same} of {k} rows in the same place")
    print(f"  row loop     {theirs:8.3f} s")
    print(f"  ratio        {theirs / ours:8.0f} times faster")


def means(prompts: int = 32) -> None:
    model = LanguageModel.load()
    pairs = build_pairs(n=prompts // 2, tokenise=model.encode_continuation)
    ids = model.encode([pair.side(side) for pair in pairs for side in (False, True)])
    spans = [[(len(row) - 12, len(row) - 4)] for row in ids]
    sites = layer_sites(model)

    # As span_means does it: padded on the right, 32 at a time.
    padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in ids], batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(row), dtype=torch.long) for row in ids], batch_first=True)

    def all_states() -> np.ndarray:
        kept = []
        with torch.inference_mode():
            for rows in torch.arange(len(ids)).split(32):
                found = model.module.base_model(padded[rows], attention_mask=mask[rows], output_hidden_states=True)
                kept.append(torch.stack(found.hidden_states, dim=1))
        states = torch.cat(kept)
        return np.stack([row[:, a:b].mean(1).numpy() for row, [(a, b)] in zip(states, spans, strict=True)])

    span_means(model, ids, spans, sites)
    torch.set_num_threads(model.threads or 1)
    ours, mine = timed(span_means, model, ids, spans, sites)
    theirs, other = timed(all_states)
    # The last hidden state of transformers went through the final norm.
    close = np.abs(mine[:, :-1] - other[:, :-1]).max()
    kept = padded.numel() * len(sites) * model.width * 4
    print(f"span means, {len(ids)} prompts of SmolLM2-135M-Instruct, {len(sites)} layers, {model.threads} thread(s)")
    print(f"  hooks        {ours:8.2f} s   keeps {mine.nbytes / 2**20:8.2f} MB   largest difference {close:.1e}")
    print(f"  all states   {theirs:8.2f} s   keeps {kept / 2**20:8.2f} MB")
    print(f"  ratio        {theirs / ours:8.1f} times faster, {kept / mine.nbytes:.0f} times less kept")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--spans", type=int, default=1500)
    parser.add_argument("--width", type=int, default=5120)
    options = parser.parse_args()
    probes(options.layers, options.spans, options.width)
    ranking()
    means()


if __name__ == "__main__":
    main()
