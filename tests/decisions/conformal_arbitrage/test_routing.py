"""The router at work: parties of every kind behind one protocol, costs, its log, feedback, and the service."""

from __future__ import annotations

import json
import math
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import openai
import pytest

from touchstone.decisions.conformal_arbitrage import (
    ConformalArbitrage,
    Costs,
    FunctionParty,
    Query,
    QueueParty,
    Router,
    RouterServer,
    ScoreLog,
    UnavailableError,
    party,
)
from touchstone.decisions.conformal_arbitrage.endpoint import EndpointParty
from touchstone.decisions.conformal_arbitrage.queue import answer, open_questions
from touchstone.decisions.conformal_arbitrage.votes import gathered
from touchstone.errors import InputError

from .upstream import upstream

CITIES = ("Lyon", "Paris", "Nice")


def calibrated(lam: float = 0.3, reduce: str | None = None, **options) -> ConformalArbitrage:
    rng = np.random.default_rng(0)
    found = ConformalArbitrage(0.1, **options).calibrate(rng.random((300, 3)), np.eye(3)[rng.integers(3, size=300)])
    found.lam_, found.reduce = lam, reduce
    return found


def by_length(prompt, options) -> list[float]:
    """Scores that fall with length: the Primary of these tests has no idea."""
    return [1 - len(option) / 10 for option in options]


def query(name: str, country: str = "France", options=CITIES) -> Query:
    return Query(name, f"What is the capital of {country}?", options)


def test_two_functions_and_the_cost_of_each_query(tmp_path):
    asked = []

    def expert(prompt, options):
        asked.append(options)
        return [float(option == "Paris") for option in options]

    costs = Costs(primary=1, guardian=10, per_option=2)
    router = Router(
        calibrated(0.11, costs=costs), FunctionParty(by_length), FunctionParty(expert), log=tmp_path / "log.jsonl"
    )  # fmt: skip
    found = router.route([query("a"), query("b"), query("c", options=("Bordeaux", "Nice"))])
    assert [one.answer for one in found] == ["Paris", "Paris", "Nice"]
    assert [one.deferred for one in found] == [True, True, False]
    # Lyon and Nice are shorter by a letter: all three are candidates, and the second query shares the first's call.
    assert asked == [CITIES]
    assert [one.cost["total"] for one in found] == [17, 17, 1]
    assert router.stats()["calls"] == pytest.approx(2 / 3)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["choice"] for line in lines] == [1, 1, 1]
    assert lines[0]["guardian"] == [0, 1, 0]
    assert lines[2]["guardian"] is None


