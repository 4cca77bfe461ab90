"""Theory: closed forms against brute force, the published exponents, and cold targets told from warm ones."""

import subprocess
import sys
from itertools import cycle
from math import inf

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.special import rel_entr, softmax

from toydepth.figures import svg, theory
from toydepth.figures.style import DARK, LIGHT
from toydepth.powerlaw import alpha, local_slopes
from toydepth.theory import PUBLISHED_STARS, course, crossover, curves, exponents, rate, star, window
from toydepth.theory import softmax as theory_softmax
from toydepth.theory.superposition import least_overlap, most_equiangular, random_overlap, weak_loss, welch_bound

WIDTHS = np.array([10, 15, 25, 39, 63, 100])


@pytest.fixture(scope="module")
def found():
    """The published grid and the limit of hard labels, at a tenth of the published number of logits."""
    stars = [*PUBLISHED_STARS, inf]
    return dict(zip(stars, curves(stars, batch=256, replicates=4, seed=1), strict=True))


def test_loss_and_its_derivative_are_those_of_the_kl_itself():
    beta = np.array([0.5, 2.0, 3.0])
    warm, cold = curves([5.0, inf], beta, outputs=9, width=4, batch=50, replicates=1)
    logits, _ = theory_softmax._draw(np.random.default_rng([0, 0]), outputs=9, width=4, batch=50)

    def kl(b, teacher):
        return rel_entr(teacher, softmax(b * logits, axis=1)).sum(1).mean()

    for theory_of, teacher in ((warm, softmax(5 * logits, axis=1)), (cold, np.eye(9)[logits.argmax(1)])):
        h = 1e-5
        assert theory_of.loss[0] == pytest.approx([kl(b, teacher) for b in beta])
        differences = [(kl(b + h, teacher) - kl(b - h, teacher)) / (2 * h) for b in beta]
        assert -theory_of.force[0] == pytest.approx(differences, rel=1e-6)
    assert warm.energy - warm.force == pytest.approx(np.full((1, 3), (warm.energy - warm.force)[0, 0]))  # U(beta_star)


def test_star_is_the_deviation_of_the_time_experiments_logits():
    rows = np.random.default_rng(0).uniform(-1, 1, (128, 32)) / np.sqrt(32)
    x = np.random.default_rng(1).standard_normal((2000, 32))
    x *= np.sqrt(32) / np.linalg.norm(x, axis=1, keepdims=True)
    assert (x @ rows.T / 0.01).std() == pytest.approx(star(0.01), rel=0.03)


def test_published_exponents_hold_once_saturation_is_divided_out(found):
    cold = [curves for curves in found.values() if window(curves.beta_star, 128)]
    assert len(cold) == 7
    for c in cold:
        loss, force = exponents(c, corrected=True)
        assert loss.alpha == pytest.approx(1.15, abs=0.05)
        assert force.alpha == pytest.approx(2.26, abs=0.04)
        assert loss.ci_low < loss.alpha < loss.ci_high
        assert min(loss.r2, force.r2) > 0.999
    assert exponents(found[inf]) == exponents(found[inf], corrected=True)


def test_a_finite_temperature_steepens_loss_more_than_its_derivative(found):
    loss, force = exponents(found[PUBLISHED_STARS[0]])
    assert force.alpha == pytest.approx(2.26, abs=0.04)
    assert loss.alpha > 1.25
    assert exponents(found[PUBLISHED_STARS[4]])[0].alpha > 1.5


def test_energy_is_minus_beta_below_the_crossover_and_saturates_above(found):
    c = found[inf]
    energy = dict(zip(c.beta, c.energy.mean(0), strict=True))
    assert all(u == pytest.approx(-b, rel=0.06) for b, u in energy.items() if b <= 1)
    late = [u for b, u in energy.items() if b >= 2.5 * crossover(128)]
    assert np.allclose(late, -2.55, atol=0.07)
    assert max(late) - min(late) < 0.05


def test_a_warm_target_has_no_window_and_no_power_law():
    (warm,) = curves([1.0], np.linspace(0.01, 0.99, 99), batch=256, replicates=2)
    assert window(1.0, 128) is None
    assert exponents(warm) is None
    tau, _, loss = course(warm)
    slopes = local_slopes(tau, loss)[1]
    assert np.all(np.diff(slopes) > 0)  # ever steeper: exponential
    assert slopes[-1] > 5


