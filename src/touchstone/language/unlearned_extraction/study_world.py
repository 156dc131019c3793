"""What the study trains and attacks: a base, models before and after at three lengths of training, and defences."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from touchstone.language.model import LanguageModel
from touchstone.language.unlearned_extraction.choosing import CANDIDATES, choose_w
from touchstone.language.unlearned_extraction.diverging import divergence
from touchstone.language.unlearned_extraction.evaluation import score
from touchstone.language.unlearned_extraction.extractor import GuidedExtractor
from touchstone.language.unlearned_extraction.records import SLOTS, base_model, make_records
from touchstone.language.unlearned_extraction.sources import Local, Released, SavedLogits
from touchstone.language.unlearned_extraction.splitting import Query
from touchstone.language.unlearning import Example, Objective, Training, epochs, examples, fine_tune, unlearn

if TYPE_CHECKING:
    from touchstone.run import Run

__all__ = [
    "APPROXIMATE",
    "FIXED_W",
    "GRID",
    "NOISES",
    "SIZES",
    "Attack",
    "Size",
    "World",
    "attack",
    "grow",
    "plan_of",
    "retained",
]

# Chosen before any result was seen, as the spec of the study asks.
FIXED_W = 1.3
GRID = (1.15, 1.3, 1.6, 2.0, 3.0)
APPROXIMATE = ("ga", "ga+gd", "ga+kl", "npo")
NOISES = (0.001, 0.01)
_BATCH = 64
_KEPT = 100
_APPROXIMATE_W = 1.2


@dataclass(frozen=True)
class Size:
    """Records to pre-train on, to fine-tune on, of these to delete, and of other people; epochs; tokens to extract."""

    base: int
    data: int
    forget: int
    extra: int
    base_epochs: int
    epochs: tuple[int, int, int]
    tokens: int = 48


SIZES = {
    "smoke": Size(150, 40, 12, 20, 1, (1, 2, 3), 4),
    "cpu": Size(1500, 500, 200, 200, 6, (4, 7, 10)),
    "gpu": Size(6000, 4000, 1000, 2000, 6, (4, 7, 10)),
}


@dataclass
class World:
    """Models by name, queries about deleted and about kept records, and texts that no model saw.

    ``models`` holds ``pre-N`` and ``post-N`` for each number of epochs, ``other`` (a second model after, of another
    seed), ``extra`` (after, retrained with other people's records), one for each approximate method, and
    ``pre-noise-S`` and ``post-noise-S``.
    """

    base: LanguageModel
    models: dict[str, LanguageModel]
    asked: list[Query]
    kept: list[Query]
    deleted: list[str]
    unseen: list[str]
    epochs: tuple[int, int, int]
    tokens: int
    utility: list[dict[str, Any]] = field(default_factory=list)

    @property
    def chances(self) -> dict[str, int]:
        """Number of values of each slot."""
        return {slot: len(values) for slot, values in SLOTS.items()}


def grow(size: Size, run: Run) -> World:
    """Train all models; progress is shown by steps."""
    records = make_records(size.base + size.data + size.extra + size.forget, run.seed)
    old = records[: size.base]
    data = records[size.base : size.base + size.data]
    extra = records[size.base + size.data : size.base + size.data + size.extra]
    unseen = [record.text for record in records[-size.forget :]]
    steps = -(-size.base // 16) * size.base_epochs
    with run.progress.bar("training the base", steps) as advance:
        base = base_model(old, epochs=size.base_epochs, seed=run.seed, progress=advance)
    every = examples(base, [record.text for record in data])
    more = examples(base, [record.text for record in extra])
    training = Training(epochs=size.epochs[-1], lr=1e-3, batch_size=16, seed=run.seed)
    models = _trained(base, every, more, size, training, run)
    world = World(
        base,
        models,
        [Query(record.prefix, record.rest, record.slots) for record in data[: size.forget]],
        [Query(record.prefix, record.rest) for record in data[size.forget :][:_KEPT]],
        [record.text for record in data[: size.forget]],
        unseen,
        size.epochs,
        size.tokens,
    )
    middle = size.epochs[1]
    for name in ("base", f"pre-{middle}", f"post-{middle}", "extra", *(f"pre-noise-{s:g}" for s in NOISES)):
        model = base if name == "base" else models[name]
        world.utility.append({"model": name, "perplexity": model.perplexity(unseen, batch_size=_BATCH)})
    return world


def retained(world: World, run: Run) -> dict[str, list[float]]:
    """The paper's utility, ROUGE-L recall of retained records, of the new models with and without noise."""
    names = [f"post-{world.epochs[1]}", *(f"post-noise-{sigma:g}" for sigma in NOISES)]
    return dict(zip(names, run.map("reading retained records", partial(_recall, world), names), strict=True))


def _recall(world: World, name: str) -> list[float]:
    model = world.models[name]
    alone = GuidedExtractor(model, model, w=1.0, gamma=1.0)
    made = alone.generate([one.prefix for one in world.kept], max_new_tokens=world.tokens, batch_size=_BATCH)
    rows = score(world.kept, {"it": made})
    return [float(value) for value in rows["rouge_l"]]


def _trained(
    base: LanguageModel, every: list[Example], more: list[Example], size: Size, training: Training, run: Run
) -> dict[str, LanguageModel]:
    short = replace(training, epochs=size.epochs[1])
    forgotten, plain = range(size.forget), Objective(retain_ce=1)
    whole, kept = (-(-n // training.batch_size) for n in (size.data, size.data - size.forget))
    longer = -(-(size.data - size.forget + size.extra) // training.batch_size)
    few = -(-size.forget // 16) * 5
    total = (
        (whole + kept) * training.epochs
        + short.epochs * (kept + longer + len(NOISES) * (whole + kept))
        + few * len(APPROXIMATE)
    )
    models: dict[str, LanguageModel] = {}
    with run.progress.bar("training before and after", total) as step:
        for name, out in (("pre", ()), ("post", forgotten)):
            for epoch in epochs(base, plain, retain=every, training=training, leave_out=out, progress=step):
                if epoch.number in size.epochs:
                    models[f"{name}-{epoch.number}"] = epoch.copy()
        models["other"] = fine_tune(
            base, every, training=replace(short, seed=training.seed + 1), leave_out=forgotten, progress=step
        )
        models["extra"] = fine_tune(base, [*every, *more], training=short, leave_out=forgotten, progress=step)
        for sigma in NOISES:
            noisy = replace(short, noise=sigma)
            models[f"pre-noise-{sigma:g}"] = fine_tune(base, every, training=noisy, progress=step)
            models[f"post-noise-{sigma:g}"] = fine_tune(base, every, training=noisy, leave_out=forgotten, progress=step)
        mild = Training(epochs=5, lr=1e-4, batch_size=16, seed=training.seed)
        for method in APPROXIMATE:
            pre = models[f"pre-{size.epochs[1]}"]
            models[method] = unlearn(
                pre, method, every[: size.forget], every[size.forget :], training=mild, progress=step
            )
    return models


@dataclass(frozen=True)
class Attack:
    """One generator: which models, which guidance, and what of the old model is known."""

    name: str
    pre: str
    post: str
    w: float
    gamma: float = 1e-5
    known: str = "model"


def plan_of(world: World) -> list[Attack]:
    """Everything the study runs."""
    middle = world.epochs[1]
    found = []
    for n in world.epochs:
        pair = (f"pre-{n}", f"post-{n}")
        found += [Attack(f"post {n}", *pair, 0.0, 0.0), Attack(f"pre {n}", *pair, 1.0, 1.0)]
        found += [Attack(f"guided {w:g} {n}", *pair, w) for w in GRID]
    pair = (f"pre-{middle}", f"post-{middle}")
    found += [Attack(f"filter {gamma:g}", *pair, FIXED_W, gamma) for gamma in (1e-2, 1e-1)]
    found += [Attack(f"exact {_APPROXIMATE_W:g}", *pair, _APPROXIMATE_W)]
    found += [Attack(f"after {method}", pair[0], method, _APPROXIMATE_W) for method in APPROXIMATE]
    found += [Attack("control alone", "other", pair[1], 1.0, 1.0), Attack("control", "other", pair[1], FIXED_W)]
    found += [Attack("extra data", pair[0], "extra", FIXED_W)]
    for sigma in NOISES:
        noisy = (f"pre-noise-{sigma:g}", f"post-noise-{sigma:g}")
        found += [Attack(f"noise {sigma:g} alone", *noisy, 1.0, 1.0), Attack(f"noise {sigma:g}", *noisy, FIXED_W)]
    found += [Attack(f"{known}", *pair, FIXED_W, known=known) for known in ("saved logits", "top-5", "rounded")]
    return [*found, Attack("automatic", *pair, 0.0, known="automatic"), Attack("divergence", *pair, 0.0, known="texts")]


def attack(world: World, one: Attack) -> dict[str, Any]:
    """Scores of one generator by query, as JSON holds them."""
    pre, post = world.models[one.pre], world.models[one.post]
    prefixes = [query.prefix for query in world.asked]
    if one.known == "texts":
        return {
            name: divergence(pre, post, texts, batch_size=_BATCH).total.tolist()
            for name, texts in (("deleted", world.deleted), ("unseen", world.unseen))
        }
    w = one.w
    if one.known == "automatic":
        w = choose_w(
            GuidedExtractor(pre, post),
            prefixes[:64],
            candidates=CANDIDATES,
            max_new_tokens=world.tokens,
            batch_size=_BATCH,
        ).w
    source: Any = Local(pre)
    if one.known == "saved logits":
        # What a service logged when the deleted people's records were asked for: greedy replies, all logits.
        heads = pre.encode(prefixes, chat=False)
        source = SavedLogits.log(pre, heads, max_new_tokens=world.tokens, top_k=20, batch_size=_BATCH)
    elif one.known == "top-5":
        source = Released(source, top_k=5)
    elif one.known == "rounded":
        source = Released(source, decimals=1)
    attacker = GuidedExtractor(source, post, post, w=w, gamma=one.gamma)
    made = attacker.generate(prefixes, max_new_tokens=world.tokens, batch_size=_BATCH)
    rows = score(world.asked, {"it": made})
    columns = [name for name in rows.columns if name not in ("query", "generator", "prefix", "truth", "text", "gap")]
    return {"w": w, **{name: rows[name].astype(float).tolist() for name in columns}}
