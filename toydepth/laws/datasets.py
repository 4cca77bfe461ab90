"""Public tables by name: from a folder of the user's, or downloaded once and checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..fields import ConfigError

FOLDER = "TOYDEPTH_DATA"
_GITHUB = "https://raw.githubusercontent.com"


@dataclass(frozen=True)
class Dataset:
    """One public table: what it is, where it lies in a data folder, and the files that can be had.

    `path` is what is opened, a file or a folder of curves; `files` are {path under `root`: SHA-256}, and each has the
    same path in the data folder, but for the first part of it, which is `folder`.
    """

    about: str
    folder: str
    path: str
    root: str
    files: Mapping[str, str] = field(default_factory=dict)


_CURVES = {
    "csv_100/constant_24000.csv": "034a75e2415373a9be1097e9d406f98524344f4718d200d3a188dcbd5115103b",
    "csv_100/constant_72000.csv": "52b5752009e1e4c396f15016e98897238fccb3816f58576ea944f03fe529dbc3",
    "csv_100/cosine_24000.csv": "dd544dc61a11fa138c98ac0b673d5512287062d2d2d2e9c2867976abc8c46e69",
    "csv_100/cosine_72000.csv": "2e637203b48b3e3a84063f49035cde2f6a40c69ecd15d95b6551774b9a279f44",
    "csv_100/wsd_20000_24000.csv": "e66df98c85dba705ebc85512c6a09a8ebec5675878a20d4d783c0bf80d031002",
    "csv_100/wsdcon_18.csv": "33cfea673dc0efde9e4fd74cc47d8daabdebfdc6d5a2659835bd780347f6e651",
    "csv_100/wsdcon_3.csv": "a1cbb8c730ae0628d69bb1d7aefadbad5cda5f6a92272f85203cd33d7b8f4912",
    "csv_100/wsdcon_9.csv": "510256497a0ea9d4270919fb37c56140e1b4d07e50b96b46334891ba316f144e",
    "csv_100/wsdld_20000_24000.csv": "0ef6b02e260ff5efa51a5885655ead8cf126a7e9c4ea3034d403e11852c06fe2",
    "csv_25/constant_24000.csv": "5a7c0b440751e258e7199eeefe9f0ae58520a2f2d64c5f81524d8d375f75f0ce",
    "csv_25/constant_72000.csv": "99ee51a9be7b7fb71511d0af28edd6bc6221350d2ad26a66c615467cb5c83247",
    "csv_25/cosine_24000.csv": "554e35f9efbe28a614c9ae1121b3bf55490df6b72a5898957f68a52770038e3a",
    "csv_25/cosine_72000.csv": "af3b25a485966a0f7fc34824774cf8ec85af14848a6dc7b64d6a8d3d044befa5",
    "csv_25/wsd_20000_24000.csv": "8649b7de4b4b31db5c35f4ff0458af9472a50168177de6372c3ceb37ace9fc62",
    "csv_25/wsdcon_18.csv": "9b9bd40f519d20ecbf540d4c9451f6a01b7b379b1d335407ba4651025cc5926f",
    "csv_25/wsdcon_3.csv": "3d37fcf82c237e5c1ba2ee34c4b9e606ecba781536d4fea9a7dde5463207fc3d",
    "csv_25/wsdcon_9.csv": "b7579f38b5e175d9e9dc9b9598b409efdf2cba0a68819857ba28649c242c2bd8",
    "csv_25/wsdld_20000_24000.csv": "8e3a9ae33ed586e5040a114fad215f4f245c6a2ff7d96f61cba02ccd8b74b3e7",
    "csv_400/constant_24000.csv": "5d91536675592acdc40ea56f71ca24ee9026243e51a0a791ac25b631381c45ee",
    "csv_400/constant_72000.csv": "a453ef82f549470cc8250723917668801436dd835fd17bbf71e1fd77d00a3b6c",
    "csv_400/cosine_24000.csv": "aa18c9dbad66610d2037249bbcbf08fdce0983aa486b876ba95c2e3fb6fc0dce",
    "csv_400/cosine_72000.csv": "347acbdc80042cb7cfe0dcb28580a2780718ccbad23443d4de76821f0a1ab41e",
    "csv_400/wsd_20000_24000.csv": "8a56dbd8f6b553b42ca8b3f4be9822cf5b7458a6c1b7ae0ddc6ac57b2893dea7",
    "csv_400/wsdcon_18.csv": "998aaf3fd14de43fe754c7250885d7f72e20e7a210b1ea205a8af37ea8b22951",
    "csv_400/wsdcon_3.csv": "e1a896755ea1e1a6a4648a503be6a19eb62fc7ef12fbab3440a66f7a94197ac6",
    "csv_400/wsdcon_9.csv": "497aa4a60df8f520e11e212a990dcf70e8bfd89e814f295dc5476af630aac768",
    "csv_400/wsdld_20000_24000.csv": "7c5d5141d917955491732606e8817e7fdbd4bc2036e508e1610ab8bd252267dc",
}

DATASETS: dict[str, Dataset] = {
    "chinchilla": Dataset(
        "245 models of Hoffmann et al. 2022, digitised by Epoch AI, with widths and depths looked up",
        "chinchilla",
        "get_fitting_data_chinchilla.csv",
        f"{_GITHUB}/liuyz0/DepthScaling/25cebe03ca63f5c4369fe76e706edab3737fa281/Scaling",
        {"get_fitting_data_chinchilla.csv": "cb474e8f5fc87be4132190a0c782d1521c4f06b9c041395b3a78ff2ffc34f83e"},
    ),
    "chinchilla-points": Dataset(
        "the same 245 points as read off the figure: parameters, operations, loss",
        "chinchilla",
        "svg_extracted_data.csv",
        f"{_GITHUB}/epoch-research/analyzing-chinchilla/main/data",
        {"svg_extracted_data.csv": "193478df4e90f040016431996c45682659306840ecdadf83cfb9cd5ca0aa1b30"},
    ),
    "gemstones": Dataset(
        "22 shapes, a true grid of widths and depths, at 10 to 100 billion tokens (McLeish et al. 2025)",
        "gemstones",
        "wandb_df_for_fitting_hot.jsonl",
        f"{_GITHUB}/mcleish7/gemstone-scaling-laws/1fb97a26b3a4ee647475ee3b46d67413b1844405/wandb_dfs",
        {"wandb_df_for_fitting_hot.jsonl": "655467b59c99383403d6f73f5b7f23c02aea3f12935dc110382d8a8b43a0ff5d"},
    ),
    "gpt3": Dataset(
        "learning curves of GPT-3's eight models, read off a figure by ColPret",
        "gpt3",
        "extracted.csv",
        f"{_GITHUB}/IBM/ColPret/2682824e620b854158ee12b872428622ab644b51/raw_data/gpt3",
        {"extracted.csv": "ea73b550de60d8b278523fa69385df0c2892546f8820aea12b4d1fe2d4f98962"},
    ),
    "multipowerlaw": Dataset(
        "learning curves of three sizes under nine schedules of the learning rate (Luo et al. 2025)",
        "multipowerlaw",
        ".",
        f"{_GITHUB}/thu-yao-01-luo/MultiPowerLaw/main/loss_curve_repo",
        _CURVES,
    ),
    "farseer": Dataset(
        "404 models on a grid of parameters and tokens (Li et al. 2025); no licence, so not downloaded",
        "farseer",
        "1222_full.csv",
        "github.com/Farseer-Scaling-Law/Farseer, ipynb/data",
    ),
    "pythia": Dataset(
        "losses of Pythia's checkpoints, as you measured them: columns model (70m, 410m, ...), step, loss",
        "pythia",
        "checkpoints.csv",
        "an evaluation of your own (published only as figures)",
    ),
}


def locate(name: str) -> Path:
    """Where a table lies, downloaded first if need be.

    In `TOYDEPTH_DATA` if it is there; otherwise in the user's cache, with its checksum verified.

    Raises:
        ConfigError: there is no such table, or it cannot be downloaded; the message says where to put it.
    """
    if name not in DATASETS:
        raise ConfigError(f"{name}: no such table; there are {', '.join(DATASETS)}")
    dataset = DATASETS[name]
    own = os.environ.get(FOLDER)
    if own:
        found = (Path(own) / dataset.folder / dataset.path).resolve()
        if found.exists():
            return found
    cache = cache_folder()
    found = (cache / dataset.folder / dataset.path).resolve()
    if not dataset.files:
        if found.exists():
            return found
        raise ConfigError(f"{name}: {_where_to_put(dataset, found)}")
    try:
        _download(dataset, cache / dataset.folder)
    except (ImportError, OSError, ValueError) as error:
        text = (str(error).splitlines() or [type(error).__name__])[0]
        reason = "no connection" if "ConnectionPool" in text else text[:120]
        raise ConfigError(f"{name}: not downloaded ({reason}); {_where_to_put(dataset, found)}") from error
    return found


def cache_folder() -> Path:
    """Where downloads are kept: `toydepth/` in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "toydepth"


def _where_to_put(dataset: Dataset, cached: Path) -> str:
    return (
        f"put it at {Path('$' + FOLDER) / dataset.folder / dataset.path} (with {FOLDER} set) or {cached}; "
        f"it comes from {dataset.root}"
    )


def _download(dataset: Dataset, folder: Path) -> None:
    """Fetches what is missing of a table's files; a file with another checksum raises ValueError."""
    import pooch  # only here: nothing else needs it

    pooch.get_logger().setLevel("WARNING")
    fetcher = pooch.create(folder, f"{dataset.root}/", registry=dict(dataset.files), retry_if_failed=1)
    for file in dataset.files:
        fetcher.fetch(file)
