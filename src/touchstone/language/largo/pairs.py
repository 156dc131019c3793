"""What to train on: found texts with the refusal that is wanted, and the same texts on harmless prompts, answered."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from touchstone.errors import InputError
from touchstone.files import write_jsonl
from touchstone.language.largo.result import Behaviour

__all__ = ["REFUSAL", "export_pairs"]

REFUSAL = "I'm sorry, but I can't help with that."


def export_pairs(
    path: str | Path,
    found: Sequence[tuple[Behaviour, str]],
    benign: Sequence[tuple[str, str]],
    *,
    refusal: str = REFUSAL,
    joint: str = " ",
) -> int:
    """Write a training file against the texts that were found; its texts are in clear, for it is no use without.

    Half of it are harmless prompts with the same texts and their usual answers, and harmless prompts alone: trained on
    refusals only, a model learns to refuse. Watch over-refusal (``evorefuse``) while you train.

    Parameters
    ----------
    path : JSON lines with ``prompt``, ``completion`` and ``kind`` (``decline`` or ``answer``), as ``trl`` reads them.
    found : behaviours with the texts that broke their guards.
    benign : prompts of yours with their answers.
    refusal : the reply that is wanted.
    joint : what stands between a prompt and a text.

    Returns
    -------
    Number of records.

    Raises
    ------
    InputError
        If ``found`` or ``benign`` is empty, or the place cannot be written.
    """
    if not found or not benign:
        raise InputError("found, benign: expected at least one each; refusals alone teach a model to refuse")
    rows = [
        {"prompt": f"{behaviour.goal}{joint}{text}", "completion": refusal, "kind": "decline"}
        for behaviour, text in found
    ]
    for i, (prompt, answer) in enumerate(benign):
        text = found[i % len(found)][1]
        rows.append({"prompt": f"{prompt}{joint}{text}", "completion": answer, "kind": "answer"})
        rows.append({"prompt": prompt, "completion": answer, "kind": "answer"})
    write_jsonl(path, rows)
    return len(rows)
