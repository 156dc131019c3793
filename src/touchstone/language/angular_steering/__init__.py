"""Angular steering (arXiv 2510.26243): a dial for one behaviour of a language model, turned by rotating its
activations.

>>> plane = SteeringPlane.fit(model, happy_prompts, sad_prompts)
>>> with plane.steer(model, degrees=180.0):
...     model.generate(prompts)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from touchstone.lazy import exports

if TYPE_CHECKING:
    from touchstone.language.angular_steering.arms import Ablation as Ablation
    from touchstone.language.angular_steering.arms import Addition as Addition
    from touchstone.language.angular_steering.arms import Prompting as Prompting
    from touchstone.language.angular_steering.arms import Rotation as Rotation
    from touchstone.language.angular_steering.arms import Unsteered as Unsteered
    from touchstone.language.angular_steering.calibration import calibrate as calibrate
    from touchstone.language.angular_steering.card import side_effects as side_effects
    from touchstone.language.angular_steering.dials import Dials as Dials
    from touchstone.language.angular_steering.dials import interference as interference
    from touchstone.language.angular_steering.margin import margins as margins
    from touchstone.language.angular_steering.operators import Graded as Graded
    from touchstone.language.angular_steering.plane import SteeringPlane as SteeringPlane
    from touchstone.language.angular_steering.sweeping import Contrast as Contrast
    from touchstone.language.angular_steering.sweeping import sweep as sweep

# Resolved on first use, so that importing the package loads neither torch nor transformers.
_EXPORTS = {
    "Ablation": "arms",
    "Addition": "arms",
    "Contrast": "sweeping",
    "Dials": "dials",
    "Graded": "operators",
    "Prompting": "arms",
    "Rotation": "arms",
    "SteeringPlane": "plane",
    "Unsteered": "arms",
    "calibrate": "calibration",
    "interference": "dials",
    "margins": "margin",
    "side_effects": "card",
    "sweep": "sweeping",
}
__all__ = sorted(_EXPORTS)
__getattr__ = exports(__name__, _EXPORTS)
