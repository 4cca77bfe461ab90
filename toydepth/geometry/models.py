"""Language models as subjects: their states on texts, their losses when read out early or with layers in other orders.

    from toydepth.geometry.models import language_model

    subject = language_model("EleutherAI/pythia-70m", ["moby_dick.txt"])
    for seen in subject.batches():
        seen.states                 # [layers + 1, tokens, width]

Needs the extra `llm`. Layer-skipped cross-entropy and the choice of states follow Liu et al. 2026 (arXiv 2602.05970),
app. A, but for two traps: blocks that are called by hand get an explicit causal mask (see `families.py`), and h_L is
taken before the final norm, with the normed one beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from tqdm import tqdm

from ..fields import ConfigError
from .extra import lacking
from .seen import Orders, Seen, Subject
from .texts import Split, Text
from .texts import check as check_text

try:
    import torch  # pyright: ignore[reportMissingImports]

    from . import loading
    from .families import Decoder, Surroundings
except ModuleNotFoundError as missing:
    raise lacking(missing) from missing

Tensor = Any
CONTEXT = 512
SKIP_TOKENS, SAMPLE_TOKENS = 5_000, 2_000
STATES_BYTES, MOST_TOKENS = 2**27, 4096  # of a batch: its states; and what blocks hold on their way
CHECKED_TOKENS = 64


def language_model(
    place: str,
    files: Sequence[str | Path],
    *,
    context: int | None = None,
    tokens: int | None = None,
    split: Split = "file",
    skip_tokens: int = SKIP_TOKENS,
    sample_tokens: int = SAMPLE_TOKENS,
    progress: bool = True,
) -> LanguageModel:
    """A language model that is looked at on texts.

    Args:
        place: a folder, a GGUF file, or a name in the local cache of Hugging Face.
        files: plain texts in UTF-8.
        context: the most tokens that the model sees at once; default: 512, or what the model has positions for.
        tokens: how many tokens to look at in all; None: every one.
        split: what a document is, see `toydepth.geometry.texts.Text`.
        skip_tokens: on about how many the layer-skipped cross-entropy is measured; it costs L-1 heads for each.
        sample_tokens: on about how many the losses of other orders of layers are measured.
        progress: whether to show a bar.

    Raises:
        ConfigError: no such model or text, or one that cannot be looked at.
    """
    for option, value in (("--skip-tokens", skip_tokens), ("--sample-tokens", sample_tokens)):
        if value < 0:
            raise ConfigError(f"{option} {value}: allowed is a number from 0 up")
    check_text(files, context, tokens, split)
    loaded = loading.load(place)
    decoder = Decoder(loaded.model)
    limit = decoder.limit or sys.maxsize
    if context is not None and context > limit:
        raise ConfigError(f"--context {context}: allowed is at most {limit}, what the model has positions for")
    text = Text(files, loaded.tokenizer, context or min(CONTEXT, limit), tokens, split)
    decoder.check(torch.from_numpy(text.pieces[0][:CHECKED_TOKENS]).long()[None])
    return LanguageModel(loaded.name, decoder, text, skip_tokens, sample_tokens, progress)


class LanguageModel(Subject):
    """A causal language model on its way through a text.

    Args:
        name: what it is called.
        decoder: the model, taken apart.
        text: what it reads.
        skip_tokens: on about how many tokens, spread over the text, states are sent straight through the last block.
        sample_tokens: on about how many tokens, spread over the text, `losses` are measured.
        progress: whether to show a bar.
        batch_tokens: tokens in a batch, but at least one piece; None: what keeps states and blocks within bounds.

    Attributes:
        depth: its number of blocks L.
        width: the dimension of a state.
    """

    kind = "model"

    def __init__(
        self,
        name: str,
        decoder: Decoder,
        text: Text,
        skip_tokens: int = SKIP_TOKENS,
        sample_tokens: int = SAMPLE_TOKENS,
        progress: bool = False,
        batch_tokens: int | None = None,
    ):
        self.name, self.decoder, self.text = name, decoder, text
        self.depth, self.width = decoder.depth, decoder.width
        self._skipped, self._sample, self._progress = text.spread(skip_tokens), text.spread(sample_tokens), progress
        fitting = STATES_BYTES // (4 * (self.depth + 1) * self.width)
        self.batch_tokens = batch_tokens or min(MOST_TOKENS, fitting)

    def batches(self) -> Iterator[Seen]:
        """Its states on the text, batch by batch; see `Seen`."""
        pieces = self.text.pieces
        with tqdm(total=len(self.text), desc=self.name, unit="token", disable=not self._progress) as bar:
            for group in self._groups(np.ones(len(pieces), bool)):
                seen = self._seen([pieces[i] for i in group], self._skipped[group])
                yield seen
                bar.update(len(seen))

    @torch.inference_mode()
    def losses(self, orders: Orders) -> dict[str, float]:
        """Its mean loss on a sample of the text with layers in other orders, see `Subject`.

        Orders that begin as the model does begin at its own state there, which saves about half of the blocks.
        """
        sums, count, pieces = dict.fromkeys(orders, 0.0), 0, self.text.pieces
        groups = self._groups(self._sample)
        with tqdm(total=len(groups) * len(orders), desc="orders", disable=not self._progress) as bar:
            for group in groups:
                ids, targets, lengths = _padded([pieces[i] for i in group], self._device)
                around, own = self.decoder.surroundings(lengths), [self.decoder.enter(self.decoder.embed(ids))]
                for layer in range(self.depth):
                    own.append(self.decoder.block(layer, own[-1], around))
                for name, order in orders.items():
                    h = self._reordered(own, order, around)
                    sums[name] += float(self.decoder.losses(h, targets).double().nansum())
                    bar.update()
                count += int((targets >= 0).sum())
        return {name: total / count for name, total in sums.items()} if count else dict.fromkeys(orders, float("nan"))

    @torch.inference_mode()
    def _seen(self, pieces: Sequence[np.ndarray], skipped: Bool[np.ndarray, " texts"]) -> Seen:
        """One batch; `skipped` says of which pieces states are sent straight through the last block."""
        decoder, (ids, targets, lengths) = self.decoder, _padded(pieces, self._device)
        around, h = decoder.surroundings(lengths), decoder.enter(decoder.embed(ids))
        there = torch.arange(ids.shape[1]) < torch.tensor(lengths)[:, None]
        rows = torch.from_numpy(skipped)
        states = np.empty((self.depth + 1, sum(lengths), self.width), np.float32)
        early = torch.full((self.depth, *ids.shape), torch.nan)
        states[0] = _numbers(h[there])
        for layer in range(self.depth):
            if layer < self.depth - 1 and skipped.any():
                early[layer, rows] = self._skip(h[rows], targets[rows], around.of(rows)).cpu()
            h = decoder.block(layer, h, around)
            states[layer + 1] = _numbers(h[there])
        loss, normed = decoder.losses(h, targets).cpu(), decoder.normed(h[there])
        early[-1, rows] = loss[rows]
        first = torch.zeros(ids.shape, dtype=torch.bool)
        first[:, 0] = True
        return Seen(
            states,
            None if normed is None else _numbers(normed),
            first[there].numpy(),
            _numbers(loss[there]),
            _numbers(early[:, there]),
            self.text.words(np.concatenate(pieces)),
        )

    def _skip(self, h: Tensor, targets: Tensor, around: Surroundings) -> Float[Tensor, "texts length"]:
        """The loss of a state that is sent straight through the last block, the final norm and the head."""
        return self.decoder.losses(self.decoder.block(self.depth - 1, h, around), targets)

    def _reordered(self, own: Sequence[Tensor], order: Sequence[int] | None, around: Surroundings) -> Tensor:
        """The last state when layers are applied in another order; `own` are h_0 ... h_L in the model's own."""
        if order is None:
            return own[0] + sum(self.decoder.block(layer, own[0], around) - own[0] for layer in range(self.depth))
        same = next((i for i, layer in enumerate(order) if layer != i), len(order))
        h = own[same]
        for layer in order[same:]:
            h = self.decoder.block(layer, h, around)
        return h

    def _groups(self, chosen: Bool[np.ndarray, " pieces"]) -> list[list[int]]:
        """The chosen pieces in batches: neighbours, as many as fit when they are padded to the longest."""
        sizes, groups, longest = np.diff(self.text.starts), [], 0
        for piece in np.flatnonzero(chosen):
            longest = max(longest, int(sizes[piece]))
            if not groups or longest * (len(groups[-1]) + 1) > self.batch_tokens:
                groups.append([])
                longest = int(sizes[piece])
            groups[-1].append(int(piece))
        return groups

    @property
    def _device(self) -> Any:
        return self.decoder.embeddings.device


def _padded(pieces: Sequence[np.ndarray], device: Any) -> tuple[Tensor, Tensor, list[int]]:
    """Tokens [texts, length] padded on the right, the next token of each (-1: there is none), and the lengths."""
    lengths = [len(piece) for piece in pieces]
    ids = np.zeros((len(pieces), max(lengths)), np.int64)
    targets = np.full_like(ids, -1)
    for row, piece in enumerate(pieces):
        ids[row, : len(piece)] = piece
        targets[row, : len(piece) - 1] = piece[1:]
    return torch.from_numpy(ids).to(device), torch.from_numpy(targets).to(device), lengths


def _numbers(values: Tensor) -> np.ndarray:
    return values.float().cpu().numpy()
