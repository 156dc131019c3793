"""From deleted records to what an attacker asks and what is true."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from touchstone.errors import InputError
from touchstone.language.model import LanguageModel

__all__ = ["Query", "queries"]


@dataclass(frozen=True)
class Query:
    """A prefix that an attacker knows, the true continuation, and values in it that are scored one by one."""

    prefix: str
    truth: str
    slots: dict[str, str] = field(default_factory=dict)


def queries(
    model: LanguageModel,
    records: Sequence[str | Mapping[str, object]],
    *,
    prefix: str | int = "half_tokens",
    answer: str = "answer",
    slots: Sequence[str] = (),
) -> list[Query]:
    """Split records into what is known and what is to be extracted.

    Parameters
    ----------
    model : its tokenizer counts tokens.
    records : texts, or objects with fields.
    prefix : ``"half_tokens"``, ``"half_words"`` (white space stays as it is), a number of tokens, or the name of a
        field; then ``answer`` is the field of the truth. Objects are split by half or number at their field ``text``.
    slots : fields whose values, where they stand in the truth, are scored one by one.

    Raises
    ------
    InputError
        Naming the record that lacks a field or is too short.
    """
    found = []
    for i, record in enumerate(records):
        fields: Mapping[str, object] = {"text": record} if isinstance(record, str) else record
        if isinstance(prefix, int) or prefix in ("half_tokens", "half_words"):
            known, truth = _split(model, _text(fields, "text", i), prefix, i)
        else:
            known, truth = _text(fields, prefix, i), _text(fields, answer, i)
            if not truth.startswith((" ", "\n")) and not known.endswith((" ", "\n")):
                truth = f" {truth}"
        values = {slot: str(fields[slot]) for slot in slots if slot in fields}
        found.append(Query(known, truth, values))
    if not found:
        raise InputError("records: there are none")
    return found


def _split(model: LanguageModel, text: str, how: str | int, i: int) -> tuple[str, str]:
    if how == "half_words":
        ends = [match.end() for match in re.finditer(r"\S+", text)]
        if len(ends) < 2:
            raise InputError(f"record {i}: fewer than two words")
        cut = ends[(len(ends) - 1) // 2]
        return text[:cut], text[cut:]
    ids = model.encode_continuation(text)
    number = len(ids) // 2 if how == "half_tokens" else int(how)
    if not 1 <= number < len(ids):
        raise InputError(f"record {i}: {len(ids)} tokens; expected more than {max(1, number)}")
    known = model.decode(ids[:number])
    # A tokenizer that drops or joins something on the way must not move the cut.
    if not text.startswith(known):
        raise InputError(f"record {i}: the tokenizer does not give the text back; split by half_words or a field")
    return known, text[len(known) :]


def _text(fields: Mapping[str, object], name: str, i: int) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"record {i}: expected a text in the field {name!r}")
    return value
