"""Looking inside: how states move from layer to layer, in toys and in language models. No JAX until a toy is opened.

from toydepth import geometry

for subject in geometry.of_run("outputs/alpha_quick/runs/..."):
    found = geometry.look(subject)
    found.mean("update"), found.shuffled, geometry.judge(found).words
"""

from typing import TYPE_CHECKING

from ..lazy import loader

if TYPE_CHECKING:
    from .across import Across, across_depths
    from .clusters import Clusters
    from .errors import ErrorSplit, Splitting
    from .interventions import Interventions, intervene, orders
    from .measures import angle, measure
    from .models import LanguageModel, language_model
    from .nulls import Null, Pairs
    from .probe import Probed, look
    from .seen import Seen, Subject
    from .summary import Profile, Summary
    from .toys import Toy, of_run, of_sweep
    from .tracing import Traced, trace
    from .verdict import Sign, Verdict, judge

__getattr__ = loader(
    __name__,
    {
        "across": ("Across", "across_depths"),
        "clusters": ("Clusters",),
        "errors": ("ErrorSplit", "Splitting"),
        "interventions": ("Interventions", "intervene", "orders"),
        "measures": ("angle", "measure"),
        "models": ("LanguageModel", "language_model"),
        "nulls": ("Null", "Pairs"),
        "probe": ("Probed", "look"),
        "seen": ("Seen", "Subject"),
        "summary": ("Profile", "Summary"),
        "toys": ("Toy", "of_run", "of_sweep"),
        "tracing": ("Traced", "trace"),
        "verdict": ("Sign", "Verdict", "judge"),
    },
)

__all__ = [
    "Across",
    "Clusters",
    "ErrorSplit",
    "Interventions",
    "LanguageModel",
    "Null",
    "Pairs",
    "Probed",
    "Profile",
    "Seen",
    "Sign",
    "Splitting",
    "Subject",
    "Summary",
    "Toy",
    "Traced",
    "Verdict",
    "across_depths",
    "angle",
    "intervene",
    "judge",
    "language_model",
    "look",
    "measure",
    "of_run",
    "of_sweep",
    "orders",
    "trace",
]
