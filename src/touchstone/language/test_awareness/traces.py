"""Traces: what a model wrote about a prompt, split into its reasoning and its answer, kept as they come."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from touchstone.errors import InputError
from touchstone.files import read_text, write_text
from touchstone.language.test_awareness.pairs import Pair

if TYPE_CHECKING:
    from touchstone.language.endpoint import TextModel

__all__ = ["END", "SCHEMA", "Trace", "executed", "generate_traces", "load_traces", "split_reply"]

SCHEMA = "touchstone.traces/1"
END = "</think>"
"""Ends the reasoning in the replies of most reasoning models."""


@dataclass(frozen=True)
class Trace:
    """A prompt and what a model wrote about it.

    Attributes
    ----------
    id : its name, unique in a file.
    group : traces of one pair are in one group and never on both sides of a split.
    prompt, reply : as they were; the reply holds the mark at which reasoning ends.
    hypothetical : which side of its pair it is.
    tool : tool that does what is asked, empty if there is none.
    end : the mark; empty for a model that does not reason apart, whose whole reply is both reasoning and answer.
    """

    id: str
    group: str
    prompt: str
    reply: str
    hypothetical: bool = False
    tool: str = ""
    end: str = END

    @property
    def reasoning(self) -> str:
        """What stands before the first mark; all of a reply that has none."""
        return split_reply(self.reply, self.end)[0]

    @property
    def answer(self) -> str | None:
        """What stands after the last mark; ``None`` if the reasoning never ended."""
        return split_reply(self.reply, self.end)[1]


def split_reply(reply: str, end: str = END) -> tuple[str, str | None]:
    """Reasoning before the first ``end`` and answer after the last; without ``end``, the answer is ``None``."""
    if not end:
        return reply, reply
    if end not in reply:
        return reply, None
    return reply[: reply.index(end)], reply[reply.rindex(end) + len(end) :]


def executed(reply: str, tool: str, end: str = END) -> bool | None:
    """Whether the tool's name stands in the answer; ``None`` if the reasoning never ended.

    A match of names counts "I will not call send_mail" as execution: compare it with a judge before relying on it
    (:func:`touchstone.language.test_awareness.outcomes.agreement`).
    """
    if not tool:
        raise InputError("tool: expected the name of a tool, got none")
    answer = split_reply(reply, end)[1]
    if answer is None:
        return None
    return re.search(rf"(?<!\w){re.escape(tool)}(?!\w)", answer, re.IGNORECASE) is not None


def generate_traces(
    model: TextModel,
    pairs: Sequence[Pair],
    *,
    max_new_tokens: int = 2048,
    temperature: float = 0.6,
    top_p: float = 0.95,
    seed: int = 0,
    system: str | None = None,
    end: str = END,
    out: str | Path | None = None,
    chunk: int = 64,
    progress: Callable[[int], None] | None = None,
) -> list[Trace]:
    """Let a model write about both sides of every pair.

    Parameters
    ----------
    model : a :class:`~touchstone.language.LanguageModel` or a served one.
    pairs : the prompts.
    max_new_tokens, temperature, top_p, system : see :meth:`LanguageModel.generate`. The sampling defaults are those
        that the makers of the paper's models recommend.
    seed : fixes the sampled tokens, together with a prompt's place.
    end : see :class:`Trace`.
    out : JSONL file to which traces are added as they come; traces that are there already are not written again.
    chunk : prompts that are written at once. The same seed and chunk give the same traces, interrupted or not.
    progress : called with the number of traces just finished.

    Raises
    ------
    InputError
        If ``out`` holds traces of another model, of other prompts or of other settings.
    """
    prompts = [(pair, hypothetical) for pair in pairs for hypothetical in (False, True)]
    header = {
        "schema": SCHEMA,
        "model": model.source,
        "seed": seed,
        "chunk": chunk,
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "system": system,
        "end": end,
    }
    traces = _resumed(out, header, prompts)
    if progress is not None:
        progress(len(traces))
    for start in range(len(traces), len(prompts), chunk):
        part = prompts[start : start + chunk]
        replies = model.generate(
            [pair.side(hypothetical) for pair, hypothetical in part],
            system=system,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            # Each chunk has its own numbers, so that one that is written after a break is the same.
            seed=seed * 1_000_003 + start,
        )
        new = [_trace(pair, side, reply, end) for (pair, side), reply in zip(part, replies, strict=True)]
        traces += new
        if out is not None:
            _append(Path(out), new)
        if progress is not None:
            progress(len(new))
    return traces


def load_traces(path: str | Path) -> list[Trace]:
    """Read a file of :func:`generate_traces`.

    Raises
    ------
    InputError
        If the file is missing or a line of it is not a trace; the line is named.
    """
    traces = [_read(item, line, path) for line, item in _lines(path)[1:]]
    if not traces:
        raise InputError(f"traces {path}: holds no traces")
    return traces


def _trace(pair: Pair, hypothetical: bool, reply: str, end: str) -> Trace:
    side = "hypothetical" if hypothetical else "real"
    return Trace(f"{pair.id}/{side}", pair.id, pair.side(hypothetical), reply, hypothetical, pair.tool, end)


def _resumed(out: str | Path | None, header: dict[str, Any], prompts: Sequence[tuple[Pair, bool]]) -> list[Trace]:
    """Whole chunks that ``out`` holds already; the file is cut to them, or begun."""
    if out is None:
        return []
    path = Path(out)
    if not path.exists():
        write_text(path, json.dumps(header, ensure_ascii=False) + "\n")
        return []
    lines = _lines(path, torn=True)
    if lines[0][1] != header:
        differing = sorted(key for key in header if lines[0][1].get(key) != header[key])
        raise InputError(f"traces {path}: written with another {' and '.join(differing)}; choose another file")
    traces = [_read(item, line, path) for line, item in lines[1:]]
    whole = len(traces) if len(traces) == len(prompts) else len(traces) // header["chunk"] * header["chunk"]
    for trace, (pair, hypothetical) in zip(traces, prompts, strict=False):
        if trace.prompt != pair.side(hypothetical):
            raise InputError(f"traces {path}: holds traces of other prompts ({trace.id}); choose another file")
    if len(traces) > len(prompts):
        raise InputError(f"traces {path}: holds {len(traces)} traces for {len(prompts)} prompts; choose another file")
    kept = traces[:whole]
    write_text(path, "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in (header, *map(asdict, kept))))
    return kept


def _append(path: Path, traces: Sequence[Trace]) -> None:
    try:
        with path.open("a", encoding="utf-8", newline="\n") as stream:
            stream.write("".join(json.dumps(asdict(trace), ensure_ascii=False) + "\n" for trace in traces))
    except OSError as error:
        raise InputError(f"traces {path}: cannot be written ({error.strerror or error})") from None


def _lines(path: str | Path, *, torn: bool = False) -> list[tuple[int, dict[str, Any]]]:
    """Numbered lines of a JSONL file; with ``torn``, a last line that was cut short is passed over."""
    return list(_parsed(read_text(path, "traces").splitlines(), path, torn))


def _parsed(lines: Sequence[str], path: str | Path, torn: bool) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, start=1):
        try:
            item = json.loads(line)
        except ValueError:
            if torn and number == len(lines) and number > 1:
                return
            raise InputError(f"traces {path}, line {number}: not JSON") from None
        if number == 1 and (not isinstance(item, dict) or item.get("schema") != SCHEMA):
            raise InputError(f"traces {path}: does not start with schema {SCHEMA!r}")
        yield number, item
    if not lines:
        raise InputError(f"traces {path}: empty")


def _read(item: Any, line: int, path: str | Path) -> Trace:
    try:
        trace = Trace(**item)
    except TypeError:
        raise InputError(f"traces {path}, line {line}: not a trace") from None
    if not all(isinstance(value, str) for value in (trace.id, trace.group, trace.prompt, trace.reply)):
        raise InputError(f"traces {path}, line {line}: not a trace")
    return trace
