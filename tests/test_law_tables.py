"""Tables of trained models: how files are read, what is filtered, what tau is, and where public tables lie."""

import hashlib
import sys
import types

import numpy as np
import polars as pl
import pytest
from law_tables import DATA, SHAPED, needs_data, planted

from toydepth.fields import ConfigError
from toydepth.laws import datasets, readers
from toydepth.laws.law import named
from toydepth.laws.tables import Table, choose_law, ready
from toydepth.laws.tau import Schedule, constant_rate, equal_tau, integral, parse_schedule, with_tau

# --- files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_all_kinds_of_files_give_the_same_table(tmp_path, kind):
    frame, path = planted(), tmp_path / f"models.{kind}"
    {"csv": frame.write_csv, "jsonl": frame.write_ndjson, "parquet": frame.write_parquet}[kind](path)
    assert readers.read(path).frame.equals(frame)


def test_columns_of_other_names_are_told_and_stay(tmp_path):
    planted().rename({"width": "d_model", "loss": "nll"}).write_csv(tmp_path / "own.csv")
    table = readers.read(tmp_path / "own.csv", {"width": "d_model", "loss": "nll"})
    assert choose_law(table) == SHAPED
    assert table.where("d_model >= 512 and nll < 3").frame.equals(table.where("width >= 512 and loss < 3").frame)


def test_the_law_is_the_first_that_the_columns_allow():
    frame = planted().with_columns(parameters=pl.col("width") ** 2, tau=pl.col("tokens"))
    assert choose_law(Table(frame, "all")) == SHAPED
    assert choose_law(Table(frame.drop("depth"), "sizes")) == named("parameters-tokens")
    assert choose_law(Table(frame.drop("tokens"), "tau")) == named("width-depth-tau")
    with pytest.raises(ConfigError, match="--columns"):
        choose_law(Table(frame.drop("depth", "parameters", "tau"), "width only"))


def test_rows_without_numbers_and_copies_are_left_out_and_said():
    frame = planted()
    lacking = frame.with_columns(loss=pl.when(pl.int_range(pl.len()) < 3).then(None).otherwise("loss"))
    table = ready(Table(pl.concat([lacking, lacking.tail(5)]), "odd"), SHAPED)
    assert len(table) == frame.height - 3
    assert [note.code for note in table.notes] == ["incomplete_rows", "duplicate_rows"]
    assert table.notes[0].text.startswith("3 of 105 rows")


# --- filters ----------------------------------------------------------------------------------------------------


def test_the_highest_losses_are_dropped_with_their_ties():
    table = Table(pl.DataFrame({"loss": [5.0, 4.0, 4.0, 3.0, 2.0]}), "five")
    assert table.drop_highest(0).loss.tolist() == [5, 4, 4, 3, 2]
    assert table.drop_highest(1).loss.tolist() == [4, 4, 3, 2]
    assert table.drop_highest(2).loss.tolist() == table.drop_highest(3).loss.tolist() == [3, 2]


def test_ranges_and_groups():
    table = Table(
        planted().with_columns(kind=pl.when(pl.col("depth") > 8).then(pl.lit("deep")).otherwise(pl.lit("flat"))), "t"
    )
    assert sorted(table.within("width", (512, 1024)).frame["width"].unique()) == [512, 1024]
    assert set(table.only("kind", ["deep"]).frame["depth"]) == {16, 32, 64}
    for wrong in (lambda: table.within("kind", (1, 2)), lambda: table.only("kind", ["slim"]), lambda: table.where("1")):
        with pytest.raises(ConfigError):
            wrong()


def test_a_condition_runs_no_code():
    with pytest.raises(ConfigError):
        Table(planted(), "t").where("__import__('os').system('true')")


def test_a_sample_is_drawn_by_its_seed_and_said():
    table = Table(planted(), "t")
    one, again, other = table.sample(10, 0), table.sample(10, 0), table.sample(10, 1)
    assert one.frame.equals(again.frame) and not one.frame.equals(other.frame)
    assert [note.code for note in one.notes] == ["sampled"]
    assert table.sample(1000, 0) is table


# --- known kinds of files ---------------------------------------------------------------------------------------


def test_chinchillas_columns_are_known(tmp_path):
    names = {"width": "d_model", "depth": "n_layers", "tokens": "num_tokens"}
    planted().rename(names).with_columns(model_size=1e9, FLOP=1e20).write_csv(tmp_path / "c.csv")
    table = readers.read(tmp_path / "c.csv")
    assert table.has(SHAPED) and table.counting == "with embeddings"