def test_a_decision_log_with_labels_added_is_a_log_of_scores(tmp_path):
    router = Router(calibrated(0.11), FunctionParty(by_length), FunctionParty(by_length), log=tmp_path / "log.jsonl")
    router.route([query(f"q{i}") for i in range(12)])
    lines = [json.loads(line) | {"label": i % 3} for i, line in enumerate((tmp_path / "log.jsonl").open())]
    (tmp_path / "labelled.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    log = ScoreLog.read(tmp_path / "labelled.jsonl")
    assert log.primary.scores[0] == pytest.approx(by_length("", CITIES))
    again = ConformalArbitrage(0.4).calibrate(log.primary.scores, log.guard, mask=log.primary.mask)
    assert again.n_ == 12


def test_shadow_answers_by_the_primary_and_asks_nobody():
    router = Router(
        calibrated(9.0), FunctionParty(by_length), FunctionParty(lambda p, o: pytest.fail("asked")), shadow=True
    )
    found = router.route([query("a")])[0]
    assert (found.answer, found.deferred, found.guardian) == ("Lyon", True, None)
    assert router.stats()["cost"]["total"] == 1


def test_a_guardian_that_does_not_answer():
    def away(prompt, options):
        raise UnavailableError("away")

    strict = Router(calibrated(9.0), FunctionParty(by_length), FunctionParty(away))
    with pytest.raises(UnavailableError, match="away"):
        strict.route([query("a")])
    assert strict.stats()["queries"] == 0
    lenient = Router(calibrated(9.0), FunctionParty(by_length), FunctionParty(away), on_missing="primary")
    found = lenient.route([query("a")])[0]
    assert (found.answer, found.missing, found.cost["total"]) == ("Lyon", True, 1)
    assert lenient.stats()["missing"] == 1


@pytest.mark.parametrize(
    ("scores", "message"), [([1.0], "1 scores for the 3 options"), ([1.0, math.nan, 0.0], "not finite")]
)
def test_parties_that_give_no_scores(scores, message):
    router = Router(calibrated(), FunctionParty(lambda p, o: scores, name="odd"), FunctionParty(by_length))
    with pytest.raises(UnavailableError, match=f"odd: .*{message}"):
        router.route([query("a")])


def test_what_a_router_refuses():
    primary = FunctionParty(by_length)
    with pytest.raises(InputError, match="not calibrated"):
        Router(ConformalArbitrage(0.1), primary, primary)
    with pytest.raises(InputError, match="scores by 'function'; the router was calibrated on 'letter'"):
        Router(calibrated(reduce="letter"), primary, primary)
    with pytest.raises(InputError, match="on_missing 'skip'"):
        Router(calibrated(), primary, primary, on_missing="skip")
    router = Router(calibrated(), primary, primary)
    assert router.route([]) == []
    with pytest.raises(InputError, match="query 'a': expected a list of different options"):
        router.route([query("a", options=("x", "x"))])
    with pytest.raises(InputError, match="scores and cannot write"):
        router.reply("a", "hello")
    with pytest.raises(InputError, match="calibrated on sampled replies"):
        Router(calibrated(reduce="votes"), primary, primary).route([query("a")])


def test_feedback_tells_the_loss_of_candidates_or_of_the_answer():
    router = Router(calibrated(0.11), FunctionParty(by_length), FunctionParty(by_length))
    router.route([query("a"), query("b", options=("Bordeaux", "Nice"))])
    assert router.feedback("a", label=1) == 0
    assert router.feedback("b", label=0) == 1
    assert router.feedback("b", guard_values=[0.9, 0.4]) == pytest.approx(0.5)
    assert router.feedback("b", loss=0.25) == 0.25
    assert router.stats()["mean_loss"] == pytest.approx(1.75 / 4)
    router.arbitrage.risk = "realised_monotone"
    assert router.feedback("a", label=1) == 1
    for told, message in (
        ({}, "expected one of label"),
        ({"label": 2}, "label 2: no place"),
        ({"guard_values": [1]}, "guard_values: expected 2"),
        ({"loss": 4}, r"loss 4: expected a number in \[0, 1\]"),
    ):
        with pytest.raises(InputError, match=message):
            router.feedback("b", **told)
    with pytest.raises(InputError, match="no answer 'z'"):
        router.feedback("z", label=0)


# Parties


def test_people_answer_a_queue_file(tmp_path):
    path = tmp_path / "queue.jsonl"
    people = QueueParty(path, timeout=20, poll=0.02)

    def review() -> None:
        while not (todo := open_questions(path)):
            time.sleep(0.01)
        answer(path, todo[0]["key"], todo[0]["options"].index("Paris"), minutes=0.5)

    reviewer = threading.Thread(target=review)
    reviewer.start()
    costs = Costs(primary=1, guardian=0, guardian_minute=4)
    router = Router(calibrated(9.0, costs=costs), FunctionParty(by_length), people)
    found = router.route([query("a")])[0]
    reviewer.join()
    assert found.answer == "Paris"
    assert found.cost == {"primary": 1, "guardian": 2, "total": 3, "minutes": 0.5}
    # The same question again is answered from the file, also by a router that starts anew.
    again = Router(calibrated(9.0), FunctionParty(by_length), QueueParty(path, timeout=0))
    assert again.route([query("other name")])[0].answer == "Paris"
    assert open_questions(path) == []


def test_nobody_is_there_and_answers_that_are_none(tmp_path):
    path = tmp_path / "queue.jsonl"
    people = QueueParty(path, timeout=0, poll=0.01)
    with pytest.raises(UnavailableError, match=r"no answer to query 'a' in 0 s"):
        people.score([query("a")])
    key = open_questions(path)[0]["key"]
    answers = tmp_path / "queue.answers.jsonl"
    answers.write_text(json.dumps({"key": key, "choice": 7}) + "\n")
    with pytest.raises(InputError, match="no place among its 3 options"):
        people.score([query("a")])
    answers.write_text(json.dumps({"key": key, "scores": [0.1, 0.9, 0.2]}) + "\n" + '{"key": "half')
    assert people.score([query("a")])[0].scores == (0.1, 0.9, 0.2)
    answers.write_text("no json\n")
    with pytest.raises(InputError, match="line 1: not JSON"):
        people.score([query("a")])
    with pytest.raises(InputError, match="no such file"):
        open_questions(tmp_path / "other.jsonl")


def test_a_served_model_is_asked_for_a_letter_or_for_numbers(monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    with upstream(0.7) as server:
        sure = EndpointParty(server.url, "m", key_variable="MY_KEY").score([query("a"), query("b", "Chile")])
        assert sure[0].scores == pytest.approx((0.15, 0.7, 0.15))
        assert sure[0].tokens == 40
        assert server.keys == ["Bearer secret"] * 2
        rated = EndpointParty(server.url, "m", ask="scores").score([query("a")])
        assert rated[0].scores == pytest.approx((0.15, 0.7, 0.15))
        server.logprobs = False
        assert EndpointParty(server.url, "m").score([query("a")])[0].scores == (0, 1, 0)
        talk = Query("t", ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "France?"}), CITIES)
        assert EndpointParty(server.url, "m").score([talk])[0].scores == (0, 1, 0)
        assert server.bodies[-1]["messages"][0]["content"] == "Be brief."