def test_the_course_obeys_its_equation_and_falls_as_time_to_a_third(found):
    c = found[inf]
    tau, beta, loss = course(c, c_eff=0.5)
    speed = np.gradient(beta, tau)[5:-5]
    assert speed == pytest.approx(0.5 / 128 * c.force.mean(0)[5:-5], rel=0.01)
    late = beta > 4 * crossover(128)
    assert alpha(tau[late], loss[late]) == pytest.approx(1 / 3, abs=0.02)
    assert alpha(tau[late], beta[late]) == pytest.approx(-1 / 3, abs=0.02)
    early = (beta > 0.2) & (beta < 1)
    assert alpha(tau[early], loss[early]) < 0.3


def test_rate_recovers_a_planted_constant(found):
    c = found[PUBLISHED_STARS[0]]
    tau, _, loss = course(c, c_eff=0.7)
    assert rate(c, tau[10:-10], loss[10:-10]) == pytest.approx(0.7)
    assert rate(c, [0.0, *tau[10:50]], [9.0, *loss[10:50]]) == pytest.approx(0.7)
    with pytest.raises(ValueError, match="theory's range"):
        rate(c, np.array([1.0]), np.array([99.0]))


def test_what_is_left_out_falls_with_the_frequencies_exponent_less_one():
    i = np.arange(1.0, 100_001)
    for a in (1.5, 2.0):
        p = i**-a / (i**-a).sum()
        assert alpha(WIDTHS, weak_loss(p, WIDTHS)) == pytest.approx(a - 1, abs=0.05)
    assert alpha(WIDTHS, weak_loss(1 / i, WIDTHS)) < 0.15
    p = np.array([0.2, 0.5, 0.1])
    assert weak_loss(p, [0, 1, 2, 3, 9]) == pytest.approx(4 / 3 * np.array([0.8, 0.3, 0.1, 0, 0]))


def overlaps(rows):
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return ((rows @ rows.T) ** 2)[~np.eye(len(rows), dtype=bool)]


def test_overlaps_of_random_rows_and_of_tight_frames():
    rng = np.random.default_rng(0)
    for width, expected in zip(WIDTHS, random_overlap(WIDTHS), strict=True):
        mean = overlaps(rng.standard_normal((400, width))).mean()
        assert mean == pytest.approx(expected, rel=0.02)
        assert mean > least_overlap(400, width)
    # Three lines at 60 degrees in the plane, and the icosahedron's six diagonals: equiangular, and as many as can be.
    golden = (1 + np.sqrt(5)) / 2
    icosahedron = [np.roll([0, 1, s * golden], k) for k in range(3) for s in (1, -1)]
    turns = np.arange(3) * np.pi / 3
    for frame in (np.stack([np.cos(turns), np.sin(turns)], axis=1), np.array(icosahedron)):
        n, width = frame.shape
        assert n == most_equiangular(width)
        assert overlaps(frame) == pytest.approx(np.full(n * (n - 1), least_overlap(n, width)))
        assert welch_bound(n, width) == pytest.approx(np.sqrt(overlaps(frame).max()))
    assert least_overlap(5, 8) == 0


def test_panels_show_windows_exponents_and_measured_points(found):
    tau, _, loss = course(found[inf], 0.7)
    measured = {"sgd": (tau[10:60], loss[10:60]), "too late": (tau[:2], np.full(2, 1e-9))}
    points = {"weak": (WIDTHS**-0.5, 1.1 * WIDTHS**-0.5)}
    panels = [
        *theory.softmax_panels(list(found.values())),
        *theory.softmax_panels(curves([1.0], batch=16, replicates=1)),
        theory.course_panel(found[inf], measured),
        theory.missing_panel(points),
        theory.missing_panel({}),
        theory.overlap_panel({"strong": (WIDTHS, 1 / WIDTHS)}, 1000),
        theory.overlap_panel({}, 1000),
    ]
    for panel, look in zip(panels, cycle([LIGHT, DARK]), strict=False):
        assert svg(panel, look).count(look.grey.lower().encode()) > 2
    assert "window, 3.12 to 12.5" in panels[0].caption
    assert "At beta* = 100: 1.3" in panels[0].caption
    assert "No teacher is cold enough" in panels[2].caption
    assert panels[4].entries == [(0, "sgd: c_eff 0.7"), (1, "too late")]
    ax = Figure().add_subplot()
    panels[0].draw(ax, LIGHT)
    assert len(ax.lines) == 2 * len(found) + 2 + 1  # curves, fits, c0
    ax = Figure().add_subplot()
    panels[5].draw(ax, LIGHT)
    assert np.array_equal(ax.lines[-1].get_xdata(), ax.lines[-1].get_ydata())


def test_theory_and_its_panels_import_no_jax():
    code = "import sys, toydepth.theory, toydepth.figures.theory; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
