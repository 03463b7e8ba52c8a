"""From text to token ids: a BERT's own word pieces, or hashed words for an untrained encoder."""

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from taskloom.core import Ids, SpecialTokens, WeightsError

RESERVED = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_SETTINGS = "tokenizer_config.json"
_CHUNK = 4096  # texts encoded at once: an encoding holds far more than the ids that are kept


class Vocabulary(Protocol):
    """Gives the token ids of texts, and the special tokens around them."""

    @property
    def special_tokens(self) -> SpecialTokens: ...

    @property
    def size(self) -> int: ...

    def tokenize(self, texts: Sequence[str]) -> list[Ids]: ...


class WordPieces:
    """The word pieces that belong to weights: ``tokenizer.json``, else ``vocab.txt``."""

    def __init__(self, folder: Path) -> None:
        settings = _read_settings(folder)
        self._tokenizer = _load(folder, settings)
        # Some tokenizer.json cut and pad (MiniLM's at 128 tokens); arrange() cuts.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        start, end = (self._special(folder, settings, role) for role in ("cls_token", "sep_token"))
        self.special_tokens = SpecialTokens(start=(start,), middle=(end,), end=(end,))

    @property
    def size(self) -> int:
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def tokenize(self, texts: Sequence[str]) -> list[Ids]:
        found: list[Ids] = []
        for start in range(0, len(texts), _CHUNK):
            encodings = self._tokenizer.encode_batch(list(texts[start : start + _CHUNK]), add_special_tokens=False)
            found += (np.array(encoding.ids, np.int32) for encoding in encodings)
        return found

    def _special(self, folder: Path, settings: dict[str, Any], role: str) -> int:
        given = settings.get(role) or f"[{role[:3].upper()}]"
        token = given.get("content") if isinstance(given, dict) else given
        if not isinstance(token, str):
            raise WeightsError(f"{folder / _SETTINGS}: {role} should be a token, such as '[CLS]'. Found {given!r}.")
        number = self._tokenizer.token_to_id(token)
        if number is None:
            raise WeightsError(f"the vocabulary in {folder} has no {token!r}, which minbert puts around texts")
        return int(number)


class HashedWords:
    """Words, lower-cased and split as BERT does, each with the id that its hash gives; nothing is learned.

    >>> words = HashedWords(8192)
    >>> [ids.tolist() for ids in words.tokenize(["Good film", "film"])]
    [[5412, 3089], [3089]]
    """

    special_tokens = SpecialTokens(start=(2,), middle=(3,), end=(3,))

    def __init__(self, size: int) -> None:
        self.size = size
        self._normalizer = BertNormalizer(lowercase=True)
        self._splitter = BertPreTokenizer()
        self._known: dict[str, int] = {}

    def tokenize(self, texts: Sequence[str]) -> list[Ids]:
        return [np.array([self._id(word) for word in self._words(text)], np.int32) for text in texts]

    def _words(self, text: str) -> list[str]:
        return [word for word, _ in self._splitter.pre_tokenize_str(self._normalizer.normalize_str(text))]

    def _id(self, word: str) -> int:
        known = self._known.get(word)
        if known is None:
            digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
            known = len(RESERVED) + int.from_bytes(digest, "big") % (self.size - len(RESERVED))
            self._known[word] = known
        return known


def vocabulary_files(folder: Path) -> list[Path]:
    """The files that decide over token ids."""
    names = ("tokenizer.json", "vocab.txt")
    chosen = next((folder / name for name in names if (folder / name).is_file()), None)
    if chosen is None:
        raise WeightsError(f"{folder} has no vocabulary; it should have tokenizer.json or vocab.txt")
    settings = folder / _SETTINGS
    return [chosen, settings] if settings.is_file() else [chosen]


def word_pieces(folder: Path) -> WordPieces:
    """The vocabulary in a folder, read once as long as its files stay as they are."""
    facts = tuple((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in vocabulary_files(folder))
    return _word_pieces(folder, facts)


@lru_cache(maxsize=4)
def _word_pieces(folder: Path, facts: tuple[tuple[str, int, int], ...]) -> WordPieces:
    return WordPieces(folder)


def _read_settings(folder: Path) -> dict[str, Any]:
    path = folder / _SETTINGS
    if not path.is_file():
        return {}
    try:
        settings: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"{path} cannot be read: {error}") from None
    if not isinstance(settings, dict):
        raise WeightsError(f"{path} should be an object. Found {type(settings).__name__}.")
    return {key: value for key, value in settings.items() if value is not None}


def _flag(folder: Path, settings: dict[str, Any], key: str) -> bool:
    """A setting that is on unless something else is said."""
    value = settings.get(key, True)
    if not isinstance(value, bool):
        raise WeightsError(f"{folder / _SETTINGS}: {key} should be true or false. Found {value!r}.")
    return value


def _load(folder: Path, settings: dict[str, Any]) -> Tokenizer:
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
    tokenizer = Tokenizer(WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = BertNormalizer(
        clean_text=True,
        handle_chinese_chars=_flag(folder, settings, "tokenize_chinese_chars"),
        strip_accents=_flag(folder, settings, "strip_accents") if "strip_accents" in settings else None,
        lowercase=_flag(folder, settings, "do_lower_case"),
    )
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in RESERVED if token in vocab])
    return tokenizer
