"""Causal tracing: where in a language model a fact about a subject passes through. Needs the extra `llm`.

The subject's embeddings are corrupted, then one block's output at one token is restored to what it was without the
corruption, and the probability of the answer is read. Meng et al. 2022 (arXiv 2202.05262), sec. 2; as in Liu et al.
2026 (arXiv 2602.05970), fig. 6: one Gaussian draw, three times as wide as the embedding's weights, and one block's
output restored at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from ..fields import ConfigError
from .extra import lacking

try:
    import torch  # pyright: ignore[reportMissingImports]

    from .families import Decoder, Surroundings
except ModuleNotFoundError as missing:
    raise lacking(missing) from missing

NOISE = 3.0
MOST_TOKENS = 4096  # in a batch of copies of the prompt


@dataclass(frozen=True)
class Traced:
    """The probability of an answer after a prompt.

    Attributes:
        tokens: of the prompt, as text.
        subject: which of them are the subject's: from the first to before the second.
        answer: the token whose probability it is, as text: the first one of the answer.
        p_clean: undisturbed.
        p_corrupt: with the subject's embeddings corrupted.
        restored: the same with the output of one block at one token as it was undisturbed.
    """

    tokens: list[str]
    subject: tuple[int, int]
    answer: str
    p_clean: float
    p_corrupt: float
    restored: Float[np.ndarray, "layers tokens"]


def trace(
    decoder: Decoder, tokenizer: Any, prompt: str, subject: str, answer: str, noise: float = NOISE, seed: int = 0
) -> Traced:
    """Traces an answer back to the layers and tokens that it passes through.

    Args:
        decoder: the model.
        tokenizer: the model's own, of Hugging Face.
        prompt: what comes before the answer: "The space needle is in downtown".
        subject: a part of the prompt, its last occurrence: "space needle".
        answer: what should follow: "Seattle". Of several tokens the first one's probability is read.
        noise: the standard deviation of what is added to the subject's embeddings, over that of the embedding.
        seed: of the noise, which is drawn once.

    Raises:
        ConfigError: the subject is not in the prompt, the answer is empty, the prompt is too long, or the noise is not
            above 0.
    """
    if not 0 < noise < float("inf"):
        raise ConfigError(f"--noise {noise:g}: allowed is a number above 0")
    ids, span, wanted = _tokens(tokenizer, prompt, subject, answer)
    if decoder.limit is not None and len(ids) > decoder.limit:
        raise ConfigError(f"the prompt: {len(ids)} tokens; allowed are at most {decoder.limit}")
    with torch.inference_mode():
        device = decoder.embeddings.device
        clean = decoder.embed(torch.tensor([ids], device=device))
        corrupt = clean.clone()
        draw = np.random.default_rng(seed).standard_normal((span[1] - span[0], clean.shape[-1]), np.float32)
        scale = noise * float(decoder.embeddings.std())
        corrupt[0, slice(*span)] += scale * torch.from_numpy(draw).to(device)
        around = decoder.surroundings([len(ids)])
        undisturbed, disturbed = (_outputs(decoder, decoder.enter(e), around) for e in (clean, corrupt))
        restored = np.stack(
            [
                _restored(decoder, layer, undisturbed[layer], disturbed[layer], around, wanted)
                for layer in range(decoder.depth)
            ]
        )
        p_clean, p_corrupt = (float(_read(decoder, outputs[-1], wanted)[0]) for outputs in (undisturbed, disturbed))
    words = [tokenizer.decode([token]) for token in ids]
    return Traced(words, span, tokenizer.decode([wanted]), p_clean, p_corrupt, restored)


def _outputs(decoder: Decoder, h: Any, around: Surroundings) -> list[Any]:
    """The outputs of all blocks, each [1, tokens, width]."""
    outputs = []
    for layer in range(decoder.depth):
        h = decoder.block(layer, h, around)
        outputs.append(h)
    return outputs


def _restored(
    decoder: Decoder, layer: int, clean: Any, corrupt: Any, around: Surroundings, wanted: int
) -> Float[np.ndarray, " tokens"]:
    """Probabilities of the answer with one block's output restored at each token in turn.

    What comes before that block is as in the corrupted run, so its states are where the copies begin.
    """
    length, found = clean.shape[1], []
    for tokens in torch.arange(length, device=clean.device).split(max(1, MOST_TOKENS // length)):
        h = corrupt.repeat(len(tokens), 1, 1)
        h[torch.arange(len(tokens)), tokens] = clean[0, tokens]
        copies = around.repeated(len(tokens))
        for later in range(layer + 1, decoder.depth):
            h = decoder.block(later, h, copies)
        found.append(_read(decoder, h, wanted))
    return np.concatenate(found)


def _read(decoder: Decoder, h: Any, wanted: int) -> Float[np.ndarray, " texts"]:
    """The probability of a token after the last one."""
    return decoder.logits(h[:, -1]).softmax(-1)[:, wanted].cpu().numpy()


def _tokens(tokenizer: Any, prompt: str, subject: str, answer: str) -> tuple[list[int], tuple[int, int], int]:
    """The tokens of the prompt, where the subject is among them, and the first token of the answer."""
    start = prompt.rfind(subject) if subject.strip() else -1
    if start < 0:
        raise ConfigError(f"subject {subject!r}: allowed is a part of the prompt {prompt!r}")
    if not answer.strip():
        raise ConfigError(f"answer {answer!r}: allowed is a text")
    stop = start + len(subject)
    encoded = tokenizer(prompt, return_offsets_mapping=True)
    ids = list(encoded["input_ids"])
    inside = [i for i, (low, high) in enumerate(encoded["offset_mapping"]) if max(low, start) < min(high, stop)]
    between = "" if prompt[-1:].isspace() or answer[:1].isspace() else " "
    continued = list(tokenizer(prompt + between + answer)["input_ids"])
    if continued[: len(ids)] != ids or len(continued) == len(ids):
        raise ConfigError(f"answer {answer!r}: its tokens run into the prompt's; end the prompt without a space")
    return ids, (inside[0], inside[-1] + 1), continued[len(ids)]
