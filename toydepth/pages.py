"""What HTML pages share: one file that needs no other, no network and no script; pictures in it for light and dark."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from . import figures
from .figures.axes import short

MINUS, DASH, TIMES = "\N{MINUS SIGN}", "\N{EN DASH}", "\N{MULTIPLICATION SIGN}"
RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def render(template: str, **values: Any) -> str:
    """A page from a template of this folder, which extends page.html.j2 and is given `values`."""
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"text": text, "digits": digits, "hundredths": hundredths, "short": short}
    return environment.get_template(template).render(
        version=version("toydepth"),
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        looks={"light": figures.LIGHT, "dark": figures.DARK},
        **values,
    )


def pictures(panels: Sequence[figures.Panel], told: str = "") -> list[dict[str, str]]:
    """Panels as a page shows them; `told` is said to those who do not see them."""
    return [
        {
            "title": panel.title,
            "caption": panel.caption,
            "alt": f"Chart: {panel.title}{f' ({told})' if told else ''}",
            "light": _data(figures.svg(panel, figures.LIGHT)),
            "dark": _data(figures.svg(panel, figures.DARK)),
        }
        for panel in panels
    ]


def _data(image: bytes) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(image).decode()


def text(value: Any) -> str:
    """A value for people: nothing for None, few digits for a float."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e6 else f"{value:.3g}"
    return str(value)


def digits(value: float | None, count: int = 3) -> str:
    """A number with so many digits and a true minus sign, if it is long times a power of ten; a dash if not known."""
    if value is None or value != value:
        return DASH
    if value == 0 or not 1e-3 <= abs(value) < 1e5:
        mantissa, _, power = f"{value:.{count}g}".partition("e")
        raised = f"10{str(int(power)).translate(RAISED)}" if power else ""
        return (
            raised if raised and mantissa == "1" else mantissa.replace("-", MINUS) + f" {TIMES} {raised}" * bool(power)
        )
    return f"{float(f'{value:.{count}g}'):.10g}".replace("-", MINUS)


def hundredths(value: float | None) -> str:
    """A number with two digits behind the point and a true minus sign; a dash where it is not known."""
    return DASH if value is None or value != value else f"{value:.2f}".replace("-", MINUS)