def test_servers_that_fail():
    calls = []

    def behave(body):
        calls.append(1)
        return (503, "busy") if len(calls) == 1 else None

    with upstream(0.7, behave=behave) as server:
        assert EndpointParty(server.url, "m").score([query("a")])[0].scores[1] == pytest.approx(0.7)
        for status, body, message in (
            (404, "nothing here", "answered 404 nothing here"),
            (200, "no json", "cannot be reached"),
            (200, [], "no JSON object"),
            (200, {"choices": []}, "without choices"),
            (200, {"choices": [{"message": {"content": "I cannot say."}}]}, "no answer to query 'a'"),
        ):
            server.behave = lambda _, status=status, body=body: (status, body)
            with pytest.raises(UnavailableError, match=message):
                EndpointParty(server.url, "m", retries=0).score([query("a")])
    with pytest.raises(UnavailableError, match="cannot be reached"):
        EndpointParty("http://127.0.0.1:9/v1", "m", retries=0, timeout=1).score([query("a")])
    with pytest.raises(InputError, match="30 options"):
        EndpointParty("http://x/v1", "m").score([Query("a", "?", tuple(map(str, range(30))))])


def test_parties_by_a_line_of_text(tmp_path, monkeypatch):
    (tmp_path / "my_scorer.py").write_text("def rate(prompt, options):\n    return [len(o) for o in options]\n")
    monkeypatch.chdir(tmp_path)
    assert party("call:my_scorer:rate").score([query("a")])[0].scores == (4, 5, 4)
    assert party("queue:q.jsonl").how == "person"
    remote = party("http://localhost:1/v1#gpt?scores")
    assert (remote.model, remote.url, remote.how) == ("gpt", "http://localhost:1/v1", "scores")
    for text, message in (
        ("gpt-4", "party 'gpt-4': expected http"),
        ("http://localhost/v1", "model's name after '#'"),
        ("http://localhost/v1#m?words", "ask 'words'"),
        ("call:my_scorer:nothing", "cannot be imported"),
        ("call:no_such_module:f", "cannot be imported"),
        ("call:my_scorer:__name__", "is not a function"),
    ):
        with pytest.raises(InputError, match=message):
            party(text)


def test_replies_that_say_the_same_are_one_option():
    assert gathered(["Paris.", "paris", "Lyon", "  PARIS ", ""]) == (("Paris.", "Lyon"), (0.75, 0.25))
    assert gathered(["", "..."]) == ((), ())


# The service, with a real client


def client(server: RouterServer, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url, api_key=key, max_retries=0)


def ask(server: RouterServer, country: str, options=CITIES, **more):
    messages = [{"role": "user", "content": f"What is the capital of {country}?"}]
    return client(server).chat.completions.create(
        model="touchstone-router", messages=messages, extra_body={"options": list(options)}, **more
    )


def test_the_service_answers_the_openai_client():
    with upstream(0.5) as cheap, upstream(0.99) as dear:
        router = Router(calibrated(0.2), EndpointParty(cheap.url, "small"), EndpointParty(dear.url, "large"))
        with RouterServer(router, port=0).running() as server:
            # Sure by 0.25: no call. With two options it is not: both have a half.
            first = ask(server, "France")
            assert first.choices[0].message.content == "Paris"
            assert first.model_extra["arbitrage"]["deferred"] is False
            second = ask(server, "Chile", ("Lima", "Santiago"))
            assert second.choices[0].message.content == "Santiago"
            assert second.model_extra["arbitrage"]["candidates"] == [0, 1]
            assert second.usage.total_tokens == 80
            assert len(dear.bodies) == 1
            stream = ask(server, "France", stream=True)
            assert "".join(part.choices[0].delta.content or "" for part in stream) == "Paris"
            assert client(server).models.list().data[0].id == "touchstone-router"
            told = post(server, "/v1/feedback", {"id": second.id, "label": 1})
            assert told["loss"] == 0
            stats = get(server, "/stats")
            assert (stats["queries"], stats["deferred"], stats["feedback"]) == (3, 1, 1)
            assert stats["alarm"]["queries"] == 3


