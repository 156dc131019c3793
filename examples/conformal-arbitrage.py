"""Route noisy digits between a small and a large classifier, then serve the router and ask it with the OpenAI client.

python examples/conformal-arbitrage.py
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC

from touchstone.decisions.conformal_arbitrage import (
    ConformalArbitrage,
    Costs,
    FunctionParty,
    Query,
    Router,
    RouterServer,
    compare_routers,
    measure,
)

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def main() -> None:
    pixels, labels = load_digits(return_X_y=True)
    noisy = pixels / 16 + np.random.default_rng(5).normal(0, 0.35, pixels.shape)
    order = np.random.default_rng(0).permutation(len(labels))
    train, known, test = order[:500], order[500:900], order[900:]
    small = LogisticRegression(max_iter=2000).fit(noisy[train][:, ::3], labels[train])
    large = SVC(C=5).fit(noisy[train], labels[train])
    primary, guardian, right = small.predict_proba(noisy[:, ::3]), large.decision_function(noisy), np.eye(10)[labels]

    router = ConformalArbitrage(alpha=0.1, costs=Costs(primary=1, guardian=20, unit="cents"))
    router.calibrate(primary[known], right[known])
    expected = router.expected_cost(primary[test])
    print(f"lam {router.lam_:.3f} from {router.n_} digits; {expected.calls:.0%} of the others will be deferred")
    print(router.frontier([0.02, 0.05, 0.1, 0.2, 0.3]).round(3).to_string(index=False))
    found = measure(router, primary[test], guardian[test], right[test])
    print(
        f"on others: risk of the candidates {found['candidate_risk']:.3f}, of the answer {found['realised_risk']:.3f}"
    )
    print(compare_routers(router, primary[test], guardian[test], right[test]).round(3).to_string(index=False))

    # Any two things that score options can stand behind the service; here they are functions of an image's number.
    def by_small(prompt: object, options: tuple[str, ...]) -> list[float]:
        row = primary[int(str(prompt[-1]["content"]))]  # type: ignore[index]
        return [float(row[NAMES.index(option)]) for option in options]

    def by_large(prompt: object, options: tuple[str, ...]) -> list[float]:
        row = guardian[int(str(prompt[-1]["content"]))]  # type: ignore[index]
        return [float(row[NAMES.index(option)]) for option in options]

    service = Router(router, FunctionParty(by_small), FunctionParty(by_large))
    with RouterServer(service, port=0).running() as server:
        ask(server.url, [str(i) for i in test[:5]], [NAMES[labels[i]] for i in test[:5]])
    print({name: service.stats()[name] for name in ("queries", "deferred", "cost")})


def ask(url: str, images: list[str], truth: list[str]) -> None:
    """Ask over HTTP as any client would; without the openai package, show the body it would send."""
    try:
        import openai
    except ImportError:
        print(f"POST {url}/chat/completions with 'messages' and 'options'; see Query: {Query('1', '12', NAMES)}")
        return
    client = openai.OpenAI(base_url=url, api_key="none")
    for image, name in zip(images, truth, strict=True):
        reply = client.chat.completions.create(
            model="touchstone-router",
            messages=[{"role": "user", "content": image}],
            extra_body={"options": list(NAMES)},
        )
        how = reply.model_extra["arbitrage"]  # type: ignore[index]
        who = "large model" if how["deferred"] else "small model"
        print(f"image {image}: {reply.choices[0].message.content} ({who}); it is {name}")


if __name__ == "__main__":
    main()
