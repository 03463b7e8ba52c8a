"""From text to token ids: a BERT's own word pieces, or hashed words for an untrained encoder."""

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import BaseModel, BeforeValidator
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from taskloom.core import Ids, SpecialTokens, WeightsError
from taskloom.plugins.digests import sha256_of
from taskloom.plugins.encoders.folders import read_json

RESERVED = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_SETTINGS = "tokenizer_config.json"
_CHUNK = 4096  # texts encoded at once: an encoding holds far more than the ids that are kept


def ids_of(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Ids]:
    """The token ids of each text, without special tokens."""
    ids: list[Ids] = []
    for start in range(0, len(texts), _CHUNK):
        encodings = tokenizer.encode_batch(list(texts[start : start + _CHUNK]), add_special_tokens=False)
        ids += (np.array(encoding.ids, np.int32) for encoding in encodings)
    return ids


def _content(token: object) -> object:
    """A special token's text; some files write it as an object with its properties."""
    return token.get("content", token) if isinstance(token, dict) else token


class Settings(BaseModel):
    """The keys of ``tokenizer_config.json`` that are read."""

    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool | None = None
    cls_token: Annotated[str | None, BeforeValidator(_content)] = None
    sep_token: Annotated[str | None, BeforeValidator(_content)] = None


class WordPieces:
    """The word-piece vocabulary of weights: ``tokenizer.json``, else ``vocab.txt``."""

    def __init__(self, folder: Path) -> None:
        path = folder / _SETTINGS
        settings = read_json(path, Settings) if path.is_file() else Settings()
        self.tokenizer = _load(folder, settings)
        # Some tokenizer.json truncate and pad (MiniLM's at 128 tokens); here arrange() truncates.
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.size = int(self.tokenizer.get_vocab_size(with_added_tokens=True))
        special_ids = []
        for token in (settings.cls_token or "[CLS]", settings.sep_token or "[SEP]"):
            number = self.tokenizer.token_to_id(token)
            if number is None:
                raise WeightsError(f"the vocabulary in {folder} has no {token!r}, which minbert puts around texts")
            special_ids.append(number)
        start, end = special_ids
        self.special_tokens = SpecialTokens(start=(start,), middle=(end,), end=(end,))

    def tokenize(self, texts: Sequence[str]) -> list[Ids]:
        return ids_of(self.tokenizer, texts)


class HashedWords:
    """Words, lower-cased and split as BERT does, with ids from a hash; nothing is learned.

    >>> words = HashedWords(8192)
    >>> [ids.tolist() for ids in words.tokenize(["Good film", "film"])]
    [[5412, 3089], [3089]]
    """

    special_tokens = SpecialTokens(start=(2,), middle=(3,), end=(3,))

    def __init__(self, size: int) -> None:
        self.size = size
        self._normalizer = BertNormalizer(lowercase=True)
        self._splitter = BertPreTokenizer()

    def tokenize(self, texts: Sequence[str]) -> list[Ids]:
        return [np.array([_hashed_id(word, self.size) for word in self._words(text)], np.int32) for text in texts]

    def vocabulary_of(self, texts: Iterable[str]) -> dict[str, int]:
        """The reserved tokens and every word of the texts, each with its id; words whose hashes collide share one."""
        words = sorted({word for text in texts for word in self._words(text)})
        reserved = {token: token_id for token_id, token in enumerate(RESERVED)}
        return reserved | {word: _hashed_id(word, self.size) for word in words}

    def _words(self, text: str) -> list[str]:
        return [word for word, _ in self._splitter.pre_tokenize_str(self._normalizer.normalize_str(text))]

    def tokenizer(self, listed: Iterable[str]) -> Tokenizer:
        """A tokenizer for listed words, numbered in their order; any other word is ``[UNK]``."""
        numbers = {word: number for number, word in enumerate(listed)}
        return _word_piece_tokenizer(numbers, self._normalizer, longest=max(100, *map(len, numbers)))


@lru_cache(maxsize=100_000)
def _hashed_id(word: str, size: int) -> int:
    digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
    return len(RESERVED) + int.from_bytes(digest, "big") % (size - len(RESERVED))


def vocabulary_files(folder: Path) -> list[Path]:
    """The files that determine token ids."""
    names = ("tokenizer.json", "vocab.txt")
    chosen = next((folder / name for name in names if (folder / name).is_file()), None)
    if chosen is None:
        raise WeightsError(f"{folder} has no vocabulary; it should have tokenizer.json or vocab.txt")
    settings = folder / _SETTINGS
    return [chosen, settings] if settings.is_file() else [chosen]


def word_pieces(folder: Path) -> WordPieces:
    """The vocabulary in a folder, read again only when its files change."""
    return _word_pieces(folder, tuple(map(sha256_of, vocabulary_files(folder))))


@lru_cache(maxsize=4)
def _word_pieces(folder: Path, digests: tuple[str, ...]) -> WordPieces:
    return WordPieces(folder)


def _load(folder: Path, settings: Settings) -> Tokenizer:
    path = vocabulary_files(folder)[0]
    try:
        if path.suffix == ".json":
            return Tokenizer.from_file(str(path))
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except Exception as error:  # the tokenizers library raises plain Exception
        raise WeightsError(f"{path} cannot be read: {error}") from None
    vocab = {line.rstrip("\r"): number for number, line in enumerate(lines)}
    if "[UNK]" not in vocab:
        raise WeightsError(f"{path} has no '[UNK]', the token for words that are not in it")
    normalizer = BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.tokenize_chinese_chars is not False,
        strip_accents=settings.strip_accents,
        lowercase=settings.do_lower_case is not False,
    )
    return _word_piece_tokenizer(vocab, normalizer)


def _word_piece_tokenizer(vocab: dict[str, int], normalizer: BertNormalizer, *, longest: int = 100) -> Tokenizer:
    """BERT's tokenizer for a vocabulary; words of more than ``longest`` characters are ``[UNK]``."""
    tokenizer = Tokenizer(WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=longest))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in RESERVED if token in vocab])
    return tokenizer
