"""law.html and its pictures: what they say and show, that the page asks for nothing, and that names are no markup."""

import re
import subprocess
import sys
from html import unescape

import numpy as np
import polars as pl
import pytest
from matplotlib.figure import Figure

from toydepth.fields import ConfigError
from toydepth.figures.frontier import budgets
from toydepth.figures.style import DARK, LIGHT
from toydepth.laws import named
from toydepth.laws.page import PAGE, write
from toydepth.laws.pictures import draw, panels
from toydepth.laws.published import Published
from toydepth.laws.studies import study
from toydepth.laws.tables import Table

VALUES = {"c_m": 388.0, "c_l": 3.25, "c_D": 1064.0, "a_m": 1.0, "a_l": 1.0, "a_D": 1 / 3, "L0": 1.778}
LAW = named("width-depth-tokens")
MINUS = "\N{MINUS SIGN}"
COMMAND = "toydepth law fit planted --drop 3 # <script>"


def table(name="planted"):
    """16 models of a planted law at four budgets, with a scatter of half a per cent; parameters with embeddings."""
    rng = np.random.default_rng(0)
    rows = [(m, n, d) for m in (256, 512, 1024, 2048) for n in (6, 12, 24, 48) for d in (3e9, 1e10, 3e10, 1e11)]
    width, depth, tokens = np.array(rows, float).T
    loss = LAW.loss({"width": width, "depth": depth, "tokens": tokens}, VALUES) * np.exp(
        0.005 * rng.normal(size=len(rows))
    )
    columns = {"width": width, "depth": depth, "tokens": tokens, "loss": loss}
    return Table(pl.DataFrame(columns).with_columns(parameters=15 * width**2 * depth), name)


@pytest.fixture(scope="module")
def found():
    return study(table(), LAW.expected(), drop=3, draws=50)


@pytest.fixture(scope="module")
def free():
    return study(table(), LAW, drop=3, draws=20)


@pytest.fixture(scope="module")
def page(found, tmp_path_factory):
    """The page of a fit with the exponents of theory, and the folder that it lies in."""
    paths = write(found, tmp_path_factory.mktemp("law"), COMMAND)
    return paths[0].read_text(), paths


def words(page):
    """What a reader sees."""
    page = re.sub(r"<(style|head).*?</\1>", "", page, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]*>", "", page)).split())


def drawn(panel, look=LIGHT):
    """The axes of a panel."""
    ax = Figure().add_subplot()
    panel.draw(ax, look)
    return ax


def test_the_page_says_what_was_fitted_and_what_follows(page, found):
    said, follows = words(page[0]), found.consequences
    assert "61 rows of 16 models, without the 3 highest losses (and ties) of 64" in said
    assert COMMAND in said
    for value in (follows.m_over_l.value, follows.d_over_n.value, *follows.m_over_l.interval.__dict__.values()):
        assert f"{value:.3g}" in said
    assert "2 : 1 : 3" in said and "N = 12 m² l, without embeddings" in said and "taken as 15 m² l" in said
    assert f"{follows.d_over_n.value * 12 / 15:.3g}" in said  # with embeddings
    assert f"to the power of {MINUS}{1 / 6:.3g}." in said
    assert f"{found.fit.coefficients['c_m']:.4g}" in said and "fixed" in said


def test_cautions_are_said_with_their_codes_and_no_name_is_taken_for_markup(page, tmp_path):
    odd = table("<b>a&b</b>").noted("odd", "something <i>odd</i> about it").noted("exact", "a_m = 1 & nothing else")
    noted = study(odd, LAW.expected(), draws=5)
    own = write(noted, tmp_path)[0].read_text()
    said = words(own)
    assert "Something <i>odd</i> about it. odd" in said and "a_m = 1 & nothing else. exact" in said
    assert all(note.code in said for note in noted.cautions)
    assert "&lt;b&gt;a&amp;b&lt;/b&gt;" in own and "<b>" not in own and "<i>" not in own
    assert "None of the checks found anything" in words(page[0])


