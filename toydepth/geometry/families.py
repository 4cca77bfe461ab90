"""How each architecture's blocks are called by hand, with an explicit causal mask. Needs the extra `llm`.

    ids -> embed -> enter -> h_0 -> block 0 -> h_1 -> ... -> h_L -> normed -> losses

Newer versions of transformers build the causal mask and the rotary positions in the model, not in the block: a block
that is called without them looks into the future, and nothing says so. Here every block gets both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from jaxtyping import Bool, Float, Int

from ..fields import ConfigError
from .extra import lacking

try:
    import torch  # pyright: ignore[reportMissingImports]
    from torch.nn import functional as F  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError as missing:
    raise lacking(missing) from missing

Tensor = Any  # torch.Tensor, which the types of a toydepth without the extra do not know
LOGITS_BYTES = 2**26  # of logits at a time: a head makes many numbers of each state
AGREES = 1e-3  # nats; how far a model's own loss may be from that of its blocks called by hand


@dataclass(frozen=True)
class Family:
    """Where a family of models keeps what it is made of, as names of attributes.

    Attributes:
        core: the decoder within the language model; the others are within it.
        embedding: of tokens.
        blocks: a list.
        norm: the final one.
        positions: an embedding of positions, added to that of tokens.
        rotary: makes the rotations that blocks turn queries and keys by.
    """

    core: str
    embedding: str
    blocks: str
    norm: str
    positions: str | None = None
    rotary: str | None = None


_LLAMA = Family("model", "embed_tokens", "layers", "norm", rotary="rotary_emb")
FAMILIES = {
    "gpt_neox": Family("gpt_neox", "embed_in", "layers", "final_layer_norm", rotary="rotary_emb"),
    "opt": Family("model.decoder", "embed_tokens", "layers", "final_layer_norm", positions="embed_positions"),
    "qwen2": _LLAMA,
    "llama": _LLAMA,
    "gpt2": Family("transformer", "wte", "h", "ln_f", positions="wpe"),
}
"""By `model_type` of a model's config; Pythia is gpt_neox, SmolLM2 is llama."""


@dataclass(frozen=True)
class Surroundings:
    """What a block is told beside its states: who may look at whom, and where each token stands.

    Attributes:
        masks: for each window that some block has (None: as far back as there is), what is added to the scores of
            attention: 0 where a token may look, the lowest number where it may not.
        positions: 0 for the first token.
        rotary: cosines and sines of the positions' angles; None where positions are embedded.
    """

    masks: dict[int | None, Float[Tensor, "texts 1 length length"]]
    positions: Int[Tensor, "1 length"]
    rotary: tuple[Tensor, Tensor] | None

    def of(self, rows: Bool[Tensor, " texts"]) -> Surroundings:
        """What blocks are told of some of the texts."""
        masks = {window: mask if len(mask) == 1 else mask[rows] for window, mask in self.masks.items()}
        return Surroundings(masks, self.positions, self.rotary)

    def repeated(self, times: int) -> Surroundings:
        """What blocks are told of so many copies of a single text."""
        masks = {window: mask.expand(times, -1, -1, -1) for window, mask in self.masks.items()}
        return Surroundings(masks, self.positions, self.rotary)


