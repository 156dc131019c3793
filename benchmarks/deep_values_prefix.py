"""Race: the benchmark with shared examples against the reference loop, which sends every prompt whole.

Same embedded model, trials and answers (log p(" A") − log p(" B") after "Option"); both one order.

    python benchmarks/deep_values_prefix.py [--tuples 2] [--tests 10] [--rounds 1]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from touchstone.language import LanguageModel
from touchstone.language.deep_value_benchmark import DeepValueBenchmark, LogProbChooser
from touchstone.language.deep_value_benchmark.prompting import ANSWER, rendered


def reference(model: LanguageModel, bench: DeepValueBenchmark) -> np.ndarray:
    a, b = (model.encode_continuation(letter)[0] for letter in (" A", " B"))
    margins = []
    for trial in bench.trials:
        prompt = [{"role": "user", "content": rendered(trial)}, {"role": "assistant", "content": ANSWER}]
        with torch.inference_mode():
            logits = model.module(torch.tensor(model.encode([prompt])), logits_to_keep=1).logits[0, -1].log_softmax(-1)
        margins.append(float(logits[a] - logits[b]))
    return np.array(margins)


def ours(model: LanguageModel, bench: DeepValueBenchmark) -> np.ndarray:
    return bench.run(LogProbChooser(model), order="random").answers["margin"].to_numpy(dtype=float)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tuples", type=int, default=2)
    parser.add_argument("--tests", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    model = LanguageModel.load()
    model.generate(["Hello."], max_new_tokens=2)
    torch.set_num_threads(model.threads or 1)
    print(f"{options.tuples} tuples, {options.tests} tests each")
    for shots in (4, 20, 40):
        bench = DeepValueBenchmark.generate(options.tuples, tests_per=options.tests, shots=[shots])
        seconds: dict[str, list[float]] = {"ours": [], "reference": []}
        for _ in range(options.rounds):
            for name, way in (("ours", ours), ("reference", reference)):
                start = time.perf_counter()
                margins = way(model, bench)
                seconds[name].append(time.perf_counter() - start)
                if name == "ours":
                    mine = margins
        a, b = min(seconds["ours"]), min(seconds["reference"])
        gap = np.abs(mine - margins).max()
        print(
            f"{shots:3d} examples  ours {a:6.1f} s  reference {b:6.1f} s  {b / a:4.1f} times faster  gap {gap:.1e} nats"
        )


if __name__ == "__main__":
    main()
