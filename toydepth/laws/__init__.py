"""What tables of trained models say about width, depth and data: laws of loss, and how far they are known. No JAX.

from toydepth import laws

table = laws.read(laws.locate("chinchilla"))
found = laws.study(table, laws.named("width-depth-tokens"), drop=40)
found.fit.values, found.intervals, found.consequences, found.cautions
"""

from typing import TYPE_CHECKING

from ..lazy import loader

if TYPE_CHECKING:
    from .comparison import compare, exclusion_scan, held_out
    from .datasets import DATASETS, locate
    from .fitting import Fit, fit
    from .intervals import Interval, bootstrap, profile, profile_interval
    from .law import LAWS, Law, Term, law_of, named
    from .readers import read
    from .studies import Study, as_json, study
    from .tables import Table
    from .tau import Schedule, constant_rate, equal_tau

__getattr__ = loader(
    __name__,
    {
        "comparison": ("compare", "exclusion_scan", "held_out"),
        "datasets": ("DATASETS", "locate"),
        "fitting": ("Fit", "fit"),
        "intervals": ("Interval", "bootstrap", "profile", "profile_interval"),
        "law": ("LAWS", "Law", "Term", "law_of", "named"),
        "readers": ("read",),
        "studies": ("Study", "as_json", "study"),
        "tables": ("Table",),
        "tau": ("Schedule", "constant_rate", "equal_tau"),
    },
)

__all__ = [
    "DATASETS",
    "LAWS",
    "Fit",
    "Interval",
    "Law",
    "Schedule",
    "Study",
    "Table",
    "Term",
    "as_json",
    "bootstrap",
    "compare",
    "constant_rate",
    "equal_tau",
    "exclusion_scan",
    "fit",
    "held_out",
    "law_of",
    "locate",
    "named",
    "profile",
    "profile_interval",
    "read",
    "study",
]
