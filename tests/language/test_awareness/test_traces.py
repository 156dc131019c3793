"""Traces: how replies are split, when a tool counts as called, and that writing them can be interrupted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from touchstone.errors import InputError
from touchstone.language.test_awareness.pairs import Pair, build_pairs
from touchstone.language.test_awareness.traces import Trace, executed, generate_traces, load_traces, split_reply


class Writer:
    """Writes the prompt, its place in the call and the seed; may be cut off."""

    source = "writer"

    def __init__(self, most: int = 10**9) -> None:
        self.most = most
        self.calls: list[int] = []

    def generate(self, prompts: Sequence[str], *, seed: int = 0, **options: object) -> list[str]:
        if len(self.calls) >= self.most:
            raise KeyboardInterrupt
        self.calls.append(len(prompts))
        return [f"I see {prompt[:9]} {seed} {i}</think>done" for i, prompt in enumerate(prompts)]


@pytest.mark.parametrize(
    ("reply", "reasoning", "answer"),
    [
        ("thinks</think>answers", "thinks", "answers"),
        ("thinks</think>more</think>answers", "thinks", "answers"),
        ("never ends", "never ends", None),
        ("", "", None),
        ("thinks</think>", "thinks", ""),
    ],
)
def test_replies_are_split_at_the_first_and_the_last_mark(reply: str, reasoning: str, answer: str | None) -> None:
    assert split_reply(reply) == (reasoning, answer)
    assert (Trace("t", "g", "p", reply).reasoning, Trace("t", "g", "p", reply).answer) == (reasoning, answer)


def test_without_a_mark_a_reply_is_both() -> None:
    assert split_reply("all of it", "") == ("all of it", "all of it")


@pytest.mark.parametrize(
    ("reply", "does"),
    [
        ("I could call send_mail", None),
        ("I could call send_mail</think>No.", False),
        ("Hm</think>send_mail(to=ann)", True),
        ("Hm</think>SEND_MAIL(to=ann)", True),
        ("Hm</think>resend_mailing", False),
        ("a</think>send_mail()</think>No, I will not.", False),
        ("a</think>no</think>send_mail()", True),
        # The trap of matching names, which is why a judge is compared with it.
        ("Hm</think>I will not call send_mail.", True),
    ],
)
def test_execution(reply: str, does: bool | None) -> None:
    assert executed(reply, "send_mail") is does


def test_execution_needs_a_tool() -> None:
    with pytest.raises(InputError, match="tool"):
        executed("a</think>b", "")


def test_both_sides_of_each_pair_are_written() -> None:
    pairs = build_pairs(n=3)
    traces = generate_traces(Writer(), pairs)
    assert [trace.prompt for trace in traces] == [p.side(s) for p in pairs for s in (False, True)]
    assert [trace.hypothetical for trace in traces] == [False, True] * 3
    assert [trace.group for trace in traces] == [p.id for p in pairs for _ in range(2)]
    assert {trace.tool for trace in traces} == {pair.tool for pair in pairs}


def test_a_run_that_was_cut_off_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    pairs = build_pairs(n=9)
    whole = generate_traces(Writer(), pairs, chunk=4, seed=2, out=tmp_path / "whole.jsonl")
    file = tmp_path / "cut.jsonl"
    with pytest.raises(KeyboardInterrupt):
        generate_traces(Writer(2), pairs, chunk=4, seed=2, out=file)
    # Half a chunk and half a line, as a power cut leaves them.
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[:7]) + "\n" + lines[7][:30])
    again, ticks = Writer(), []
    assert generate_traces(again, pairs, chunk=4, seed=2, out=file, progress=ticks.append) == whole
    assert again.calls == [4, 4, 4, 2]
    assert ticks[0] == 4
    assert load_traces(file) == whole
    assert file.read_text() == (tmp_path / "whole.jsonl").read_text()
    done = Writer()
    assert generate_traces(done, pairs, chunk=4, seed=2, out=file) == whole
    assert done.calls == []


def test_another_run_is_not_mixed_in(tmp_path: Path) -> None:
    file, pairs = tmp_path / "traces.jsonl", build_pairs(n=2)
    generate_traces(Writer(), pairs, out=file)
    with pytest.raises(InputError, match="another seed"):
        generate_traces(Writer(), pairs, seed=1, out=file)
    with pytest.raises(InputError, match="other prompts"):
        generate_traces(Writer(), build_pairs(n=2, seed=9), out=file)
    with pytest.raises(InputError, match="4 traces for 2 prompts"):
        generate_traces(Writer(), pairs[:1], out=file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "empty"),
        ("nonsense", "not JSON"),
        ('{"schema": "other"}', "schema"),
        ('{"schema": "touchstone.traces/1"}', "no traces"),
        ('{"schema": "touchstone.traces/1"}\n{"id": 3}', "line 2"),
        ('{"schema": "touchstone.traces/1"}\n[', "line 2"),
    ],
)
def test_damaged_files_are_named(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl"
    file.write_text(content)
    with pytest.raises(InputError, match=message):
        load_traces(file)


def test_a_local_model_writes_the_same_traces_in_one_go_and_in_two(random_model, tmp_path: Path) -> None:
    pairs = [Pair(f"p{i}", f"w{i} w5", f"w{i} w6", (0, 1), (0, 1), f"p{i}") for i in range(3)]
    options = {"max_new_tokens": 4, "temperature": 1.0, "chunk": 2}
    whole = generate_traces(random_model, pairs, **options)
    generate_traces(random_model, pairs, out=tmp_path / "t.jsonl", **options)
    lines = (tmp_path / "t.jsonl").read_text().splitlines()
    (tmp_path / "t.jsonl").write_text("\n".join(lines[:4]) + "\n")
    assert generate_traces(random_model, pairs, out=tmp_path / "t.jsonl", **options) == whole
    assert json.loads(lines[0])["model"] == random_model.source
