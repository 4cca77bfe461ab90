"""What is printed to a terminal: where to, and tables without lines."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table


def console() -> Console:
    """Standard output, 120 columns wide where it is not a terminal."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(width=120, highlight=False)


def grid(columns: Sequence[str], rows: Sequence[Sequence[str]] = ()) -> Table:
    """A table without lines, numbers to the right of their names."""
    made = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for i, name in enumerate(columns):
        made.add_column(name, no_wrap=True, justify="left" if i == 0 else "right")
    for row in rows:
        made.add_row(*row)
    return made
