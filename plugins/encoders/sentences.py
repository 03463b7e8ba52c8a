"""What a folder of sentence-transformers says beside its weights: how a vector is made of the states."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from taskloom.core import WeightsError
from taskloom.plugins.encoders.folders import modules_of, read_json
from taskloom.plugins.encoders.poolings import POOLINGS

_WRITER = "sentence-transformers"


class _Pooling(BaseModel):
    """``config.json`` of a pooling: today's key, or a flag for each way."""

    pooling_mode: str | list[str] | None = None
    pooling_mode_cls_token: bool = False
    pooling_mode_max_tokens: bool = False
    pooling_mode_mean_tokens: bool = False
    pooling_mode_mean_sqrt_len_tokens: bool = False
    pooling_mode_weightedmean_tokens: bool = False
    pooling_mode_lasttoken: bool = False

    @property
    def ways(self) -> list[str]:
        """What is put side by side."""
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
class Sentences:
    """How a folder makes vectors.

    ``pooling`` is None where it does not say; ``normalized`` if vectors then get the length 1, ``max_length`` where
    texts are cut and ``lower`` if they are lower-cased first. ``files`` say all that.
    """

    pooling: str | None = None
    normalized: bool = False
    max_length: int | None = None
    lower: bool = False
    files: tuple[Path, ...] = ()


def read_sentences(root: Path, *, pooled: bool) -> Sentences:
    """What a folder says; with ``pooled`` how it makes a vector, too, which is refused if an encoder cannot do it."""
    modules = modules_of(root)
    folder = root / modules[0].path if modules else root
    settings = sorted(folder.glob("sentence_*_config.json")) if modules else []
    texts = read_json(settings[0], _Texts, _WRITER) if settings else _Texts()
    tokenizer = folder / "tokenizer_config.json"
    most = texts.max_seq_length
    if most is None and tokenizer.is_file():
        said = read_json(tokenizer, _Tokenizer, "a tokenizer").model_max_length
        most = int(said) if said is not None and said < 1e6 else None  # larger: nobody said
    files = [root / "modules.json", *settings] if modules else []
    found = Sentences(max_length=most, lower=bool(texts.do_lower_case), files=tuple(files))
    if not modules or not pooled:
        return found
    names, prompts = [module.name for module in modules], root / "config_sentence_transformers.json"
    problems = []
    if names[:2] != ["Transformer", "Pooling"] or names[2:] not in ([], ["Normalize"]):
        problems.append(f"it is {' → '.join(names)}, not Transformer → Pooling, with Normalize behind it or not")
    ways: list[str] = []
    if "Pooling" in names:
        files.append(root / modules[names.index("Pooling")].path / "config.json")
        ways = read_json(files[-1], _Pooling, _WRITER).ways or ["mean"]
        if len(ways) > 1 or ways[0] not in POOLINGS:
            problems.append(f"its pooling is {' and '.join(map(repr, ways))}")
    if prompts.is_file() and (prompt := read_json(prompts, _Prompts, _WRITER).default_prompt_name) is not None:
        problems.append(f"it puts the prompt {prompt!r} before every text")
    if problems:
        raise WeightsError(
            f"{root}: taskloom cannot make vectors as sentence-transformers does here: {'; '.join(problems)}. State a "
            f"pooling of its states instead, without all that: {', '.join(map(repr, POOLINGS))}"
        )
    return Sentences(ways[0], "Normalize" in names, most, found.lower, tuple(files))