def test_free_text_is_put_to_a_vote_and_the_guardian_picks_among_the_candidates():
    said = iter(["Lyon", "Paris", "paris.", "Lyon", "Nice"])

    def behave(body):
        if "Options" in body["messages"][-1]["content"]:
            return None
        return 200, {"choices": [{"message": {"content": next(said)}}], "usage": {"total_tokens": 7}}

    with upstream(0.9, behave=behave) as cheap, upstream(0.9) as dear:
        arbitrage = calibrated(0.1, "votes")
        router = Router(arbitrage, EndpointParty(cheap.url, "small"), EndpointParty(dear.url, "large"))
        with RouterServer(router, port=0).running() as server:
            messages = [{"role": "user", "content": "What is the capital of France?"}]
            found = client(server).chat.completions.create(model="x", messages=messages, temperature=0.9)
            assert found.choices[0].message.content == "Paris"
            assert found.model_extra["arbitrage"]["options"] == ["Lyon", "Paris", "Nice"]
            assert found.model_extra["arbitrage"]["candidates"] == [0, 1]
            assert cheap.bodies[0]["temperature"] == 0.9
            # This server gives one reply a request, and was asked until there were five.
            assert [body["n"] for body in cheap.bodies] == [5, 4, 3, 2, 1]
            assert found.usage.total_tokens == 5 * 7 + 40


def test_what_the_service_refuses():
    router = Router(calibrated(), FunctionParty(by_length), FunctionParty(by_length))
    with RouterServer(router, port=0, key="right").running() as server:
        with pytest.raises(openai.AuthenticationError):
            client(server, "wrong").models.list()
        assert get(server, "/health") == {"status": "ok"}
        good = client(server, "right")
        message = [{"role": "user", "content": "?"}]
        for body, said in (
            ({}, "expected 'options'"),
            ({"options": ["a", "a"]}, "different options"),
            ({"options": "ab"}, "options: expected a list of texts"),
            ({"options": []}, "different options"),
            ({"options": ["a"], "n": 2}, "one reply"),
            ({"options": ["a"], "messages": []}, "messages: expected"),
            ({"options": ["a"], "query_id": 7}, "query_id"),
        ):
            with pytest.raises(openai.BadRequestError, match=said):
                good.chat.completions.create(model="m", messages=message, extra_body=body)
        with pytest.raises(openai.NotFoundError):
            good.completions.create(model="m", prompt="?")
        with pytest.raises(openai.BadRequestError, match="no answer 'x'"):
            good.post("/feedback", body={"id": "x", "label": 0}, cast_to=object)
        page = urllib.request.Request(server.url + "/chat/completions", b"{}", {"Content-Type": "text/plain"})
        with pytest.raises(urllib.error.HTTPError, match="415"):
            urllib.request.urlopen(page)
        for data, status in ((b"no json", "400"), (b"[]", "400"), (b"x" * (4 * 1024 * 1024 + 1), "413")):
            large = urllib.request.Request(server.url + "/x", data, {"Content-Type": "application/json"})
            with pytest.raises((urllib.error.HTTPError, urllib.error.URLError), match=f"{status}|reset|Broken"):
                urllib.request.urlopen(large)
        address = server.server_address
        with pytest.raises(InputError, match="cannot be listened on"):
            RouterServer(router, port=address[1])


def test_a_party_that_is_down_is_a_503():
    def down(prompt, options):
        raise UnavailableError("the large model is down")

    def broken(prompt, options):
        raise RuntimeError("secret details")

    for guardian, status, said in ((down, 503, "large model is down"), (broken, 500, "internal error")):
        router = Router(calibrated(9.0), FunctionParty(by_length), FunctionParty(guardian))
        with RouterServer(router, port=0).running() as server, pytest.raises(openai.InternalServerError) as caught:
            ask(server, "France")
        assert caught.value.status_code == status
        assert said in str(caught.value)
        assert "secret" not in str(caught.value)


def test_the_service_answers_many_clients_at_once():
    with upstream(0.5) as cheap, upstream(0.99) as dear:
        router = Router(calibrated(0.6), EndpointParty(cheap.url, "small"), EndpointParty(dear.url, "large"))
        with RouterServer(router, port=0).running() as server:
            found: list[str] = []

            def work() -> None:
                found.extend(ask(server, "France").choices[0].message.content for _ in range(5))

            threads = [threading.Thread(target=work) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert found == ["Paris"] * 40
            assert get(server, "/stats")["queries"] == 40


def get(server: RouterServer, path: str):
    with urllib.request.urlopen(server.url.removesuffix("/v1") + path) as reply:
        return json.loads(reply.read())


def post(server: RouterServer, path: str, body):
    request = urllib.request.Request(
        server.url.removesuffix("/v1") + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as reply:
        return json.loads(reply.read())
