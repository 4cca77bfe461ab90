"""`toydepth probe`: looks into run folders, sweeps and language models. Imports neither JAX nor PyTorch by itself."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..fields import ConfigError
from ..fit_options import Parser

if TYPE_CHECKING:
    from .results import Results
    from .seen import Subject

DONE = 0
ABOUT = "How states move from layer to layer: of a run's teacher and student, of a sweep's, or of a language model."
OF_MODELS = ("text", "context", "split", "skip_tokens", "sample_tokens", "trace", "subject", "answer", "noise")


def main(words: Sequence[str]) -> int:
    """Runs `toydepth probe` with these words and returns its exit code.

    Raises:
        ConfigError: the request was wrong.
    """
    parser = Parser("toydepth probe", description=ABOUT)
    _add_arguments(parser)
    try:
        given = parser.parse_args(list(words))
    except SystemExit:  # only --help exits: errors are raised
        return DONE
    _check(given)
    line = shlex.join(["toydepth", "probe", *words])
    if given.model is None:
        name = given.name or given.folder.resolve().name
        results = _of_folder(given.folder, given)
    else:
        name = given.name or Path(given.model).name
        results = _of_model(given)
    _write(results, given.out or Path("outputs") / "probe" / name, name, line, given)
    return DONE


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", nargs="?", type=Path, metavar="FOLDER", help="a run's folder, or a sweep's: outputs/<sweep.name>")
    add("--model", metavar="PATH_OR_NAME", help="a language model instead: a folder, a GGUF file or a cached name")
    add("--text", nargs="+", metavar="FILE", help="plain texts that the model reads")
    add("--tokens", type=int, metavar="N", help="look at no more than N tokens (of toys: inputs)")
    add("--context", type=int, metavar="N", help="tokens that the model sees at once (default: at most 512)")
    add("--split", metavar="HOW", help="what a document is: a whole file, or what stands between form feeds or blanks")
    add("--skip-tokens", type=int, metavar="N", help="tokens for the layer-skipped cross-entropy (default 5000)")
    add("--sample-tokens", type=int, metavar="N", help="tokens for the losses with layers changed (default 2000)")
    add("--trace", metavar="PROMPT", help="causal tracing of this prompt; with --subject and --answer")
    add("--subject", metavar="WORDS", help="the part of the prompt that is corrupted")
    add("--answer", metavar="WORD", help="what should follow the prompt")
    add(
        "--noise",
        type=float,
        metavar="X",
        help="of the corruption, times the embedding's standard deviation (default 3)",
    )
    add("--no-changes", action="store_true", help="leave out the losses with layers dropped, swapped, shuffled, ...")
    add("--seed", type=int, default=0, help="of nulls, samples and random orders (default 0)")
    add("--name", help="of the page and its folder; default: that of the folder or the model")
    add("--out", type=Path, metavar="DIR", help="where to write; default: outputs/probe/NAME")
    add("--no-page", action="store_true", help="write numbers only, no pictures and no probe.html")


def _check(given: argparse.Namespace) -> None:
    """Refuses what cannot be meant, before anything is loaded."""
    if given.folder is None and given.model is None:
        raise ConfigError("probe: nothing to look at; allowed is a FOLDER, or --model PATH_OR_NAME")
    if given.folder is not None and given.model is not None:
        raise ConfigError(f"probe: both {given.folder} and --model {given.model}; allowed is one of them")
    if given.model is None:
        for name in OF_MODELS:
            if getattr(given, name) is not None:
                raise ConfigError(f"--{name.replace('_', '-')}: allowed is only with --model")
    traced = [name for name in ("trace", "subject", "answer") if getattr(given, name) is not None]
    if traced and len(traced) < 3:
        missing = " and ".join(f"--{name}" for name in ("trace", "subject", "answer") if name not in traced)
        raise ConfigError(f"--{traced[0]}: allowed is only together with {missing}")
    if given.noise is not None and not traced:
        raise ConfigError(f"--noise {given.noise:g}: allowed is only with --trace")
    if given.tokens is not None and given.tokens < 2:
        raise ConfigError(f"--tokens {given.tokens}: allowed is a number from 2 up")
    if given.seed < 0:
        raise ConfigError(f"--seed {given.seed}: allowed is a number from 0 up")
    if given.name is not None and (given.name in ("", ".", "..") or set(given.name) & set("/\\\0")):
        raise ConfigError(f"--name {given.name}: allowed is a name without slashes")


def _of_folder(folder: Path, given: argparse.Namespace) -> Results:
    """What a run's folder or a sweep's comes to."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder")
    is_run = (folder / "config.json").is_file()
    if not is_run and not (folder / "runs").is_dir():
        raise ConfigError(f"{folder}: neither a run's folder (config.json) nor a sweep's (runs/)")
    from .. import store
    from .across import across_depths
    from .results import Results
    from .toys import INPUTS, of_run, of_sweep, skipped

    limit = given.tokens or INPUTS
    if is_run:
        return Results([_look(toy, given) for toy in of_run(folder, limit)])
    from tqdm import tqdm

    seen = [_look(toy, given) for toy in tqdm(of_sweep(folder, limit), desc="subjects", unit="", disable=None)]
    return Results(seen, across_depths(seen, store.collect(folder)), skipped=skipped(folder))


def _of_model(given: argparse.Namespace) -> Results:
    """What a language model comes to."""
    from .results import Results

    if given.text is None and given.trace is None:
        raise ConfigError("--model: what it reads is missing; allowed is --text FILE ..., or --trace PROMPT")
    model = None if given.text is None else _model(given)
    traced = None if given.trace is None else _traced(given, model)
    return Results([] if model is None else [_look(model, given)], traced=traced)


def _model(given: argparse.Namespace) -> Any:
    from .models import language_model

    names = ("context", "tokens", "split", "skip_tokens", "sample_tokens")
    options = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    return language_model(given.model, given.text, **options)


def _traced(given: argparse.Namespace, model: Any) -> Any:
    from .tracing import NOISE, trace

    if model is None:
        from .families import Decoder
        from .loading import load

        loaded = load(given.model)
        decoder, tokenizer = Decoder(loaded.model), loaded.tokenizer
    else:
        decoder, tokenizer = model.decoder, model.text.tokenizer
    noise = NOISE if given.noise is None else given.noise
    return trace(decoder, tokenizer, given.trace, given.subject, given.answer, noise, given.seed)


def _look(subject: Subject, given: argparse.Namespace) -> Any:
    from .probe import look

    return look(subject, given.seed, changes=not given.no_changes)


def _write(results: Results, out: Path, name: str, line: str, given: argparse.Namespace) -> None:
    from . import page
    from .results import write
    from .words import print_results

    write(results, out, line, given.seed)
    pages = [] if given.no_page else page.write(results, out, name, line, given.seed)
    print_results(results, pages[0] if pages else out)
