"""Race: a round of LARGO against the reference loop, written plainly from its description, on the embedded model.

A round is 20 optimisation steps, the decoding of n tokens, and a reply of 50; n is 200 in the official code. The
reference embeds by a one-hot product with the whole table, tokenises and embeds the prompt anew in every step, reads
the whole sequence forward and backward with the language head at every position, keeps the graph, and decodes the
words of the latent without a cache; the reply is that of `generate` with its cache. Ours reads what stands before the
slot once, gathers embeddings, applies the head at the tokens of the target, and decodes with a cache. Both start from
the same latent. Their losses are compared: Adam divides by the size of a gradient, so that rounding grows with the
steps.

    python benchmarks/largo_round.py [--length 200] [--steps 20] [--repeats 1]
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch

from touchstone.language import LanguageModel, threads
from touchstone.language.largo import Largo
from touchstone.language.largo.house_rule import BEHAVIOURS, RULE
from touchstone.language.largo.latent import start
from touchstone.language.largo.reflection import reflect
from touchstone.language.largo.slot import Slot

LR = 1e-2


class Reference:
    """One behaviour, as the official loop goes about it."""

    def __init__(self, model: LanguageModel, slot: Slot) -> None:
        self.model, self.slot = model, slot
        self.table = model.module.get_input_embeddings().weight.detach()

    def one_hot(self, ids: list[int]) -> torch.Tensor:
        rows = torch.nn.functional.one_hot(torch.tensor(ids), self.table.shape[0]).to(self.table.dtype)
        return rows @ self.table

    def loss(self, latent: torch.Tensor) -> torch.Tensor:
        slot, tokenizer = self.slot, self.model.tokenizer
        before = tokenizer(slot.frame.before, add_special_tokens=False)["input_ids"]
        after = tokenizer(slot.frame.after, add_special_tokens=False)["input_ids"]
        given = torch.cat([self.one_hot(before), latent, self.one_hot([*after, *slot.target_ids])])[None]
        logits = self.model.module(inputs_embeds=given, use_cache=False).logits[0]
        m = len(slot.target_ids)
        return torch.nn.functional.cross_entropy(logits[-m - 1 : -1], torch.tensor(slot.target_ids))

    def optimise(self, latent: torch.Tensor, steps: int) -> tuple[torch.Tensor, list[float]]:
        free = latent.clone().requires_grad_()
        optimiser = torch.optim.Adam([free], lr=LR, weight_decay=0.01)
        losses = []
        for _ in range(steps):
            optimiser.zero_grad()
            loss = self.loss(free)
            loss.backward(retain_graph=True)
            torch.nn.utils.clip_grad_norm_([free], 1.0)
            optimiser.step()
            losses.append(float(loss.detach()))
        return free.detach(), losses

    @torch.inference_mode()
    def continued(self, given: torch.Tensor, tokens: int) -> list[int]:
        said: list[int] = []
        for _ in range(tokens):
            whole = torch.cat([given, self.one_hot(said)])[None] if said else given[None]
            said.append(int(self.model.module(inputs_embeds=whole, use_cache=False).logits[0, -1].argmax()))
        return said


def reference_round(attack: Largo, latent: torch.Tensor, steps: int, reply: int) -> tuple[float, list[float]]:
    trial = attack.trial(BEHAVIOURS[0])
    loop, frame = Reference(attack.model, trial.slot), attack.template.reflect
    ids = [attack.model.encode_continuation(text) for text in (frame.before, frame.after)]
    began = time.perf_counter()
    found, losses = loop.optimise(latent, steps)
    said = loop.continued(torch.cat([loop.one_hot(ids[0]), found, loop.one_hot(ids[1])]), attack.suffix_len)
    prompt = torch.tensor([trial.slot.prompt_ids(attack.model.decode(said))])
    with torch.inference_mode():
        attack.model.module.generate(prompt, max_new_tokens=reply, do_sample=False, pad_token_id=attack.model.pad_id)
    return time.perf_counter() - began, losses


def our_round(attack: Largo, latent: torch.Tensor, reply: int, samples: int) -> tuple[float, list[float]]:
    began = time.perf_counter()
    trial = attack.trial(BEHAVIOURS[0])
    found, losses = attack.descent.run(trial.slot, latent)
    options: dict[str, Any] = {"length": attack.suffix_len, "samples": samples, "temperature": 1.0}
    rows = reflect(
        attack.model,
        attack.template.reflect,
        found,
        attack.words,
        generator=torch.Generator().manual_seed(0),
        **options,
    )
    texts = [attack.model.decode(row).strip() for row in rows]
    if samples:
        trial.losses(texts)
    trial.replies(texts[:1])
    return time.perf_counter() - began, losses[:-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=200)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--reply", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=1)
    chosen = parser.parse_args()
    model = LanguageModel.load()
    for parameter in model.module.parameters():
        parameter.requires_grad_(False)
    attack = Largo(
        model, acknowledge_own_model=True, system=RULE, suffix_len=chosen.length, steps=chosen.steps, lr=LR,
        max_new_tokens=chosen.reply,
    )  # fmt: skip
    latent = start(model, "mean_embedding", chosen.length)
    model.threads = threads.fastest(model.module, model.device)
    times: dict[str, list[float]] = {"reference": [], "ours, one text": [], "ours, best of five": []}
    for _ in range(chosen.repeats):
        with threads.limited(model.threads):
            seconds, plain = reference_round(attack, latent, chosen.steps, chosen.reply)
        times["reference"].append(seconds)
        for name, samples in (("ours, one text", 0), ("ours, best of five", 4)):
            seconds, ours = our_round(attack, latent, chosen.reply, samples)
            times[name].append(seconds)
    base = statistics.median(times["reference"])
    for name, values in times.items():
        middle = statistics.median(values)
        print(f"{name:20s} {middle:7.2f} s a round   {base / middle:5.2f} times the reference's speed")
    print(f"loss at the first step {plain[0]:.6f} and {ours[0]:.6f}, at the last {plain[-1]:.4f} and {ours[-1]:.4f}")


if __name__ == "__main__":
    main()
