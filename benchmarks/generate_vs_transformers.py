"""Race: `LanguageModel.generate` on 32 prompts against plain transformers, one prompt after the other.

Same model, same prompts, greedy, same number of new tokens; both warmed up; the replies must be the same.

    python benchmarks/generate_vs_transformers.py [--tokens 32]
"""

from __future__ import annotations

import argparse
import time

import torch

from touchstone.language import LanguageModel

TOPICS = ["the sea", "a market", "old maps", "rain", "bread", "a train", "winter", "bees"]
ASKS = [
    "Write one sentence about {}.",
    "Name three things about {}.",
    "Why do people like {}?",
    "Describe {} to a child.",
]


def ours(model: LanguageModel, prompts: list[str], tokens: int) -> list[str]:
    return model.generate(prompts, max_new_tokens=tokens)


def plain(model: LanguageModel, prompts: list[str], tokens: int) -> list[str]:
    replies = []
    for prompt in prompts:
        ids = model.tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_tensors="pt"
        )
        with torch.inference_mode():
            out = model.module.generate(**ids, max_new_tokens=tokens, do_sample=False)
        replies.append(model.decode(out[0, ids["input_ids"].shape[1] :].tolist()))
    return replies


def timed(function, *arguments) -> tuple[float, list[str]]:
    start = time.perf_counter()
    result = function(*arguments)
    return time.perf_counter() - start, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=32)
    tokens = parser.parse_args().tokens
    model = LanguageModel.load()
    prompts = [ask.format(topic) for ask in ASKS for topic in TOPICS]
    ours(model, prompts[:2], 2)
    plain(model, prompts[:1], 2)
    # Both race with the thread count that was measured to be faster here.
    torch.set_num_threads(model.threads or 1)
    a_seconds, a = timed(ours, model, prompts, tokens)
    b_seconds, b = timed(plain, model, prompts, tokens)
    same = sum(x == y for x, y in zip(a, b, strict=True))
    print(f"prompts {len(prompts)}, at most {tokens} new tokens each, {model.threads} thread(s)")
    print(f"touchstone    {a_seconds:7.2f} s")
    print(f"transformers  {b_seconds:7.2f} s")
    print(f"ratio         {b_seconds / a_seconds:7.2f} times faster")
    print(f"same replies  {same} of {len(prompts)} (rounding decides near ties)")


if __name__ == "__main__":
    main()