def test_farseers_traps_are_avoided(tmp_path):
    columns = {"N": [1e8, 2e8], "D": [1e9, 4e9], "D/N": [3.5, 3.5], "L": [0.9, 0.8], "smooth loss": [3.0, 2.5]}
    pl.DataFrame(columns).write_csv(tmp_path / "f.csv")
    table = readers.read(tmp_path / "f.csv")
    assert table.frame["loss"].to_list() == [3.0, 2.5]  # nats, not bits per character
    assert (table.frame["tokens"] / table.frame["parameters"]).to_list() == [10, 20]
    assert table.counting == "without embeddings"
    assert "bits per character" in table.notes[0].text


def test_gpt3s_curves_become_means_in_bins_of_tokens(tmp_path):
    tokens = np.geomspace(10, 290, 2000)
    frame = pl.concat(
        pl.DataFrame({"model": name, "step": tokens, "train_loss": None, "val_loss": 3 / tokens**0.1 + x})
        for name, x in (("small", 2.0), ("xl", 1.5))
    )
    frame.write_csv(tmp_path / "g.csv")
    table = readers.read(tmp_path / "g.csv")
    assert len(table) == 2 * readers.GPT3_BINS
    assert set(zip(table.frame["width"], table.frame["depth"], strict=True)) == {(768, 12), (2048, 24)}
    row = table.frame.filter(pl.col("model") == "xl").row(0, named=True)
    assert row["tokens"] >= readers.GPT3_FROM
    assert row["loss"] == pytest.approx(3 / (row["tokens"] / 1e9) ** 0.1 + 1.5, rel=1e-3)


def test_pythias_checkpoints_get_tokens_and_tau(tmp_path):
    steps = [1430, 71500, 143000]
    pl.DataFrame({"model": ["pythia-70m"] * 3, "step": steps, "loss": [4.0, 3.5, 3.4]}).write_csv(tmp_path / "p.csv")
    table = readers.read(tmp_path / "p.csv")
    assert table.frame["width"].unique().to_list() == [512]
    assert table.frame["tokens"].to_list() == [step * 2_097_152 for step in steps]
    # Linear warmup over 1 %, then a cosine to a tenth: half a peak on average, then 0.55 of it.
    assert table.frame["tau"].to_list()[::2] == pytest.approx([0.715, 0.715 + 141570 * 0.55 * 1e-3], rel=1e-3)


def test_a_table_of_other_models_with_pythias_columns_is_read_as_it_is(tmp_path):
    frame = pl.DataFrame({"model": ["own"], "step": [1], "loss": [2.0], "width": [8]})
    frame.write_csv(tmp_path / "o.csv")
    assert readers.read(tmp_path / "o.csv").frame.equals(frame)


# --- tau --------------------------------------------------------------------------------------------------------


def test_tau_is_the_sum_of_rates():
    schedule = Schedule("cosine", 1000, warmup=0.1, floor=0.1)
    step = np.arange(1000)
    rate = np.where(step < 100, (step + 1) / 100, 0.1 + 0.45 * (1 + np.cos(np.pi * (step - 100) / 900)))
    taus = schedule.tau(np.array([0, 50, 1000]), np.full(3, 2.0))
    assert taus == pytest.approx([0, 2 * rate[:50].sum(), 2 * rate.sum()])
    assert parse_schedule("cosine:total=1000,warmup=0.1,floor=0.1") == schedule


def test_tau_of_a_logged_curve():
    assert integral(np.array([10.0, 20, 40]), np.array([1.0, 1, 0.5]), warmup=4) == pytest.approx([8, 18, 33])
    frame = pl.DataFrame({"model": ["a", "b", "a"], "step": [10, 10, 5], "lr": [1.0, 2, 1], "loss": [1.0, 1, 2]})
    table = with_tau(Table(frame, "curves"), None)
    assert dict(zip(table.frame["model"] + table.frame["step"].cast(str), table.frame["tau"], strict=True)) == {
        "a5": 5,
        "a10": 10,
        "b10": 20,
    }


