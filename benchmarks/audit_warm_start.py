"""Race: how long `touchstone audit` takes to its first check when warm, beside plain imports and loading.

    python benchmarks/audit_warm_start.py

The start is everything before the first check measures something: interpreter, imports, model, lock, record. The floor
is a process that imports torch and transformers and loads the same cached folder with `from_pretrained`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

START = """
import sys, touchstone.audit as audit
from touchstone import catalog
from touchstone.errors import InputError
module = catalog.method("angular-steering").part("check")
def stop(subject, settings, run):
    raise InputError("stop here")
module.check = stop
from touchstone.plan import default_plan
audit.run_audit(default_plan(), sys.argv[1])
"""
FLOOR = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32, local_files_only=True)
AutoTokenizer.from_pretrained(sys.argv[1], local_files_only=True)
"""


def seconds(*command: str) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    from touchstone.language import embedded

    cached = str(embedded.fetch())
    rounds = []
    with tempfile.TemporaryDirectory() as scratch:
        for i in range(4):
            ours = seconds(sys.executable, "-c", START, str(Path(scratch) / str(i)))
            floor = seconds(sys.executable, "-c", FLOOR, cached)
            helped = seconds(sys.executable, "-m", "touchstone.cli", "--help")
            if i:  # the first round warms the disk cache
                rounds.append((ours, floor, helped))
    ours, floor, helped = (sorted(column)[1] for column in zip(*rounds, strict=True))
    print("medians of three rounds")
    print(f"audit, to the first check   {ours:6.2f} s")
    print(f"imports and from_pretrained {floor:6.2f} s   ratio {ours / floor:.2f}")
    print(f"touchstone --help           {helped:6.2f} s")


if __name__ == "__main__":
    main()
