"""The settings of a sentence-transformers folder: how its vectors are computed from the states."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from taskloom.core import WeightsError
from taskloom.plugins.encoders.folders import modules_of, read_json
from taskloom.plugins.encoders.poolings import POOLINGS

_WRITER = "sentence-transformers"


class _PoolingConfig(BaseModel):
    """``config.json`` of a pooling module: today's key, or a flag for each mode."""

    pooling_mode: str | list[str] | None = None
    pooling_mode_cls_token: bool = False
    pooling_mode_max_tokens: bool = False
    pooling_mode_mean_tokens: bool = False
    pooling_mode_mean_sqrt_len_tokens: bool = False
    pooling_mode_weightedmean_tokens: bool = False
    pooling_mode_lasttoken: bool = False

    @property
    def modes(self) -> list[str]:
        """The poolings whose vectors are concatenated."""
        if self.pooling_mode is not None:
            return [self.pooling_mode] if isinstance(self.pooling_mode, str) else self.pooling_mode
        flags = [name for name, on in self if on is True]
        return [name.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token") for name in flags]


class _Texts(BaseModel):
    max_seq_length: int | None = None
    do_lower_case: bool | None = None


class _Tokenizer(BaseModel):
    model_max_length: float | None = None


class _Prompts(BaseModel):
    default_prompt_name: str | None = None


@dataclass(frozen=True)
class SentenceSettings:
    """How a sentence-transformers folder computes vectors.

    ``pooling`` is None where it does not state one; ``normalized``: vectors are scaled to length 1; ``max_length``:
    texts are truncated to it; ``lower``: texts are lower-cased first. ``files`` are the files that state all this.
    """

    pooling: str | None = None
    normalized: bool = False
    max_length: int | None = None
    lower: bool = False
    files: tuple[Path, ...] = ()


def read_sentences(root: Path, *, pooled: bool) -> SentenceSettings:
    """The settings of a folder; with ``pooled`` its pooling too, refused if an encoder cannot compute it."""
    modules = modules_of(root)
    folder = root / modules[0].path if modules else root
    settings = sorted(folder.glob("sentence_*_config.json")) if modules else []
    texts = read_json(settings[0], _Texts, _WRITER) if settings else _Texts()
    tokenizer = folder / "tokenizer_config.json"
    max_length = texts.max_seq_length
    if max_length is None and tokenizer.is_file():
        stated = read_json(tokenizer, _Tokenizer, "a tokenizer").model_max_length
        max_length = int(stated) if stated is not None and stated < 1e6 else None  # larger: no limit was stated
    files = [root / "modules.json", *settings] if modules else []
    lower = bool(texts.do_lower_case)
    if not modules or not pooled:
        return SentenceSettings(max_length=max_length, lower=lower, files=tuple(files))
    names, prompts = [module.name for module in modules], root / "config_sentence_transformers.json"
    problems = []
    if names[:2] != ["Transformer", "Pooling"] or names[2:] not in ([], ["Normalize"]):
        problems.append(f"it is {' → '.join(names)}, not Transformer → Pooling, with Normalize behind it or not")
    modes: list[str] = []
    if "Pooling" in names:
        files.append(root / modules[names.index("Pooling")].path / "config.json")
        modes = read_json(files[-1], _PoolingConfig, _WRITER).modes or ["mean"]
        if len(modes) > 1 or modes[0] not in POOLINGS:
            problems.append(f"its pooling is {' and '.join(map(repr, modes))}")
    if prompts.is_file() and (prompt := read_json(prompts, _Prompts, _WRITER).default_prompt_name) is not None:
        problems.append(f"it puts the prompt {prompt!r} before every text")
    if problems:
        raise WeightsError(
            f"{root}: taskloom cannot make vectors as sentence-transformers does here: {'; '.join(problems)}. State a "
            f"pooling of its states instead, without all that: {', '.join(map(repr, POOLINGS))}"
        )
    return SentenceSettings(modes[0], "Normalize" in names, max_length, lower, tuple(files))
