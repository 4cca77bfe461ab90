"""Laws of loss: a floor and a power of a size per term, L = sum of c x^-a + L0. Plain data, shared by all of `laws`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from jaxtyping import Float

from ..fields import ConfigError

Variable = Literal["width", "depth", "tokens", "parameters", "tau"]
Sizes = Mapping[str, Float[np.ndarray, " rows"]]

LETTERS: dict[Variable, str] = {"width": "m", "depth": "l", "tokens": "D", "parameters": "N", "tau": "tau"}
# What theory gives (arXiv 2606.25008): overlap of superposed vectors, averaging layers, slow alignment of a softmax;
# for parameters, width and depth at their best shape.
EXPECTED: dict[Variable, float] = {"width": 1.0, "depth": 1.0, "tokens": 1 / 3, "parameters": 1 / 3, "tau": 1 / 3}
FLOOR = "L0"
SMALLEST, LARGEST = 1e-30, 1e30  # sizes whose powers are still numbers


@dataclass(frozen=True)
class Term:
    """c x^-a, x being a size of a model or of its training: width, depth, tokens, parameters or tau."""

    variable: Variable

    @property
    def coefficient(self) -> str:
        return f"c_{LETTERS[self.variable]}"

    @property
    def exponent(self) -> str:
        return f"a_{LETTERS[self.variable]}"


@dataclass(frozen=True)
class Law:
    """L = sum of c x^-a over the terms, + L0; any coefficient, exponent or the floor may be fixed at a value."""

    name: str
    terms: tuple[Term, ...]
    fixed: Mapping[str, float] = field(default_factory=dict)

    @property
    def variables(self) -> tuple[Variable, ...]:
        return tuple(term.variable for term in self.terms)

    @property
    def coefficients(self) -> tuple[str, ...]:
        return tuple(term.coefficient for term in self.terms)

    @property
    def exponents(self) -> tuple[str, ...]:
        return tuple(term.exponent for term in self.terms)

    @property
    def names(self) -> tuple[str, ...]:
        """All that makes a law: coefficients, exponents and the floor, in this order."""
        return (*self.coefficients, *self.exponents, FLOOR)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names that are free, in the order of `names`: what a fit estimates."""
        return tuple(name for name in self.names if name not in self.fixed)

    @property
    def free_exponents(self) -> tuple[str, ...]:
        return tuple(name for name in self.exponents if name not in self.fixed)

    def fix(self, values: Mapping[str, float]) -> Law:
        """The law with these coefficients, exponents or the floor held at given values.

        Raises:
            ConfigError: a name that the law does not have, or a value that is negative (for an exponent, not positive).
        """
        for name, value in values.items():
            if name not in self.names:
                raise ConfigError(f"--fix {name}: the law {self.name} has {', '.join(self.names)}")
            if not (np.isfinite(value) and (value > 0 if name in self.exponents else value >= 0)):
                above = "above 0" if name in self.exponents else "from 0 up"
                raise ConfigError(f"--fix {name}={value:g}: allowed is a number {above}")
        return replace(self, fixed={**self.fixed, **values})

    def freed(self) -> Law:
        """The law with nothing fixed."""
        return replace(self, fixed={})

    def expected(self) -> Law:
        """The law with every exponent at the value that theory gives (`EXPECTED`), and nothing else fixed."""
        return replace(self, fixed={term.exponent: EXPECTED[term.variable] for term in self.terms})

    def parts(self, sizes: Sizes, values: Mapping[str, float]) -> dict[str, Float[np.ndarray, " rows"]]:
        """What each term adds to the loss, {variable: c x^-a}, in the unit of the loss.

        Args:
            sizes: {variable: x[rows]}.
            values: the coefficients and exponents by name.
        """
        return {
            term.variable: values[term.coefficient] * np.asarray(sizes[term.variable], float) ** -values[term.exponent]
            for term in self.terms
        }

    def loss(self, sizes: Sizes, values: Mapping[str, float]) -> Float[np.ndarray, " rows"]:
        """The predicted loss[rows]: the sum of `parts` and the floor."""
        return np.asarray(sum(self.parts(sizes, values).values()) + values[FLOOR], float)

    def words(self) -> str:
        """The law as it is written, with the values of fixed exponents: L = c_m/m^a_m + c_l/l + ... + L0."""
        terms = (
            f"{t.coefficient}/{LETTERS[t.variable]}" + _power(t.exponent, self.fixed.get(t.exponent))
            for t in self.terms
        )
        return f"L = {' + '.join(terms)} + {FLOOR}"


def _power(exponent: str, value: float | None) -> str:
    if value is None:
        return f"^{exponent}"
    return "" if value == 1 else f"^{value:.4g}"


def law_of(*variables: Variable) -> Law:
    """The law with a term for each of these sizes, all free."""
    return Law("-".join(variables), tuple(Term(variable) for variable in variables))


LAWS: dict[str, Law] = {
    law.name: law
    for law in (
        law_of("width", "depth", "tokens"),
        law_of("parameters", "tokens"),
        law_of("width", "depth", "tau"),
        law_of("parameters", "tau"),
        law_of("width", "tokens"),
        law_of("depth", "tokens"),
        law_of("width", "depth"),
        *(law_of(variable) for variable in LETTERS),
    )
}


def named(name: str) -> Law:
    """The law of this name, all free; raises `ConfigError` for a name that is not in `LAWS`."""
    if name not in LAWS:
        raise ConfigError(f"--law {name}: allowed is {', '.join(LAWS)}")
    return LAWS[name]
