"""Race: activations of 512 prompts at all blocks, at the last token, against nnsight, TransformerLens and transformers.

Same embedded model, prompts, batch size, threads and result, float32 [prompts, blocks, width]; every contender runs in
its own process, so that peak memory is its own. The peers get prompts in order of length as well, which saves them
padding; nothing but the wanted positions is kept. Peers that are not installed are passed over:

    pip install nnsight transformer-lens
    python benchmarks/activations_vs_peers.py [--prompts 512] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

from touchstone.language import LanguageModel

BATCH = 32
WAYS = ["touchstone", "transformers", "nnsight", "transformer_lens"]
PLACES = ["the sea", "an old market", "the mountains in winter", "a small town", "the desert", "a river with two names"]
ASKS = [
    "What should I pack for a week at {}?",
    "Write three sentences about {} for a child, and end with a question that the child can answer.",
    "Is {} worth a visit?",
    "I have two days, little money and a bicycle. How do I make the best of {}? Begin with what most people overlook, "
    "then say what I can skip, and close with one thing to eat.",
]
DETAILS = ["", " Keep it short.", " Use plain words and no lists.", " Say what you are not sure about."]


def prompts_of(count: int) -> list[str]:
    every = [ask.format(place) + detail for ask in ASKS for place in PLACES for detail in DETAILS]
    return [every[i % len(every)] + f" This is question {i}." for i in range(count)]


def batches(model: LanguageModel, prompts: list[str]) -> Iterator[tuple[list[int], dict[str, torch.Tensor]]]:
    """Left-padded batches of similar length, for the peers."""
    ids = model.encode(prompts)
    order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
    pad = model.tokenizer.pad_token_id or 0
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        width = len(ids[rows[0]])
        tokens = torch.full((len(rows), width), pad)
        mask = torch.zeros((len(rows), width), dtype=torch.long)
        for k, i in enumerate(rows):
            tokens[k, width - len(ids[i]) :] = torch.tensor(ids[i])
            mask[k, width - len(ids[i]) :] = 1
        yield rows, {"input_ids": tokens, "attention_mask": mask}


def ours(model: LanguageModel) -> Callable[[list[str]], np.ndarray]:
    sites = model.sites("output")

    def read(prompts: list[str]) -> np.ndarray:
        found = model.activations(prompts, sites, positions="last", batch_size=BATCH)
        return torch.stack([found[site] for site in sites], dim=1).numpy()

    return read


def transformers(model: LanguageModel) -> Callable[[list[str]], np.ndarray]:
    def read(prompts: list[str]) -> np.ndarray:
        result = np.empty((len(prompts), len(model.blocks), model.width), np.float32)
        with torch.inference_mode():
            for rows, batch in batches(model, prompts):
                # The base model ends in a norm: its last hidden state is not the last block's output.
                kept: list[torch.Tensor] = []
                last = model.blocks[-1].register_forward_hook(
                    lambda _, __, out, kept=kept: kept.append(out[0] if isinstance(out, tuple) else out)
                )
                states = model.module.base_model(**batch, output_hidden_states=True, use_cache=False).hidden_states
                last.remove()
                result[rows] = torch.stack([h[:, -1] for h in (*states[1:-1], kept[0])], dim=1).numpy()
        return result

    return read


def nnsight(model: LanguageModel) -> Callable[[list[str]], np.ndarray]:
    from nnsight import NNsight

    wrapped = NNsight(model.module)

    def read(prompts: list[str]) -> np.ndarray:
        result = np.empty((len(prompts), len(model.blocks), model.width), np.float32)
        with torch.inference_mode():
            for rows, batch in batches(model, prompts):
                with wrapped.trace(**batch, use_cache=False, logits_to_keep=1):
                    kept = []
                    for block in wrapped.model.layers:
                        out = block.output
                        kept.append((out[0] if isinstance(out, tuple) else out)[:, -1])
                    stacked = torch.stack(kept, dim=1).save()
                result[rows] = stacked.numpy()
        return result

    return read


def transformer_lens(model: LanguageModel) -> Callable[[list[str]], np.ndarray]:
    from transformer_lens.model_bridge import TransformerBridge

    bridge = TransformerBridge.boot_transformers(
        "HuggingFaceTB/SmolLM2-135M-Instruct", hf_model=model.module, tokenizer=model.tokenizer, device="cpu"
    )
    names = [f"blocks.{i}.hook_out" for i in range(len(model.blocks))]

    def read(prompts: list[str]) -> np.ndarray:
        result = np.empty((len(prompts), len(model.blocks), model.width), np.float32)
        with torch.inference_mode():
            for rows, batch in batches(model, prompts):
                _, cache = bridge.run_with_cache(
                    batch["input_ids"], attention_mask=batch["attention_mask"], names_filter=names, pos_slice=-1
                )
                kept = [cache[name] for name in names]
                result[rows] = torch.stack([h[:, -1] if h.dim() == 3 else h for h in kept], dim=1).numpy()
        return result

    return read


def contend(way: str, count: int) -> None:
    """One contender: seconds, MB above the loaded model, and a digest of the result."""
    model = LanguageModel.load()
    torch.set_num_threads(model.threads or 1)
    prompts = prompts_of(count)
    read = {"touchstone": ours, "transformers": transformers, "nnsight": nnsight, "transformer_lens": transformer_lens}
    run = read[way](model)
    run(prompts[:2])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    found = run(prompts)
    seconds = time.perf_counter() - start
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    probe = found[:: max(1, count // 16)].astype(np.float64)
    print(json.dumps({"seconds": seconds, "mb": peak, "threads": model.threads, "digest": probe.mean(axis=2).tolist()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        contend(options.way, options.prompts)
        return
    print(f"{options.prompts} prompts, last token, batches of {BATCH}, best of {options.rounds} rounds")
    runs: dict[str, list[dict]] = {way: [] for way in WAYS}
    # Contenders take turns, so that a busy machine is busy for all of them.
    for _ in range(options.rounds):
        for way in WAYS:
            command = [sys.executable, __file__, "--way", way, "--prompts", str(options.prompts)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                print(f"{way:17s} did not run: {done.stderr.strip().splitlines()[-1][:120]}")
            else:
                runs[way].append(json.loads(done.stdout.strip().splitlines()[-1]))
    ours_seconds = min(run["seconds"] for run in runs["touchstone"])
    for way, found in runs.items():
        if not found:
            continue
        best = min(run["seconds"] for run in found)
        peak = np.median([run["mb"] for run in found])
        gap = np.abs(np.subtract(found[0]["digest"], runs["touchstone"][0]["digest"])).max()
        times = best / ours_seconds
        print(f"{way:17s} {best:7.2f} s  {times:5.2f} times ours  peak +{peak:6.0f} MB  largest gap {gap:.1e}")


if __name__ == "__main__":
    main()
