"""report.html: what it says, that it asks for nothing, and that no name in it is taken for markup."""

import json
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from run_folders import write_run

from toydepth import figures, files, report, store
from toydepth.cli import main
from toydepth.derive import Derived, derive
from toydepth.exponents import fit
from toydepth.fit_options import FitOptions

MINUS = "\N{MINUS SIGN}"
PAPER = "https://arxiv.org/abs/2602.05970"


def sweep(folder, kinds=(("tied", 2.9), ("independent", 1.1)), depths=(2, 4, 8), seeds=(0, 1, 2), **more):
    """A sweep's folder of planted runs: replicates' exponents differ by 0.1."""
    for kind, alpha in kinds:
        for seed in seeds:
            for depth in depths:
                write_run(folder, kind, depth, seed, alpha + 0.1 * (seed - 1), **more)
    return folder


class Parsed(HTMLParser):
    """What a page consists of: its elements, its text, and every address that it mentions."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], ""
        self.feed(page)
        self.styles = "".join(re.findall(r"<style>(.*?)</style>", page, re.DOTALL))

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data):
        if self.tags[-1:] != ["style"]:
            self.text += " ".join(data.split()) + " "

    def requests(self):
        """Addresses that a browser would fetch, and links that lead out of the page."""
        loads = ("src", "srcset", "href", "poster", "data", "action", "background", "xlink:href")
        found = [value for _, name, value in self.attributes if name in loads and not value.startswith(("data:", "#"))]
        inline = " ".join(value for _, name, value in self.attributes if name == "style")
        return found + re.findall(r"url\([^)]*\)|@import[^;]*", self.styles + inline)


def page_of(folder):
    """The page of a sweep's folder, without the pictures and tables beside it."""
    runs = store.collect(folder)
    return Parsed(report.write(Derived(folder, folder, FitOptions(), runs, fit(runs), "")).read_text())


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A finished sweep of two teachers, converged, and its page."""
    folder = sweep(tmp_path_factory.mktemp("work") / "planted")
    record = {"command": "toydepth run planted", "commands": ["toydepth run planted", "toydepth run more"]}
    fixed = {"student.block": "my_block.py:MyBlock", "optimizer.lr": 0.02, "teacher.rho": None}
    files.write_json(folder / "sweep.json", record | {"fixed": fixed, "swept": {"student.depth": [8, 2, 4]}})
    return folder, page_of(folder)


@pytest.fixture(scope="module")
def climbing(tmp_path_factory):
    """One that had not converged, with a run that diverged, one that failed and one that runs."""
    folder = sweep(tmp_path_factory.mktemp("work") / "climbing", gain=0.5)
    write_run(folder, "tied", 16, 0, status="diverged", message="loss 1e9 at step 3")
    write_run(folder, "tied", 16, 1, status="failed", message="out of memory")
    write_run(folder, "tied", 16, 2, status="running")
    return folder, page_of(folder)


def test_the_page_says_what_was_asked_and_found(planted):
    _, page = planted
    assert "How does loss fall with student depth? 18 runs in 2 regimes." in page.text
    for kind, alpha in (("Tied", "2.90"), ("Independent", "1.10")):
        low, high = (f"{float(alpha) + sign * 4.303 * 0.1 / 3**0.5:.2f}" for sign in (-1, 1))
        assert f"{kind}: loss falls as depth {MINUS}{alpha} , exponent {alpha}" in page.text
        assert f"{alpha} (95 % interval {low} to {high}, 3 replicates, 9 runs of depth 2 to 8)" in page.text
    assert page.text.count("Converged;") == 2
    width = 2.776 * 0.1 * (2 / 3) ** 0.5
    low, high = (f"{1.8 + sign * width:.2f}" for sign in (-1, 1))
    said = f"differ by 1.80 (Welch's 95 % interval {low} to {high}): more than the scatter between replicates explains"
    assert said in page.text
    assert "toydepth run planted" in page.text and "toydepth run more" in page.text


def test_a_converged_sweep_is_not_said_to_lack_what_it_has(planted, climbing):
    lacks = ["bounds", "not done", "diverged", "failed"]
    assert [word for word in lacks if word in planted[1].text] == []
    assert [word for word in lacks if word in climbing[1].text] == lacks
    assert "All runs are done and had converged" in planted[1].text


def test_what_had_not_converged_or_went_wrong_is_listed_with_messages(planted, climbing):
    folder, page = climbing
    assert "21 runs (18 done, 1 diverged, 1 failed, 1 running) in 2 regimes." in page.text
    assert "18 runs had not." in page.text and f"{MINUS}0.70" in page.text
    assert "loss 1e9 at step 3" in page.text and "out of memory" in page.text
    assert "Still climbing; 2.40 at half the budget." in page.text
    assert "All that have a twin had." in planted[1].text
    for run in (folder / "runs").iterdir():
        assert run.name in page.text


def test_a_difference_that_scatter_may_explain_is_said_to(tmp_path):
    page = page_of(sweep(tmp_path / "close", kinds=(("tied", 1.15), ("independent", 1.1))))
    assert (
        f"differ by 0.05 (Welch's 95 % interval {MINUS}0.18 to 0.28): the scatter between replicates may" in page.text
    )
    # Intervals of 0.25 to either side that overlap do not mean that.
    page = page_of(sweep(tmp_path / "apart", kinds=(("tied", 1.4), ("independent", 1.1))))
    assert "differ by 0.30 (Welch's 95 % interval 0.07 to 0.53): more than the scatter" in page.text
    assert "The two exponents" not in page_of(sweep(tmp_path / "one", seeds=(0,))).text


def test_settings_runs_and_origin(planted):
    folder, page = planted
    assert "block my_block.py:MyBlock" in page.text
    assert "depth 2, 4, 8" in page.text
    assert "rho" not in page.text
    for run in (folder / "runs").iterdir():
        assert run.name in page.text
    for said in ("2 x abacus", "abc1234", "jax 9.8.7", "54 s (runs and twins", "7.56e+05 FLOPs"):
        assert said in page.text


def test_without_sweep_json_the_runs_say_what_was_set(climbing):
    _, page = climbing
    assert "kind independent, tied" in page.text
    assert "block published" in page.text


def test_pictures_come_light_and_dark_with_text_for_those_who_do_not_see_them(planted):
    folder, page = planted
    shown = figures.panels(*(lambda runs: (fit(runs), runs))(store.collect(folder)), store.histories(folder))
    images = [value for tag, name, value in page.attributes if (tag, name) == ("img", "src")]
    alts = [value for tag, name, value in page.attributes if (tag, name) == ("img", "alt")]
    assert len(images) == len(alts) == 2 * len(shown) == 2 * page.tags.count("figure")
    assert all("tied 2.90" in alt for alt in alts)
    assert all(panel.caption in page.text for panel in shown)
    assert [panel.name for panel in shown][-1] == "alpha_vs_step"


def test_the_page_is_fit_for_phones_paper_and_readers(planted):
    _, page = planted
    assert ("html", "lang", "en") in page.attributes
    assert ("meta", "name", "viewport") in page.attributes
    assert "planted" in page.text.split("toydepth")[0]
    assert "prefers-color-scheme: dark" in page.styles and "@media print" in page.styles
    assert page.tags.count("table") == sum(
        "scroll" in v for tag, n, v in page.attributes if (tag, n) == ("div", "class")
    )
    assert "script" not in page.tags


def test_the_page_asks_for_nothing(planted, climbing):
    assert planted[1].requests() == climbing[1].requests() == [PAPER]
    for leak in (
        '<img src="https://x/y.png">',
        "<link href=//x/y.css>",
        "<style>@import 'x';</style>",
        "<p style='background:url(x)'>",
    ):
        assert len(Parsed(leak).requests()) == 1, leak


EVIL = "<script>alert(1)<!--\"'&amp;"


def test_names_and_messages_are_text_whatever_they_hold(tmp_path):
    folder = sweep(tmp_path / EVIL.replace("/", ""), seeds=(0,))
    write_run(folder, "tied", 16, 0, status="failed", message=f"{EVIL} <img src=x>")
    files.write_json(
        folder / "sweep.json",
        {"command": f"run {EVIL}", "fixed": {f"student.{EVIL}": EVIL}, "swept": {"student.block": [EVIL, "b"]}},
    )
    raw = report.make(folder).read_text()
    page = Parsed(raw)
    assert "script" not in page.tags and "<!--" not in raw
    assert page.requests() == [PAPER]
    assert page.text.count(EVIL) >= 6
    assert "script" in Parsed(f"<p>{EVIL}</p>").tags  # so the parser would have seen it


# --- what holds and what does not -----------------------------------------------------------------------------


def limits(page):
    return page.text.partition("What it could not show")[2].partition("Exponents")[0]


def changed(folder, pattern, path, **values):
    """Changes values of a file of the runs whose names match; returns their names."""
    for run in (found := sorted((folder / "runs").glob(pattern))):
        tree = files.read_json(run / path)
        files.write_json(
            run / path,
            tree | {name: tree.get(name, {}) | v if isinstance(v, dict) else v for name, v in values.items()},
        )
    return [run.name for run in found]


def test_runs_of_which_it_is_not_known_whether_they_had_converged_are_named(tmp_path):
    folder = sweep(tmp_path / "some")
    (name,) = changed(folder, "tied-d4-mse-s1-*", "result.json", half_loss=None, slope=None, converged=None)
    said = limits(page_of(folder))
    assert f"Whether all fitted runs had converged: of 1 it is not known, without a twin's result ({name})." in said
    assert "All runs" not in said
    changed(folder, "tied-*", "result.json", half_loss=None, slope=None, converged=None)
    write_run(folder, "tied", 16, 0)
    assert "of 9 it is not known" in (said := limits(page_of(folder))) and "and 5 more)" in said


def test_what_is_said_of_the_fitted_runs_is_not_said_of_all(tmp_path):
    folder = sweep(tmp_path / "part")
    for seed, depth in [(s, d) for s in (0, 1, 2) for d in (2, 4, 8)]:
        write_run(folder, "blocks", depth, seed, 2.0, gain=0.5 if depth > 2 else None)
    page = Parsed(report.make(folder, FitOptions(where="kind <> 'blocks'")).read_text())
    assert "All 18 fitted runs had converged, and every regime has an interval. Of the other runs" in limits(page)
    assert "in this folder 6 had not converged, 3 not known (no twin's result)." in limits(page)
    assert "All runs" not in limits(page)


def test_students_are_compared_with_the_depth_of_their_own_teachers(tmp_path):
    folder = tmp_path / "depths"
    for depth, students in ((8, (2, 4)), (64, (2, 4, 16))):
        sweep(folder, kinds=(("tied", 3.0),), depths=students, teacher={"kind": "tied", "depth": depth})
    assert "could copy" not in limits(page_of(folder))
    for seed in (0, 1, 2):
        write_run(folder, "tied", 16, seed, 3.0, teacher={"kind": "tied", "depth": 8})
    assert "could copy it layer by layer (tied, depth 8)." in limits(page_of(folder))
    # The depth that is set says nothing of somebody's own teacher.
    changed(folder, "*", "config.json", teacher={"kind": "mine.py:teacher"})
    assert "could copy" not in limits(page_of(folder))


def test_a_loss_that_rises_and_one_above_its_floor_are_said_to(tmp_path):
    page = page_of(sweep(tmp_path / "up", kinds=(("tied", -0.5), ("independent", 1.1))))
    assert "Tied: loss rises as depth 0.50 , exponent" in page.text
    assert f"Independent: loss falls as depth {MINUS}1.10 , exponent" in page.text
    lifted = Parsed(report.make(sweep(tmp_path / "floor"), FitOptions(floor="free")).read_text())
    assert f"Tied: loss above its floor falls as depth {MINUS}2.90 , exponent" in lifted.text
    assert "above its floor" not in page.text


def test_what_is_to_be_expected_is_said_of_published_teachers_and_by_the_scheme(tmp_path):
    folder = sweep(tmp_path / "euler")
    assert "For comparison: 1 for a rough teacher (a random walk), 3 for a smooth one" in page_of(folder).text
    changed(folder, "tied*", "config.json", student={"scheme": "midpoint"})
    mixed = page_of(folder).text
    assert "2p + 1 is expected with a scheme of order p (euler 3, midpoint 5)" in mixed
    assert "for a rough teacher" not in mixed
    changed(folder, "*", "config.json", student={"scheme": "rk4"})
    assert "of order p (rk4 9)" in page_of(folder).text
    changed(folder, "tied*", "config.json", teacher={"kind": "mine.py:teacher"})
    assert "For comparison" not in page_of(folder).text


# --- sweeps of all kinds ------------------------------------------------------------------------------------


def test_one_run_has_no_exponent(tmp_path):
    write_run(tmp_path / "one", alpha=2.0)
    page = page_of(tmp_path / "one")
    assert "1 run in 1 regime." in page.text
    assert "No exponent: a replicate needs 2 values of student.depth, the fullest has 1" in page.text
    assert "a loss of 0.25 ± 0.0025 after 10 steps" in page.text
    assert "There is no exponent to report." in page.text


def test_a_sweep_without_a_finished_run_has_a_page(tmp_path):
    write_run(tmp_path / "new", status="running")
    write_run(tmp_path / "new", depth=4, status="failed", message="no luck")
    page = Parsed(report.make(tmp_path / "new").read_text())
    assert "2 runs (1 running, 1 failed)." in page.text
    assert "No run has finished yet." in page.text and "no luck" in page.text
    assert "figure" not in page.tags
    assert [path.name for path in (tmp_path / "new").glob("*.*")] == ["report.html"]


def test_without_twins_convergence_is_unknown(tmp_path):
    page = page_of(sweep(tmp_path / "blind", gain=None))
    assert "Convergence unknown (no half-budget twins)." in page.text
    assert "For 18 runs it is not known: no twin's result." in page.text
    assert "there are no twins at half the budget to tell (all regimes)" in page.text


def test_one_replicate_a_narrow_range_and_deep_students_are_cautioned_about(tmp_path):
    page = page_of(
        sweep(
            tmp_path / "thin", depths=(4, 8), seeds=(0,), teacher={"kind": "tied", "depth": 8}, kinds=(("tied", 3.0),)
        )
    )
    for caution in ("one replicate gives no interval", "less than a factor of 3", "could copy it layer by layer"):
        assert caution in page.text
    wide = page_of(sweep(tmp_path / "wide", depths=(2, 4, 8)))
    for caution in ("one replicate gives no interval", "less than a factor of 3", "could copy it layer by layer"):
        assert caution not in wide.text


def test_a_folder_may_be_read_from_elsewhere_and_the_page_written_elsewhere(planted, tmp_path, monkeypatch, capsys):
    folder, _ = planted
    monkeypatch.chdir(tmp_path)
    words = ["report", str(folder), "--out", "far/off", "--where", "kind = 'tied'", "--range", "2:"]
    assert main(words) == 0
    assert capsys.readouterr().out == "far/off/report.html\n"
    page = Parsed(Path("far/off/report.html").read_text())
    assert "18 runs in 1 regime. 9 of them are fitted." in page.text
    assert "Fitted with: --range 2: --where" in page.text and "kind = 'tied'" in page.text
    assert page.text.split()[0] == "planted"


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """16 temperatures, 2 teachers, 3 depths, 3 replicates: 288 runs."""
    folder = tmp_path_factory.mktemp("work") / "large"
    for i in range(16):
        target = {"loss": "kl", "temperature": 10 ** (-2 + i / 7.5)}
        sweep(folder, kinds=(("tied", 1.2 + 0.1 * i), ("independent", 1.0)), gain=0.5, target=target)
    runs = store.collect(folder)
    return report.write(Derived(folder, folder, FitOptions(), runs, fit(runs), ""))


def test_a_large_sweep_is_summed_up_in_a_page_of_moderate_size(large, planted):
    page = Parsed(large.read_text())
    assert large.stat().st_size < 3e6
    assert "288 runs in 32 regimes." in page.text
    assert "Exponents from 1.00 [0.75, 1.25] (independent, temperature" in page.text
    assert "to 2.70 [2.45, 2.95] (tied, temperature 1)" in page.text
    assert page.tags.count("tr") > 2 * 288 + 32
    assert "Exponent against temperature" in page.text
    assert "loss falls as" not in page.text and "loss falls as" in planted[1].text


def test_a_page_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    folder = sweep(tmp_path / "sweep", seeds=(0,))
    derived = derive(folder)
    before = report.write(derived).read_bytes()
    names = sorted(path.name for path in folder.iterdir())

    def broken(*_):
        raise RuntimeError("no ink")

    monkeypatch.setattr(figures, "svg", broken)
    with pytest.raises(RuntimeError, match="no ink"):
        report.write(derived)
    assert (folder / "report.html").read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == names


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("report nowhere", "nowhere: no such folder"),
        ("report .", "no runs in it"),
        ("report planted --floor low", "--floor"),
        ("report planted --where 'colour = 1'", "colour"),
        ("report planted --out file/deep", "--out file/deep: cannot be written to"),
        ("report new --out file/deep", "--out file/deep: cannot be written to"),
    ],
)
def test_a_wrong_request_is_one_line_and_writes_nothing(tmp_path, monkeypatch, capfd, words, said):
    monkeypatch.chdir(tmp_path)
    sweep(Path("planted"), seeds=(0,))
    write_run(Path("new"), status="running")
    Path("file").touch()
    before = sorted(Path().rglob("*"))
    assert main(shlex.split(words)) == 2
    out, err = capfd.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert said in err
    assert sorted(Path().rglob("*")) == before


def test_report_does_not_import_jax(planted):
    folder, _ = planted
    code = f"import sys; from toydepth.cli import main; print(main(['report', {str(folder)!r}]), 'jax' in sys.modules)"
    ended = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert ended.stdout.splitlines()[-1:] == ["0 False"], ended.stderr
    assert json.loads((folder / "exponents.json").read_text())
