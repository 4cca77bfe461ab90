"""Texts as pieces of tokens: files cut into documents, documents into what a model sees at once. Needs no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Bool, Int

from ..fields import ConfigError

Split = Literal["file", "pages", "blank"]
LONGEST = 1_000_000  # characters that are tokenised at once: a tokenizer needs far more memory than its text
FEWEST = 2  # tokens: one to see, one to foretell
_BLANK = re.compile(r"\n(?:[ \t]*\n){2,}")


class Text:
    """Files as pieces of tokens, tokenised once and kept at four bytes a token.

    A piece is what the model sees at once: nothing before its first token exists for the model. So each piece begins
    as the tokenizer lets a text begin (with a token that says so, where it has one), and its first token is `first`.

    Args:
        files: plain texts in UTF-8.
        tokenizer: of Hugging Face.
        context: the most tokens in a piece.
        tokens: how many tokens to take in all; None: every one.
        split: what a document is: a whole `file`; the `pages` between form feeds; what stands between two or more
            `blank` lines.

    Attributes:
        tokenizer: what it was given.
        ids: the tokens of all pieces, one after another.
        starts: where pieces begin, and the end of the last.

    Raises:
        ConfigError: there is no text, it is not plain text, or it is shorter than two tokens.
    """

    def __init__(
        self,
        files: Sequence[str | Path],
        tokenizer: Any,
        context: int,
        tokens: int | None = None,
        split: Split = "file",
    ):
        check(files, context, tokens, split)
        self.tokenizer = tokenizer
        self._words: dict[int, str] = {}
        self._opening = list(tokenizer("")["input_ids"])
        self._fewest = len(self._opening) + FEWEST
        for option, value in (("--context", context), ("--tokens", tokens)):
            if value is not None and value < self._fewest:
                raise ConfigError(f"{option} {value}: allowed is a number from {self._fewest} up")
        pieces: list[np.ndarray] = []
        left = tokens
        for file in files:
            if left is not None and left < self._fewest:
                break
            found = list(self._pieces(Path(file), context, left, split))
            pieces += found
            left = None if left is None else left - sum(map(len, found))
        self.ids: Int[np.ndarray, " tokens"] = np.concatenate(pieces)
        self.starts: Int[np.ndarray, " pieces+1"] = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])])

    def __len__(self) -> int:
        """The number of tokens."""
        return len(self.ids)

    @property
    def pieces(self) -> list[Int[np.ndarray, " tokens"]]:
        """The tokens of each piece."""
        return np.split(self.ids, self.starts[1:-1])

    def spread(self, tokens: int) -> Bool[np.ndarray, " pieces"]:
        """Pieces that are spread evenly over the text and together have about so many tokens, at least the first."""
        ends, whole = self.starts[1:], len(self)
        share = min(1.0, tokens / whole)
        chosen, taken = np.zeros(len(ends), bool), 0
        for i, end in enumerate(ends):
            size = end - self.starts[i]
            if tokens > 0 and taken < share * end:
                chosen[i], taken = True, taken + size
        return chosen

    def words(self, ids: Iterable[int]) -> list[str]:
        """Tokens as text, each by itself."""
        ids = [int(i) for i in ids]
        for i in set(ids) - self._words.keys():
            self._words[i] = self.tokenizer.decode([i])
        return [self._words[i] for i in ids]

    def _pieces(self, path: Path, context: int, tokens: int | None, split: Split) -> Iterator[np.ndarray]:
        """The pieces of a file, no more than so many tokens."""
        opening, longest = self._opening, 0
        room = context - len(opening)
        left = np.inf if tokens is None else tokens
        for document in documents(path, split):
            ids = self.tokenizer(document, add_special_tokens=False, verbose=False)["input_ids"]
            longest = max(longest, len(ids))
            for at in range(0, len(ids), room):
                piece = opening + ids[at : at + room]
                piece = piece[: int(min(left, len(piece)))]
                if len(piece) >= self._fewest:
                    left -= len(piece)
                    yield np.array(piece, np.int32)
                if left < self._fewest:
                    return
        if longest < FEWEST:
            count = f"{longest} token{'' if longest == 1 else 's'}"
            raise ConfigError(f"{path}: {count}; allowed is a text of at least {FEWEST} tokens")


def check(files: Sequence[str | Path], context: int | None, tokens: int | None = None, split: str = "file") -> None:
    """Refuses what is wrong with a text before a model is loaded for it; reads no more than file sizes."""
    if not files:
        raise ConfigError("--text: no files; allowed is at least one plain text")
    for path in map(Path, files):
        if not path.is_file():
            raise ConfigError(f"{path}: no such file")
        if path.stat().st_size == 0:
            raise ConfigError(f"{path}: empty; allowed is a text of at least {FEWEST} tokens")
    for option, value in (("--context", context), ("--tokens", tokens)):
        if value is not None and value < FEWEST:
            raise ConfigError(f"{option} {value}: allowed is a number from {FEWEST} up")
    if split not in get_args(Split):
        raise ConfigError(f"--split {split}: allowed is {', '.join(get_args(Split))}")


def documents(path: Path, split: Split = "file") -> Iterator[str]:
    """The documents of a file, without empty ones; a very long one in parts that end where a line does.

    Raises:
        ConfigError: it is not plain text.
    """
    end = {"file": None, "pages": re.compile("\f"), "blank": _BLANK}[split]
    held = ""
    try:
        with path.open(encoding="utf-8") as file:
            for block in iter(lambda: file.read(LONGEST) + file.readline(LONGEST), ""):
                held += block
                parts = [held] if end is None else end.split(held)
                yield from filter(str.strip, parts[:-1])
                held = parts[-1]
                if len(held) >= LONGEST:
                    yield held
                    held = ""
    except (OSError, UnicodeDecodeError) as error:
        why = "not plain text in UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise ConfigError(f"{path}: {why}") from error
    if held.strip():
        yield held
