"""Turn the tone of the embedded model around the circle, and see what each angle costs.

python examples/angular-steering.py
"""

from __future__ import annotations

from touchstone.language import LanguageModel
from touchstone.language.angular_steering import SteeringPlane, side_effects
from touchstone.language.angular_steering.arms import Rotation

TOPICS = ["the sea", "a dog", "an old house", "a birthday", "the weather", "a train journey", "a garden", "a letter"]


def main() -> None:
    model = LanguageModel.load()
    happy = [f"Write a very happy sentence about {topic}." for topic in TOPICS]
    sad = [f"Write a very sad sentence about {topic}." for topic in TOPICS]
    plane = SteeringPlane.fit(model, happy, sad)

    prompt = "Write one sentence about a winter evening."
    print(f"unsteered  {model.generate([prompt], max_new_tokens=24)[0]}")
    # One angle a prompt: four angles are one batch.
    angles = [0.0, 90.0, 180.0, 270.0]
    with plane.steer(model, angles):
        replies = model.generate([prompt] * 4, max_new_tokens=24)
    for angle, reply in zip(angles, replies, strict=True):
        print(f"{angle:8.0f}°  {reply}")

    card = side_effects(model, Rotation(plane, (0.0, 180.0)))
    print("\nwhat it costs: change in log-likelihood of neutral text, nats a token")
    for row in card.itertuples():
        print(f"{row.value:8.0f}°  {row.nll_change:+.3f} [{row.nll_low:+.3f}, {row.nll_high:+.3f}]")


if __name__ == "__main__":
    main()
