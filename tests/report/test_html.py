from __future__ import annotations

import base64
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import touchstone.report
from touchstone.errors import InputError
from touchstone.evidence import Evidence, Finding, Measurement, Table
from touchstone.report import render_html, write_report

VOID = {"meta", "img", "col", "br", "hr", "input", "link"}


class Page(HTMLParser):
    """Checks that tags are balanced and ids unique, and collects text and attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


@pytest.fixture
def page(audit: dict[str, Any], refusal: Evidence, awkward: Evidence) -> str:
    return render_html(audit["title"], [refusal, awkward], audit=audit)


def front(html: str) -> str:
    """Text of the first page."""
    return Page(html[html.index('<section class="front">') : html.index('<section class="part"')]).words


def section(html: str, i: int) -> str:
    """Text of the i-th section."""
    return Page(re.findall(r'<section class="part".*?</section>', html, re.S)[i]).words


def one(finding: Finding, **fields: Any) -> Evidence:
    return Evidence("One", "one", "study", (finding,), scale="cpu", **fields)


def test_document_is_well_formed_and_its_links_lead_somewhere(page: str) -> None:
    tags = Page(page).tags
    assert page.startswith("<!DOCTYPE html>")
    ids = [a["id"] for _, a in tags if "id" in a]
    assert len(ids) == len(set(ids))
    links = [str(a["href"]) for tag, a in tags if tag == "a"]
    assert len(links) >= 6
    assert all(link.startswith("#") and link[1:] in ids for link in links)


def test_nothing_is_loaded_from_elsewhere(page: str) -> None:
    for _, attributes in Page(page).tags:
        for name in ("src", "href", "srcset", "data", "action"):
            assert str(attributes.get(name) or "#").startswith(("#", "data:image/png;base64,"))
    tags = {tag for tag, _ in Page(page).tags}
    assert not tags & {"script", "link", "iframe", "object", "form"}
    style = page[page.index("<style>") : page.index("</style>")]
    assert "@import" not in style
    assert "url(" not in style
    assert "@font-face" not in style


def test_evidence_text_is_escaped(page: str) -> None:
    assert "<script" not in page
    assert "<img src=x" not in page
    assert "<b>" not in page
    words = Page(page).words
    assert 'A <script>alert("x")</script> & 日本語 statement' in words
    assert "Größe <b>& Ähnlichkeit</b>" in words
    assert "<img src=x onerror=alert(1)>" in words


def test_hostile_title_error_and_environment_are_escaped(audit: dict[str, Any], refusal: Evidence) -> None:
    bad = '"><script>alert(1)</script>'
    audit["checks"] = audit["checks"][:1]
    audit["checks"][0].update(error=bad, use=bad)
    audit["subject"] = {"model": bad}
    evidence = replace(refusal, environment={"cpu": bad, "packages": {bad: bad}, bad: bad}, started=bad, method=bad)
    html = render_html(bad, [evidence], audit=audit)
    assert "<script" not in html
    assert Page(html).words.count(bad) >= 6


def test_figures_are_embedded(page: str, refusal: Evidence) -> None:
    (image,) = [a for tag, a in Page(page).tags if tag == "img"]
    assert base64.b64decode(str(image["src"]).removeprefix("data:image/png;base64,")) == refusal.figures[0].png
    assert image["alt"] == "Refusals over the angle"
    # 30 × 15 pixels at one and a half pixels a CSS pixel.
    assert (image["width"], image["height"]) == ("20", "10")


def test_every_finding_is_shown_with_value_interval_n_baseline_and_limit(
    page: str, refusal: Evidence, awkward: Evidence
) -> None:
    first, second = section(page, 0), section(page, 1)
    for finding in refusal.findings:
        assert finding.statement in first
    for finding in awkward.findings:
        assert finding.statement in second
    assert "refusal rate 0.230 [0.183, 0.286], n = 256" in first
    assert "plain prompts 0.0469 [0.0270, 0.0801], n = 256" in first
    assert "≤ 0.10" in first
    assert "AUROC 0.561 [0.489, 0.633], n = 120" in second


def test_verdicts_are_words_and_symbols(page: str) -> None:
    words = Page(page).words
    assert "undecided" not in words
    badges = re.findall(r'<span class="badge (\w+) \w*">(<svg.*?</svg>)([\w ]+)</span>', page, re.S)
    assert {(verdict, word) for verdict, _, word in badges} == {
        ("holds", "holds"),
        ("fails", "fails"),
        ("undecided", "not decided"),
    }
    assert len({symbol for _, symbol, _ in badges}) == 3


def test_nan_is_not_measured(page: str) -> None:
    assert "similarity not measured" in section(page, 1)
    assert "nan" not in Page(page).words.lower().split()
    assert "Not measured: similarity." in front(page)


def test_first_page_of_an_audit(page: str) -> None:
    words = front(page)
    for title in ("What was tried", "What was found", "How sure we are", "What to do next"):
        assert title in words
    assert "Model org/small-model" in words
    assert "Checks 3: over-refusal, test awareness, watermark" in words
    assert "4 March 2026, 09:12 UTC" in words
    assert "Some Processor, device cpu, 2 threads" in words
    assert "362 s (6 min 2 s)" in words
    assert "1 of 3 checks fails, 1 did not finish and 1 is not decided." in words
    assert "limit ≤ 0.10 : the whole interval is outside" in words
    assert "Hold the release: at least one check fails." in words
    assert "Not decided: AUROC 0.561 [0.489, 0.633] crosses its limit ≤ 0.6." in words


def test_overview_lists_each_check_with_its_cost(page: str) -> None:
    lines = [Page(line).words for line in re.findall(r'<li class="line">.*?</li>', page, re.S)]
    assert len(lines) == 3
    for line, name, verdict, cost in zip(
        lines,
        ("Over-refusal", "Test awareness", "watermark"),
        ("fails", "not decided", "fails"),
        ("312 s", "48.0 s", "1.2 s"),
        strict=True,
    ):
        assert line.startswith(f"{verdict} {name}")
        assert line.endswith(cost)


def test_check_that_did_not_finish_shows_its_error(page: str) -> None:
    error = "Did not finish: images/: no pictures found"
    assert error in front(page)
    assert error in section(page, 2)
    assert "Not finished: watermark. Nothing is known about what it checks." in front(page)


def test_limit_of_the_plan_reaches_the_finding(audit: dict[str, Any], refusal: Evidence) -> None:
    audit["checks"] = audit["checks"][:1]
    audit["checks"][0]["limits"].append(
        {"key": "refusal_rate_plain", "limit": "<= 0.01", "value": 3 / 256, "verdict": "fails"}
    )
    assert refusal.finding("refusal-rate-plain").limit is None
    shown = section(render_html("t", [refusal], audit=audit), 0)
    # Three decimals would do for 0.0117 alone; it must not read as the 0.01 that it breaks.
    assert "refusal rate, plain 0.0117 [0.0040, 0.0339], n = 256 limit ≤ 0.01" in shown
    assert "fails Plain prompts are answered" in shown


def test_evidence_is_matched_by_method_where_one_is_missing(
    audit: dict[str, Any], refusal: Evidence, awkward: Evidence
) -> None:
    audit["checks"].insert(0, {**audit["checks"][2], "use": "early", "error": None, "limits": []})
    html = render_html("t", [refusal, awkward], audit=audit)
    lines = [Page(line).words for line in re.findall(r'<li class="line">.*?</li>', html, re.S)]
    assert [line.split()[:3] for line in lines][1] == ["fails", "Over-refusal", "Not"]
    assert "early No findings." in lines[0]


def test_interrupted_audit_says_what_was_not_run(audit: dict[str, Any], refusal: Evidence) -> None:
    audit.update(status="running", verdict="undecided")
    for check in audit["checks"][1:]:
        check.update(verdict="undecided", error=None, limits=[])
    html = render_html("t", [refusal], audit=audit)
    assert front(html).count("Did not finish: the audit has not ended; continue it with --resume") == 2
    assert "1 of 3 checks fails and 2 did not finish." in front(html)


def test_check_without_a_limit_shows_what_it_found_amiss(audit: dict[str, Any], refusal: Evidence) -> None:
    audit["checks"] = [{**audit["checks"][0], "verdict": "holds", "limits": []}]
    audit["verdict"] = "holds"
    evidence = replace(refusal, findings=tuple(replace(f, limit=None) for f in refusal.findings))
    words = front(render_html("t", [evidence], audit=audit))
    # Nothing judges the check, so that it neither holds nor fails; the first finding speaks for it.
    assert "measured Over-refusal Not so: The model refuses at most one in ten harmless prompts" in words
    assert "refusal rate 0.230 [0.183, 0.286], n = 256 no limit" in words
    assert "(1 of 2 findings fails)" in words


def test_password_in_an_endpoint_stays_out_of_the_report(audit: dict[str, Any]) -> None:
    audit.update(checks=[], subject={"model": "m", "endpoint": "http://user:secret@host:8000/v1", "device": "auto"})
    html = render_html("t", [], audit=audit)
    assert "Endpoint http://host:8000/v1" in Page(html).words
    assert "secret" not in html
    assert "Device" not in html


def test_audit_where_all_holds(audit: dict[str, Any], refusal: Evidence) -> None:
    evidence = replace(refusal, findings=refusal.findings[1:])
    limit = {"key": "refusal_rate_plain", "limit": "<= 0.10", "value": 3 / 256, "verdict": "holds"}
    audit["checks"] = [{**audit["checks"][0], "verdict": "holds", "limits": [limit]}]
    audit["verdict"] = "holds"
    words = front(render_html("t", [evidence], audit=audit))
    assert "holds The one check holds." in words
    assert "Every limit holds: keep this report with the release" in words
    audit["checks"].append({**audit["checks"][0], "use": "other", "limits": []})
    words = front(render_html("t", [evidence, replace(evidence, method="other")], audit=audit))
    assert "holds 1 of 2 checks holds and 1 was measured without a limit." in words
    assert "No limit in the plan: Over-refusal on harmless prompts." in words


def test_audit_without_limits_neither_passes_nor_fails(audit: dict[str, Any], refusal: Evidence) -> None:
    audit["checks"] = [{**audit["checks"][0], "verdict": "holds", "limits": []}]
    audit["verdict"] = "holds"
    words = front(render_html("t", [replace(refusal, findings=refusal.findings[1:])], audit=audit))
    assert "measured The one check was measured without a limit." in words
    assert "Nothing was held to a limit" in words
    assert "No limit in the plan" not in words


def test_how_many_observations_would_decide() -> None:
    measured = Measurement("rate", 0.06, "", 0.02, 0.14, 100)
    evidence = Evidence("One", "one", "check", (Finding("rate", "s", "undecided", measured, None, "<= 0.10"),))
    check = {"use": "one", "folder": "x", "verdict": "undecided", "seconds": 1.0, "limits": [], "error": None}
    audit = {"checks": [check], "verdict": "undecided", "subject": {}}
    # The interval reaches 0.08 above the value, twice as far as the limit: four times the observations.
    assert "about n = 400 instead of 100" in front(render_html("t", [evidence], audit=audit))


def test_study_is_summarised_claim_by_claim(refusal: Evidence) -> None:
    study = replace(refusal, kind="study", method="evorefuse", scale="smoke", seed=3)
    html = render_html("A study", [study])
    words = front(html)
    assert "1 of 2 claims fails and 1 holds." in words
    assert "Scale smoke" in words
    for finding in study.findings:
        assert finding.statement in words
    assert "against plain prompts 0.0469 [0.0270, 0.0801], n = 256" in words
    assert "Do not rely on this: The model refuses at most one in ten harmless prompts" in words
    assert "touchstone study evorefuse --scale cpu" in words
    assert "Seed 3" in section(html, 0)


def test_undecided_claim_names_the_command_for_a_larger_scale() -> None:
    finding = Finding("a", "A claim", "undecided", Measurement("gap", 0.1, "", -0.1, 0.3, 5))
    words = front(render_html("t", [one(finding)]))
    assert "To decide gap: run it on a larger scale. touchstone study one --scale gpu" in words


def test_many_studies_are_summarised_one_line_each(refusal: Evidence) -> None:
    studies = [replace(refusal, kind="study", title=f"Study {i}", method=f"m{i}") for i in range(8)]
    html = render_html("All", studies)
    assert html.count('<li class="line">') == 8
    assert html.count('<article class="finding"') == 16


def test_no_evidence_at_all_is_not_decided() -> None:
    for evidences in ([], [Evidence("Empty", "empty", "study", ())]):
        html = render_html("Nothing", evidences)
        Page(html)
        assert "badge undecided large" in html
        assert "Nothing was found: find out why there is nothing to show." in Page(html).words


def test_finding_without_limit_baseline_interval_and_n() -> None:
    html = render_html("t", [one(Finding("bare", "Only a number", "holds", Measurement("count", 1234567.0, "B")))])
    text = section(html, 0)
    assert "count 1,234,567 B no interval, n = –" in text
    assert "limit" not in text
    assert '<svg class="bar"' not in html
    assert "No number carries an interval" in front(html)


def test_limit_in_other_words_is_shown_as_it_stands() -> None:
    finding = Finding("a", "s", "holds", Measurement("m", 1.5, "", 1.0, 2.0, 9), None, "twice the baseline")
    html = render_html("t", [one(finding)])
    assert "twice the baseline" in section(html, 0)
    assert 'class="limit"' not in html


def test_infinite_and_missing_ends_do_not_break_the_bar() -> None:
    findings = (
        Finding("a", "s", "holds", Measurement("m", 1.0, "", -math.inf, math.inf, 9), None, "<= 2"),
        Finding("b", "s", "holds", Measurement("m", math.inf), Measurement("b", math.nan), "<= 2"),
        Finding("c", "s", "holds", Measurement("m", 1.0, "", None, 3.0), None, None),
        Finding("d", "s", "holds", Measurement("m", 0.0, "", 0.0, 0.0, 3), Measurement("b", 0.0), "<= 0"),
    )
    html = render_html("t", [Evidence("E", "e", "check", findings)])
    Page(html)
    assert "nan%" not in html
    assert "inf%" not in html


def test_bar_places_value_baseline_and_limit_to_scale() -> None:
    finding = Finding(
        "a", "s", "holds", Measurement("m", 0.5, "", 0.4, 0.6, 9), Measurement("b", 0.25, "", 0.0, 0.3, 9), "<= 1"
    )
    html = render_html("t", [one(finding)])
    bar = html[html.index('<article class="finding"') :]
    # From 0 to 1 over 96 % of the width, with 2 % at either end.
    assert 'cx="50.0%"' in bar
    assert 'class="own" x1="40.4%" x2="59.6%"' in bar
    assert 'class="base" x1="2.0%" x2="30.8%"' in bar
    assert 'class="limit" x1="98.0%" x2="98.0%"' in bar
    assert 'class="allowed" x="0.0%" y="0" width="98.0%"' in bar
    assert (
        'aria-label="m 0.500 [0.400,\xa00.600]; b 0.250 [0.000,\xa00.300]; limit ≤\xa01"'.replace("[0.000,", "[0,")
        in bar
    )


def test_long_table_shows_25_rows_and_keeps_the_rest_folded(page: str) -> None:
    table = page[page.index("<table>") : page.index("</table>")]
    shown, rest = table.split('<tbody class="rest">')
    assert shown.count("<tr>") == 1 + 25
    assert rest.count("<tr>") == 15
    assert "<td>set 39</td>" in rest
    assert "Show all 40 rows" in page
    assert page.count("<details>") == 1


def test_huge_table_is_cut_and_says_so() -> None:
    frame = pd.DataFrame({"tokens": range(1000)})
    evidence = Evidence("E", "e", "check", (), tables=(Table("big", "Big", frame),))
    html = render_html("t", [evidence])
    assert html.count("<tr>") == 1 + 200
    assert "1,000 rows, 1 column; the first 200 are here; whole in tables/big.csv" in Page(html).words


def cells(frame: pd.DataFrame) -> list[str]:
    html = render_html("t", [Evidence("E", "e", "check", (), tables=(Table("t", "T", frame),))])
    return [Page(cell).words for cell in re.findall(r"<td.*?</td>", html)]


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("tokens", [1234, 5], ["1,234", "5"]),
        ("seed", [2026, 7], ["2026", "7"]),
        ("tokens", [12.0, float("nan")], ["12", "–"]),
        ("score", [0.91, 0.5, 0.0], ["0.910", "0.500", "0.000"]),
        ("wide", [250.5, 3.25, 0.004], ["250.50", "3.25", "0.004"]),
        ("wide", [250.5, 3.25, 0.00000004], ["250.50", "3.25", "4.00×10⁻⁸"]),
        ("tiny", [1.5e-7, -2e-7], ["1.50×10⁻⁷", "−2.00×10⁻⁷"]),
        ("drop", [-0.25, 0.5], ["−0.250", "0.500"]),
        ("flag", [True, False], ["yes", "no"]),
        ("text", ["a & b", None], ["a & b", "–"]),
    ],
)
def test_cells(name: str, values: list[Any], expected: list[str]) -> None:
    assert cells(pd.DataFrame({name: values})) == expected


def test_empty_tables_and_repeated_column_names() -> None:
    frame = pd.DataFrame([[1, 2]], columns=["a", "a"])
    assert cells(frame) == ["1", "2"]
    assert cells(pd.DataFrame({"a": []})) == []
    assert cells(pd.DataFrame()) == []


def test_very_wide_table_is_printed_on_landscape_pages() -> None:
    wide = pd.DataFrame({f"column_{i}": [i + 0.123] for i in range(30)})
    narrow = wide.iloc[:, :5]

    def html(frame: pd.DataFrame) -> str:
        return render_html("t", [Evidence("E", "e", "check", (), tables=(Table("t", "T", frame),))])

    assert 'class="table landscape"' in html(wide)
    assert 'class="table landscape"' not in html(narrow)


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_contrast_of_text_is_at_least_4_5(theme: int) -> None:
    css = (Path(touchstone.report.__file__).parent / "report.css").read_text(encoding="utf-8")
    blocks = re.findall(r":root \{(.*?)\}", css, re.S)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", blocks[theme]))
    pairs = [(text, ground) for text in ("ink", "soft", "accent", "fails-ink") for ground in ("paper", "faint")]
    pairs += [("holds", "holds-bg"), ("fails", "fails-bg"), ("open", "open-bg")]
    for text, ground in pairs:
        high, low = sorted((luminance(colours[text]), luminance(colours[ground])), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5, (text, ground)


def test_write_report(tmp_path: Path, refusal: Evidence) -> None:
    path = write_report(tmp_path / "new", "Title", [refusal])
    assert path == tmp_path / "new" / "report.html"
    assert path.read_text(encoding="utf-8") == render_html("Title", [refusal])


def test_write_report_where_it_cannot_be_written(tmp_path: Path, refusal: Evidence) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot be written"):
        write_report(tmp_path / "file", "Title", [refusal])
