"""The triad's page: each number from its sweep's folder, beside the papers' values; what is missing is named."""

from dataclasses import replace
from pathlib import Path

import pytest
from run_folders import write_run

from toydepth import triad


@pytest.fixture
def sweeps(tmp_path, monkeypatch):
    """Planted folders in the place of the three sweeps, all of depth."""
    rows = [
        replace(expected, sweep=f"planted_{expected.law}", is_it=triad._teacher("tied")) for expected in triad.TRIAD
    ]
    monkeypatch.setattr(triad, "TRIAD", tuple(rows))
    for name in {row.sweep for row in rows}:
        for depth in (2, 4, 8):
            for seed in (0, 1):
                write_run(tmp_path / name, "tied", depth, seed)
    return tmp_path


def test_the_page_has_a_row_for_each_number_and_the_papers_values(sweeps, capsys):
    assert triad.main([str(sweeps)]) == 0
    page = Path(capsys.readouterr().out.strip())
    assert page == sweeps / "triad" / "triad.html"
    text = page.read_text()
    for expected in triad.TRIAD:
        assert expected.toy in text
        assert expected.models in text
        assert f"../{expected.sweep}/report.html" in text
    assert text.count("<figure>") == 3
    assert "Exponents" in text


def test_a_missing_sweep_is_named_with_the_command_that_makes_it(tmp_path, capsys):
    assert triad.main([str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "time_quick: no such folder; toydepth run +sweeps=time_quick makes it" in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "triad").exists()


def test_a_regime_that_a_sweep_does_not_have_is_a_dash(sweeps, monkeypatch):
    rows = tuple(replace(row, is_it=triad._strong) for row in triad.TRIAD)
    monkeypatch.setattr(triad, "TRIAD", rows)
    text = triad.write(sweeps, sweeps / "out").read_text()
    assert text.count("not in the sweep&#39;s folder") == len(rows)
