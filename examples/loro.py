"""Mask the embedded model, run it with its secrets in another process, and see what the masks give away.

python examples/loro.py
"""

from __future__ import annotations

import numpy as np

from touchstone.language import LanguageModel
from touchstone.language.loro import LoROConfig, Subprocess, predicted_error, protect, rank_for, spectral_attack


def main() -> None:
    model = LanguageModel.load()
    protected = protect(model.module, LoROConfig(rank=24, policy="full"))
    summary = protected.summary()
    print(f"{summary['masked_parameters']:,} weights masked, {summary['secret_bytes']:,} secret bytes")

    masked = LanguageModel(protected.ree, model.tokenizer, source="masked", threads=model.threads)
    prompt = ["Name one colour."]
    print("plain      ", model.generate(prompt, max_new_tokens=8))
    with Subprocess(protected.tee) as enclave, protected.through(enclave):
        print("protected  ", masked.generate(prompt, max_new_tokens=8))
    print(f"            {enclave.sent:,} bytes into the other process, {enclave.received:,} out of it")
    with protected.ree_only():
        print("stolen     ", masked.generate(prompt, max_new_tokens=8))

    # An attacker who has the public weights, and a private update of a thousandth of their size.
    rng = np.random.default_rng(0)
    public = 0.05 * rng.standard_normal((576, 576))
    update = 1e-3 * rng.standard_normal((576, 576))
    mask = rng.standard_normal((576, 48)) @ rng.standard_normal((48, 576))
    found, rank = spectral_attack(public + update + 0.05 * mask / mask.std(), public)
    error = np.linalg.norm(found - public - update) / np.linalg.norm(update)
    predicted = predicted_error(576, 576, 48)
    print(f"an attacker takes rank {rank} away and finds the update with error {error:.2f} ({predicted:.2f})")
    print(f"rank that keeps that error at 0.9: {rank_for(576, 576, 0.9)} of 576; a mask of full rank: mask='fwht'")


if __name__ == "__main__":
    main()
