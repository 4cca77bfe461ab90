"""How fast a language model is looked into, beside a plain transformers loop, and what memory it takes.

    python -m benchmarks.probing MODEL TEXT ... [--tokens 10000,100000] [--context 512] [--parts plain,states,skip]

plain: the model's own call on batches of as many tokens, its hidden states (on their way behind the final norm) and its
loss; states: what toydepth sees; skip: with the layer-skipped cross-entropy on 5,000 tokens; measures: all of it with
the measures, their nulls and clusters. Each is a process of its own, so that its memory is its own; bars: the peak of
the last two sizes within 10 % of each other and under 4 GiB.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toydepth.geometry.models import SKIP_TOKENS, LanguageModel, language_model

GIB = 2**20  # of kilobytes


def plain(subject: LanguageModel) -> Iterator[int]:
    """The loop that one would write: how many tokens each batch has."""
    import torch

    model, pieces = subject.decoder.model, subject.text.pieces
    at_once = max(1, subject.batch_tokens // max(map(len, pieces)))
    for begin in range(0, len(pieces), at_once):
        batch = [torch.from_numpy(piece).long() for piece in pieces[begin : begin + at_once]]
        ids = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)
        there = torch.nn.utils.rnn.pad_sequence([torch.ones_like(piece) for piece in batch], batch_first=True)
        with torch.inference_mode():
            labels = ids.masked_fill(there == 0, -100)
            found = model(ids, attention_mask=there, labels=labels, output_hidden_states=True, use_cache=False)
            states = np.stack([h[there.bool()].numpy() for h in found.hidden_states])
        yield states.shape[1]


def seen(subject: LanguageModel) -> Iterator[int]:
    return map(len, subject.batches())


def measured(subject: LanguageModel) -> Iterator[int]:
    from toydepth.geometry.probe import look

    look(subject, changes=False)
    yield len(subject.text)


PARTS: dict[str, tuple[Callable[[LanguageModel], Iterator[int]], int]] = {  # and tokens of the skip measure
    "plain": (plain, 0),
    "states": (seen, 0),
    "skip": (seen, SKIP_TOKENS),
    "measures": (measured, SKIP_TOKENS),
}


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.probing", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("text", metavar="TEXT", nargs="+", type=Path)
    parser.add_argument("--tokens", default="10000", metavar="N,...")
    parser.add_argument("--context", type=int)
    parser.add_argument("--parts", default=",".join(PARTS), metavar="NAME,...")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.alone:
        print(json.dumps(_alone(given)))
        return
    for part in given.parts.split(","):
        for tokens in given.tokens.split(","):
            own = ["--tokens", tokens, "--parts", part, "--alone"]
            context = [] if given.context is None else ["--context", str(given.context)]
            line = [sys.executable, "-m", "benchmarks.probing", given.model, *map(str, given.text), *context, *own]
            said = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True).stdout
            print_line(json.loads(said.splitlines()[-1]))


def print_line(found: dict[str, Any]) -> None:
    rate = found["tokens"] / found["seconds"]
    print(
        f"{found['part']:9} {found['tokens']:>9,} tokens  {rate:8.0f} tokens/s  peak {found['peak_gib']:.2f} GiB "
        f"(model and text alone {found['loaded_gib']:.2f})",
        flush=True,
    )


def _alone(given: argparse.Namespace) -> dict[str, Any]:
    """One part, in this process."""
    act, skipped = PARTS[given.parts]
    subject = language_model(
        given.model,
        given.text,
        context=given.context,
        tokens=int(given.tokens),
        skip_tokens=skipped,
        progress=sys.stderr.isatty(),
    )
    loaded, begun = _peak(), time.perf_counter()
    tokens = sum(act(subject))
    seconds = time.perf_counter() - begun
    return {
        "part": given.parts,
        "tokens": tokens,
        "seconds": seconds,
        "loaded_gib": loaded,
        "peak_gib": _peak(),
    }


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / GIB


if __name__ == "__main__":
    main(sys.argv[1:])
