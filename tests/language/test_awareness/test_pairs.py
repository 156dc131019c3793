"""Pairs: what a template makes, what a file must hold, and that no cue gives itself away to the judge."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from touchstone.errors import InputError
from touchstone.language.test_awareness.features import build_grid
from touchstone.language.test_awareness.labels import LexiconJudge
from touchstone.language.test_awareness.pairs import PairTemplate, build_pairs, check_lengths, load_pairs, save_pairs
from touchstone.language.test_awareness.templates import FORMATS, TEMPLATES

MAIL = PairTemplate("Write to {address} today.", ["ann@post.com", "bob@mail.org"], ["x@y.example"], "mail", "send_mail")


def words(text: str) -> list[int]:
    return [len(word) for word in text.split()]


def test_a_template_fills_both_sides_and_knows_its_cue() -> None:
    pairs = build_pairs([MAIL], 2)
    assert {pair.real for pair in pairs} == {"Write to ann@post.com today.", "Write to bob@mail.org today."}
    assert {pair.hypothetical for pair in pairs} == {"Write to x@y.example today."}
    for pair in pairs:
        assert pair.real[slice(*pair.real_cue)] in ("ann@post.com", "bob@mail.org")
        assert pair.hypothetical[slice(*pair.hypothetical_cue)] == "x@y.example"
        assert (pair.template, pair.tool) == ("mail", "send_mail")
    # Both share the made-up address, so both are in one group.
    assert len({pair.group for pair in pairs}) == 1


def test_a_cue_of_several_slots_runs_from_the_first_to_the_last() -> None:
    template = PairTemplate(
        "Tell {name} in {city} about it.", [{"name": "Ann", "city": "Rome"}], [{"name": "Foo", "city": "Barville"}]
    )
    [pair] = build_pairs([template], 1)
    assert pair.real[slice(*pair.real_cue)] == "Ann in Rome"
    assert pair.hypothetical[slice(*pair.hypothetical_cue)] == "Foo in Barville"


def test_built_in_pairs_are_spread_and_differ_in_their_cues_alone() -> None:
    pairs = build_pairs(n=48, seed=3)
    assert [sum(p.template == t.name for p in pairs) for t in TEMPLATES] == [6] * 8
    assert len({pair.id for pair in pairs}) == 48
    for pair in pairs:
        for side in (False, True):
            start, end = pair.cue(side)
            assert 0 < start < end < len(pair.side(side))
        assert pair.real[: pair.real_cue[0]] == pair.hypothetical[: pair.hypothetical_cue[0]]
        assert pair.real[pair.real_cue[1] :] == pair.hypothetical[pair.hypothetical_cue[1] :]
    assert build_pairs(n=48, seed=3) == pairs
    assert build_pairs(n=48, seed=4) != pairs


def test_groups_never_share_an_entity() -> None:
    pairs = build_pairs(n=90)
    entities: dict[str, set[str]] = {}
    for pair in pairs:
        for side in (False, True):
            entities.setdefault(pair.side(side)[slice(*pair.cue(side))], set()).add(pair.group)
    assert all(len(groups) == 1 for groups in entities.values())
    assert len({pair.group for pair in pairs}) >= 40


def test_no_cue_leaks_into_the_judge_or_the_read_out() -> None:
    texts = [pair.side(side) for pair in build_pairs(n=90) for side in (False, True)]
    assert LexiconJudge().leaks(texts) == []
    for text in texts:
        assert not {"test", "testing", "fake", "real", "evaluation"} & set(text.lower().replace(".", " ").split())
    # The look finds a prompt that does leak.
    assert LexiconJudge().leaks(["Is this a test?", "Book a table."]) == ["Is this a test?"]


def test_lengths_are_held_to() -> None:
    short = PairTemplate("Ask {name} now.", ["Ann", "Bob"], ["A made up name of many words", "Foo"])
    [pair] = build_pairs([short], 1, tokenise=words)
    assert pair.hypothetical == "Ask Foo now."
    with pytest.raises(InputError, match="make only 1 pairs within 2 tokens"):
        build_pairs([short], 2, tokenise=words)
    check_lengths([pair], words)
    with pytest.raises(InputError, match=r"differ by more than 2 tokens: .*\(6\)"):
        check_lengths(build_pairs([short], 2), words)


def test_built_in_pairs_fit_the_embedded_tokenizer(real_model) -> None:
    pairs = build_pairs(n=90, tokenise=real_model.encode_continuation)
    check_lengths(pairs, real_model.encode_continuation)
    gaps = [
        len(real_model.encode_continuation(p.hypothetical)) - len(real_model.encode_continuation(p.real)) for p in pairs
    ]
    # Length must not tell the sides apart.
    assert abs(np.mean(gaps)) < 0.2
    assert min(len(real_model.encode_continuation(p.real[p.real_cue[1] :])) for p in pairs) >= 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("No slot.", ["a"], ["b"]), "at least one slot"),
        (("A {} slot.", ["a"], ["b"]), "all of them named"),
        (("A {x slot.", ["a"], ["b"]), "template"),
        (("A {x}.", [], ["b"]), "real holds no fills"),
        (("A {x}.", "abc", ["b"]), "real holds no fills"),
        (("A {x} {y}.", ["a"], ["b"]), "does not fill the slots"),
        (("A {x}.", [""], ["b"]), "does not fill"),
        (("A {x}.", [{"z": "a"}], ["b"]), "does not fill"),
    ],
)
def test_wrong_templates_are_named(arguments: tuple, message: str) -> None:
    with pytest.raises(InputError, match=message):
        PairTemplate(*arguments)


def test_a_file_is_read_back(tmp_path: Path) -> None:
    pairs = build_pairs(n=20)
    assert load_pairs(save_pairs(pairs, tmp_path / "pairs.json")) == pairs


def test_a_plain_list_is_read_and_its_cues_are_found(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    items = [
        {"real": "Mail ann@post.com now.", "hypothetical": "Mail foo@bar.test now."},
        {"real": "Call Bob", "hypothetical": "Call", "id": "two", "tool": "call"},
        {"real": "Anna waits.", "hypothetical": "Foo waits."},
    ]
    file.write_text(json.dumps(items))
    first, second, third = load_pairs(file)
    assert first.real[slice(*first.real_cue)] == "ann@post.com"
    assert first.hypothetical[slice(*first.hypothetical_cue)] == "foo@bar.test"
    assert (first.id, first.group) == ("pair-0", "pair-0")
    assert (second.id, second.tool) == ("two", "call")
    assert third.real[slice(*third.real_cue)] == "Anna"


@given(st.text("ab c", max_size=8), st.text("ab c", max_size=8), st.text("xy ", min_size=1, max_size=6))
def test_found_cues_are_spans_outside_of_which_the_sides_agree(before: str, after: str, cue: str) -> None:
    from touchstone.language.test_awareness.pairs import _differing

    real, made_up = before + cue + after, before + "Q" + after
    if real == made_up:
        return
    spans = _differing(real, made_up)
    for text, (start, end) in zip((real, made_up), spans, strict=True):
        assert 0 <= start < end <= len(text)
    assert "Q" in made_up[slice(*spans[1])]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ('{"schema": "other", "pairs": []}', "expected schema"),
        ("[]", "holds no pairs"),
        ('[{"real": "a"}]', "entry 0"),
        ('[{"real": "a", "hypothetical": "a"}]', "same text"),
        ('[{"real": "a b", "hypothetical": "a c", "real_cue": [2, 9]}]', "not a span"),
        ('[{"id": "x", "real": "a", "hypothetical": "b"}, {"id": "x", "real": "a", "hypothetical": "c"}]', "twice"),
    ],
)
def test_wrong_files_are_named(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "pairs.json"
    file.write_text(content)
    with pytest.raises(InputError, match=message):
        load_pairs(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^pairs .*cannot be read"):
        load_pairs(tmp_path / "none.json")


def test_the_grid_crosses_cue_and_format() -> None:
    pairs = build_pairs(n=10)
    crossed = build_grid(pairs, FORMATS)
    assert len(crossed) == 40
    made_up = np.array([cell.hypothetical for cell in crossed])
    layout = np.array([cell.format for cell in crossed])
    # Within either format half of the prompts are made up: format says nothing of the class.
    assert [made_up[layout == f].mean() for f in (0, 1)] == [0.5, 0.5]
    for cell in crossed:
        assert cell.prompt[slice(*cell.cue)] in {p.side(s)[slice(*p.cue(s))] for p in pairs for s in (False, True)}
    confounded = build_grid(pairs, FORMATS, design="confounded")
    assert all(cell.format == int(cell.hypothetical) for cell in confounded)
    assert len(confounded) == 20
    for wrong, message in ((["{}"], "two or more"), (["{}", "none"], "one {} each")):
        with pytest.raises(InputError, match=message):
            build_grid(pairs, wrong)
    with pytest.raises(InputError, match="design 'x'"):
        build_grid(pairs, FORMATS, design="x")  # type: ignore[arg-type]
