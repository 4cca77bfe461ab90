"""What theory expects of the toys, in numbers to draw beside what was measured. Imports no JAX.

`softmax`: loss ~ tau^-1/3 of a softmax head. `superposition`: loss ~ 1 / width of an autoencoder. `tasks`: which
tasks a narrow encoder learns.
"""

from .softmax import PUBLISHED_STARS, Curves, Slope, course, crossover, curves, exponents, rate, star, window
from .superposition import least_overlap, most_equiangular, random_overlap, weak_loss, welch_bound
from .tasks import Mixture, common_tasks, corrected, forgetting_rate

__all__ = [
    "PUBLISHED_STARS",
    "Curves",
    "Mixture",
    "Slope",
    "common_tasks",
    "corrected",
    "course",
    "crossover",
    "curves",
    "exponents",
    "forgetting_rate",
    "least_overlap",
    "most_equiangular",
    "random_overlap",
    "rate",
    "star",
    "weak_loss",
    "welch_bound",
    "window",
]
