"""Language models from a local folder, a GGUF file or the local cache of Hugging Face. Needs the extra `llm`.

Nothing is downloaded and no model's own code is run. What is wrong with a model is refused in one line: what
transformers passes over (weights that are not in the files start at random) would look like a measurement.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ..fields import ConfigError
from .extra import lacking

try:
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]
    from huggingface_hub import snapshot_download  # pyright: ignore[reportMissingImports]
    from huggingface_hub.errors import (  # pyright: ignore[reportMissingImports]
        HFValidationError,
        LocalEntryNotFoundError,
    )

    from .families import FAMILIES
except ModuleNotFoundError as missing:
    raise lacking(missing) from missing

GGUF = ".gguf"
CAUSAL = ("ForCausalLM", "LMHeadModel")  # how the classes of causal language models end
KNOWN = ", ".join(FAMILIES)


@dataclass(frozen=True)
class Loaded:
    """A model of Hugging Face in float32, and its tokenizer.

    Attributes:
        name: the last part of where it was found.
    """

    name: str
    model: Any
    tokenizer: Any


def load(place: str) -> Loaded:
    """Loads a causal language model.

    Args:
        place: a folder, a GGUF file, or a name in the local cache of Hugging Face such as EleutherAI/pythia-70m.

    Raises:
        ConfigError: there is no such model, it is of no known family, or its files are damaged or not complete.
    """
    folder, gguf, name = _find(place)
    where: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    where |= {} if gguf is None else {"gguf_file": gguf}
    file = folder if gguf is None else folder / gguf
    with _quiet():
        if gguf is None:
            _refuse_foreign(place, _description(folder / "config.json"))
        try:
            config = transformers.AutoConfig.from_pretrained(folder, **where)
        except Exception as error:  # whatever a damaged file makes readers raise
            _refuse(file, "the model's description cannot be read", error)
        _refuse_foreign(place, config.to_dict())
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **where)
        except Exception as error:
            _refuse(file, "the tokenizer cannot be read", error)
        whole = {} if gguf is None else {"quantization_config": transformers.GgufConfig(dequantize=True)}
        try:
            model, said = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="sdpa", output_loading_info=True, **where, **whole
            )
        except Exception as error:
            _refuse(file, "the weights cannot be read, a file is missing, damaged or cut short", error)
    if absent := sorted(map(str, [*said["missing_keys"], *said["mismatched_keys"]])):
        shown = ", ".join(absent[:3]) + (", ..." if len(absent) > 3 else "")
        raise ConfigError(f"{file}: {len(absent)} weights are not in the files, or have another shape ({shown})")
    return Loaded(name, model, tokenizer)


def _find(place: str) -> tuple[Path, str | None, str]:
    """The folder of a model, the GGUF file in it that is meant (None: it is not one), and what the model is called."""
    path = Path(place).expanduser()
    if path.is_dir():
        if (path / "config.json").is_file():
            return path, None, path.resolve().name
        files = sorted(path.glob(f"*{GGUF}"))
        if len(files) == 1:
            return path, files[0].name, files[0].stem
        raise ConfigError(f"{place}: no model's folder (there are no config.json and {len(files)} GGUF files in it)")
    if path.is_file():
        if path.suffix != GGUF:
            raise ConfigError(f"{place}: allowed is a model's folder, a file that ends in {GGUF}, or a name")
        return path.parent, path.name, path.stem
    try:
        return Path(snapshot_download(place, local_files_only=True)), None, place.rpartition("/")[2]
    except (HFValidationError, LocalEntryNotFoundError, OSError) as error:
        offline = f"nothing is downloaded; where there is a network, `hf download {place}` fetches it"
        named = not isinstance(error, HFValidationError) and path.suffix != GGUF
        cached = f", and no such name in the local cache of models ({offline})" if named else ""
        raise ConfigError(f"{place}: no such folder or file{cached}") from error


def _description(path: Path) -> dict[str, Any]:
    """The object in config.json; empty where it is damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = {}
    return found if isinstance(found, dict) else {}


def _refuse_foreign(place: str, config: dict[str, Any]) -> None:
    """Refuses what is no causal language model of a known family."""
    kind, classes = config.get("model_type"), config.get("architectures") or []
    if not kind:
        raise ConfigError(f"{place}: config.json is damaged or names no model_type; known are {KNOWN}")
    if config.get("is_encoder_decoder") or (classes and not any(str(name).endswith(CAUSAL) for name in classes)):
        shown = ", ".join(map(str, classes)) or kind
        raise ConfigError(f"{place}: {shown} is no causal language model; known are {KNOWN}")
    if kind not in FAMILIES:
        raise ConfigError(f"{place}: unknown architecture {kind}; known are {KNOWN}")


def _refuse(file: Path, what: str, error: Exception) -> NoReturn:
    missing = isinstance(error, ImportError) or "is required" in str(error)  # accelerate, gguf or sentencepiece
    lines = str(error).strip().splitlines() or [type(error).__name__]
    hint = "; pip install 'toydepth[llm]'" if missing else ""
    raise ConfigError(f"{file}: {what} ({lines[0].strip().rstrip('.')}){hint}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the bars, reports and warnings of loading off the terminal: what matters of them is refused here."""
    log = transformers.utils.logging
    level = log.get_verbosity()
    log.set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        log.set_verbosity(level)