class Decoder:
    """A causal language model taken apart.

    Args:
        model: of Hugging Face, of one of `FAMILIES`.

    Attributes:
        depth: its number of blocks L.
        width: the dimension of a state.
        limit: the most tokens that it has positions for; None: there is no such number.

    Raises:
        ConfigError: its family is not known, or has blocks of a kind that is not.
    """

    def __init__(self, model: Any):
        config = model.config
        if config.model_type not in FAMILIES:
            raise ConfigError(f"{config.model_type}: unknown architecture; known are {', '.join(FAMILIES)}")
        self.model = model.eval()
        self._family = FAMILIES[config.model_type]
        self._core: Any = attrgetter(self._family.core)(model)
        self._blocks: Any = self._part(self._family.blocks)
        self.depth = len(self._blocks)
        self.width: int = config.hidden_size
        self.limit: int | None = getattr(config, "max_position_embeddings", None)
        kinds = getattr(config, "layer_types", None) or ["full_attention"] * self.depth
        if odd := set(kinds) - {"full_attention", "sliding_attention"}:
            raise ConfigError(f"{config.model_type} with {', '.join(sorted(odd))}: such blocks are not known here")
        self._windows = [config.sliding_window if kind == "sliding_attention" else None for kind in kinds]

    @property
    def embeddings(self) -> Float[Tensor, "vocab width"]:
        """The weights of the embedding of tokens."""
        return self._part(self._family.embedding).weight

    def embed(self, ids: Int[Tensor, "texts length"]) -> Float[Tensor, "texts length width"]:
        """Tokens, embedded; positions are not in it yet."""
        return self._part(self._family.embedding)(ids)

    def enter(self, embedded: Float[Tensor, "texts length width"]) -> Float[Tensor, "texts length width"]:
        """h_0: what the first block gets."""
        project = getattr(self._core, "project_in", None)  # OPT's, where embeddings are narrower than states
        h = embedded if project is None else project(embedded)
        if self._family.positions is None:
            return h
        positions = torch.arange(h.shape[1], device=h.device)[None]
        embedding = self._part(self._family.positions)
        if self.model.config.model_type == "opt":  # derives positions from a padding mask unless it is told them
            return h + embedding(None, position_ids=positions)
        return h + embedding(positions)

    def surroundings(self, lengths: Sequence[int]) -> Surroundings:
        """What blocks are told of texts that are padded on the right to the longest."""
        length, weights = max(lengths), self.embeddings
        at = torch.arange(length, device=weights.device)
        there = at < torch.tensor(lengths, device=weights.device)[:, None]
        there = there[:1] if min(lengths) == length else there
        positions = at[None]
        masks = {window: self._mask(at, there, window, weights.dtype) for window in set(self._windows)}
        rotary = None if self._family.rotary is None else self._part(self._family.rotary)(weights, positions)
        return Surroundings(masks, positions, rotary)

    def block(
        self, layer: int, h: Float[Tensor, "texts length width"], around: Surroundings
    ) -> Float[Tensor, "texts length width"]:
        """h_{l+1} from h_l."""
        told: dict[str, Any] = {"attention_mask": around.masks[self._windows[layer]]}
        told |= {"position_ids": around.positions} if self._family.positions is None else {}
        told |= {} if around.rotary is None else {"position_embeddings": around.rotary}
        return self._blocks[layer](h, **told)

    def normed(self, h: Float[Tensor, "... width"]) -> Float[Tensor, "... width"] | None:
        """A state behind the final norm; None where there is no final norm."""
        norm = self._part(self._family.norm)
        return None if norm is None else norm(h)

    def logits(self, h: Float[Tensor, "... width"]) -> Float[Tensor, "... vocab"]:
        """What the head says of a state that comes from the last block."""
        normed = self.normed(h)
        project = getattr(self._core, "project_out", None)  # OPT's
        h = h if normed is None else normed
        return self.model.get_output_embeddings()(h if project is None else project(h)).float()

    def losses(
        self, h: Float[Tensor, "texts length width"], targets: Int[Tensor, "texts length"]
    ) -> Float[Tensor, "texts length"]:
        """The cross-entropy of the next token in nats, nan where the target is negative; few heads at a time."""
        flat, wanted = h.flatten(0, 1), targets.flatten()
        losses = torch.full(wanted.shape, torch.nan, device=h.device)
        at = (wanted >= 0).nonzero().squeeze(1)
        for part in at.split(max(1, LOGITS_BYTES // (4 * len(self.embeddings)))):
            losses[part] = F.cross_entropy(self.logits(flat[part]), wanted[part], reduction="none")
        return losses.view(targets.shape)

    @torch.inference_mode()
    def check(self, ids: Int[Tensor, "1 length"]) -> None:
        """Compares the blocks called by hand with the model's own call, since what a block is told may change.

        Raises:
            ConfigError: their losses differ.
        """
        around, h = self.surroundings([ids.shape[1]]), self.enter(self.embed(ids))
        for layer in range(self.depth):
            h = self.block(layer, h, around)
        own = F.cross_entropy(self.model(ids).logits.float()[0, :-1], ids[0, 1:])
        by_hand = F.cross_entropy(self.logits(h)[0, :-1], ids[0, 1:])
        if not abs(float(own - by_hand)) < AGREES:
            from transformers import __version__  # pyright: ignore[reportMissingImports]

            raise ConfigError(
                f"transformers {__version__} calls the blocks of {self.model.config.model_type} in another way than is "
                f"known here: its loss is {float(own):.4f}, by hand {float(by_hand):.4f}"
            )

    def _part(self, name: str) -> Any:
        return getattr(self._core, name)

    @staticmethod
    def _mask(
        at: Int[Tensor, " length"], there: Bool[Tensor, "texts length"], window: int | None, dtype: Any
    ) -> Float[Tensor, "texts 1 length length"]:
        seen = at[None, :] <= at[:, None]
        if window is not None:
            seen = seen & (at[None, :] > at[:, None] - window)
        seen = seen[None, None] & there[:, None, None, :]
        return torch.zeros(seen.shape, dtype=dtype, device=at.device).masked_fill(~seen, torch.finfo(dtype).min)