def test_the_page_asks_for_nothing(page):
    assert not re.search("<script|<link|@import", page[0])
    assert all(source.startswith("data:image/svg") for source in re.findall(r'(?:src|href)="([^"]*)"', page[0]))
    assert "url(" not in re.sub(r"data:[^\"]*", "", page[0])


def test_pictures_lie_beside_the_page_and_stale_ones_go(page, tmp_path):
    names = ["parts", "frontier", "shape", "capacity", "scan", "residuals"]
    assert [path.name for path in page[1]] == [PAGE, *(f"{name}.png" for name in names)]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in page[1][1:])
    (tmp_path / "shape.png").write_text("of an earlier fit")
    (tmp_path / "mine.png").write_text("somebody's own")
    drawn = draw(
        {"parts": panels(study(table(), named("parameters-tokens").expected(), draws=5))["parts"]}, tmp_path, ""
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.png", *(path.name for path in drawn)]


def test_a_law_that_nothing_follows_from_has_a_page(tmp_path):
    paths = write(study(table(), named("width-tokens").expected(), draws=5), tmp_path)
    assert "No shape and no frontier follow" in words(paths[0].read_text())
    assert [path.name for path in paths[1:]] == ["parts.png", "residuals.png"]


def test_a_folder_that_cannot_be_written_to_is_one_line(found, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file"):
        write(found, tmp_path / "file")


def test_the_frontier_runs_through_the_minima_of_its_curves(found):
    *curves, best = drawn(panels(found)["frontier"][0]).lines
    assert len(curves) == len(budgets(*np.quantile(_compute(found), [0, 1]))) > 2
    for curve in curves:
        x, y = curve.get_data()
        lowest = np.argmin(y)
        if 0 < lowest < len(x) - 1:
            on_it = np.interp(-y[lowest], -best.get_ydata(), np.log(best.get_xdata()))
            assert on_it == pytest.approx(np.log(x[lowest]), abs=np.log(x[1] / x[0]))


def _compute(found):
    frame = found.table.frame
    return (6 * 12 * frame["width"] ** 2 * frame["depth"] * frame["tokens"]).to_numpy()


def test_parts_scatter_about_their_terms(found):
    for panel, term in zip(panels(found)["parts"], found.fit.law.terms, strict=True):
        points, line = drawn(panel).lines
        x, y = points.get_data()
        part = found.fit.values[term.coefficient] * x ** -found.fit.values[term.exponent]
        assert np.sort(line.get_ydata()) == pytest.approx(np.sort(part))
        assert np.mean(y - part) == pytest.approx(np.mean(found.table.loss - found.fit.predict(found.table.sizes(LAW))))


def test_profiles_rise_from_the_fit_and_published_fits_stand_above_them(free):
    other = Published("theirs", VALUES, 1.1 * free.fit.mse_log)
    for panel, name in zip(panels(free, [other])["profiles"], LAW.exponents, strict=True):
        ax = drawn(panel)
        profile = next(line for line in ax.lines if len(line.get_xdata()) > 10)
        x, y = profile.get_data()
        assert x[np.argmin(y)] == pytest.approx(free.fit.values[name]) and min(y[0], y[-1]) > 3.84
        mark = next(line for line in ax.lines if line.get_marker() == "D")
        assert (mark.get_xdata()[0], mark.get_ydata()[0]) == pytest.approx((VALUES[name], 0.1 * free.fit.n))


def test_the_cost_of_a_shape_is_least_at_the_best_one(found):
    _, curve, *_ = (line for line in drawn(panels(found)["shape"][0]).lines if len(line.get_xdata()) > 1)
    x, y = curve.get_data()
    assert x[np.argmin(y)] == pytest.approx(found.consequences.m_over_l.value, rel=0.03) and min(y) >= 0


@pytest.mark.parametrize("look", [LIGHT, DARK], ids=["light", "dark"])
def test_every_panel_has_labelled_axes_and_a_caption(free, look):
    for group in panels(free).values():
        for panel in group:
            ax = drawn(panel, look)
            assert ax.get_xlabel() and ax.get_ylabel() and panel.caption.endswith(".")


def test_pages_need_no_jax():
    code = "import sys, toydepth.laws.page; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