def curves(tmp_path, drop):
    """Two sizes, a constant and a decayed run each; the decayed one ends lower by so many nats at equal tau."""
    step = np.arange(3000, 20_000, 100)
    for size, floor in (("25", 3.0), ("100", 2.5)):
        for name, rate in (("constant_20", np.ones(len(step))), ("cosine_20", np.linspace(1, 0.1, len(step)))):
            lr = 3e-4 * rate
            tau = integral(step, lr, readers.MULTIPOWERLAW_WARMUP)
            loss = floor + 0.6 / tau**0.45 - drop * (name == "cosine_20") * (1 - rate)
            (tmp_path / f"csv_{size}").mkdir(exist_ok=True)
            pl.DataFrame({"step": step, "lr": lr, "loss": loss}).write_csv(tmp_path / f"csv_{size}" / f"{name}.csv")
    return readers.read(tmp_path)


@pytest.mark.parametrize("drop", [0.0, 0.1])
def test_losses_at_equal_tau_differ_by_what_the_schedule_does(tmp_path, drop):
    table = curves(tmp_path, drop)
    assert choose_law(table) == named("parameters-tau")
    ends = equal_tau(table)
    assert [(end.model, end.schedule) for end in ends] == [("100M", "cosine_20"), ("25M", "cosine_20")]
    assert [end.difference for end in ends] == pytest.approx([-0.9 * drop] * 2, abs=1e-3)
    assert [rate.free.values["a_tau"] for rate in constant_rate(table)] == pytest.approx([0.45] * 2, rel=1e-3)


@needs_data
def test_tau_alone_does_not_fix_the_loss_of_multipowerlaws_curves():
    table = readers.read(DATA / "multipowerlaw")
    ends = {(end.model, end.schedule): end.difference for end in equal_tau(table)}
    assert [ends[size, "cosine_72000"] for size in ("25M", "100M", "400M")] == pytest.approx(
        [-0.094, -0.120, -0.144], abs=2e-3
    )
    assert all(0.43 < rate.free.values["a_tau"] < 0.50 for rate in constant_rate(table))
    assert all(rate.third.mse_log > 9 * rate.free.mse_log for rate in constant_rate(table))


# --- public tables by name --------------------------------------------------------------------------------------


def test_a_table_is_taken_from_the_users_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("TOYDEPTH_DATA", str(tmp_path))
    path = tmp_path / "gemstones" / "wandb_df_for_fitting_hot.jsonl"
    path.parent.mkdir()
    path.write_text("{}")
    assert datasets.locate("gemstones") == path


@pytest.fixture
def fetched(monkeypatch, tmp_path):
    """Stands in for pooch: what was asked of it, and a failure to raise."""
    monkeypatch.delenv("TOYDEPTH_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = types.SimpleNamespace(files={}, failure=None)

    def create(folder, base, registry, **options):
        def fetch(name):
            if asked.failure:
                raise asked.failure
            asked.files[base + name] = registry[name]

        return types.SimpleNamespace(fetch=fetch)

    logger = types.SimpleNamespace(setLevel=lambda level: None)
    pooch = types.SimpleNamespace(create=create, get_logger=lambda: logger)
    monkeypatch.setitem(sys.modules, "pooch", pooch)
    return asked


def test_a_download_is_pinned_to_its_checksum(fetched, tmp_path):
    path = datasets.locate("chinchilla")
    assert path == tmp_path / "toydepth" / "chinchilla" / "get_fitting_data_chinchilla.csv"
    [(address, checksum)] = fetched.files.items()
    assert address.startswith("https://") and address.endswith("/Scaling/get_fitting_data_chinchilla.csv")
    assert len(checksum) == 64
    datasets.locate("multipowerlaw")
    assert len(fetched.files) == 1 + 27


@pytest.mark.parametrize(
    "failure", [OSError("no network"), ValueError("SHA256 hash of downloaded file does not match")]
)
def test_without_a_network_it_says_where_to_put_the_file(fetched, failure):
    fetched.failure = failure
    with pytest.raises(ConfigError, match=r"put it at \$TOYDEPTH_DATA/gpt3/extracted\.csv") as refused:
        datasets.locate("gpt3")
    assert len(str(refused.value).splitlines()) == 1


@needs_data
@pytest.mark.parametrize("name", ["chinchilla", "chinchilla-points", "gemstones", "gpt3", "multipowerlaw"])
def test_the_checksums_are_those_of_the_public_tables(name):
    dataset = datasets.DATASETS[name]
    for file, checksum in dataset.files.items():
        assert hashlib.sha256((DATA / dataset.folder / file).read_bytes()).hexdigest() == checksum
