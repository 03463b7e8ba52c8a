"""Loads models and tokenizers with transformers from a folder, without running its code or unpickling objects."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from taskloom.core import SpecialTokens, WeightsError
from taskloom.plugins.encoders.folders import weight_files

#: The names that configurations use for dropout of hidden values and of attention weights.
DROPOUT = {
    "dropout": ("hidden_dropout_prob", "hidden_dropout", "dropout", "embedding_dropout", "mlp_dropout"),
    "attention_dropout": ("attention_probs_dropout_prob", "attention_dropout"),
}
_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


def load_model(folder: Path, dropout: dict[str, float]) -> tuple[Any, set[str]]:
    """The model in float32, and the names of its weights that the folder lacks."""
    with _reading(folder) as library:
        config = library.AutoConfig.from_pretrained(folder, **_LOCAL)
        if config.is_encoder_decoder:
            raise WeightsError(f"{folder} holds an encoder with a decoder ({config.model_type}), not an encoder alone")
        for option, share in dropout.items():
            known = [name for name in DROPOUT[option] if hasattr(config, name)]
            if not known:
                raise WeightsError(f"{folder}: a {config.model_type} knows no {option}; leave that option out")
            for name in known:
                setattr(config, name, share)
        # Eager, because the backward pass of fused attention is nondeterministic on a GPU.
        model, loading_info = library.AutoModel.from_pretrained(
            folder,
            config=config,
            attn_implementation="eager",
            use_safetensors=weight_files(folder)[0].suffix == ".safetensors",
            weights_only=True,
            output_loading_info=True,
            **_LOCAL,
        )
        return model.float().train(), set(loading_info["missing_keys"])


def load_tokenizer(folder: Path) -> Any:
    """The fast tokenizer, without truncation or padding."""
    files = {"tokenizer.json", "vocab.txt", "vocab.json"}
    if any((folder / name).is_file() for name in files) or any(folder.glob("*.model")):
        with _reading(folder) as library:
            tokenizer = library.AutoTokenizer.from_pretrained(folder, use_fast=True, **_LOCAL)
        files = {"tokenizer.json", *tokenizer.vocab_files_names.values()}
    if not any((folder / name).is_file() for name in files):  # the library would go on with an empty vocabulary
        raise WeightsError(f"{folder} has no vocabulary; it should have {' or '.join(sorted(files))}")
    if not tokenizer.is_fast:
        raise WeightsError(f"{folder} has no fast tokenizer; save one beside the weights, as tokenizer.json")
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def save_model(folder: Path, model: Any, tokenizer: Any, max_length: int) -> None:
    """Write both as the library does; the saved tokenizer truncates and pads."""
    with _quiet(folder):
        model.save_pretrained(folder)
        tokenizer.model_max_length = max_length
        tokenizer.save_pretrained(folder)
        backend = tokenizer.backend_tokenizer
        backend.enable_truncation(max_length)
        backend.enable_padding(pad_id=tokenizer.pad_token_id, pad_token=tokenizer.pad_token)
        backend.save(str(folder / "tokenizer.json"))


def special_tokens_of(folder: Path, tokenizer: Any) -> SpecialTokens:
    """The special tokens around one text and around two, read from what the tokenizer returns."""
    backend = tokenizer.backend_tokenizer
    single, pair = backend.encode("a"), backend.encode("a", "a")
    owners = pair.sequence_ids  # of each token: text 0 or 1, None for a special token
    first_end, second_start = len(owners) - owners[::-1].index(0), owners.index(1)
    between = list(zip(pair.ids[first_end:second_start], pair.type_ids[first_end:second_start], strict=True))
    second_type = pair.type_ids[second_start]
    special = SpecialTokens(
        start=tuple(pair.ids[: owners.index(0)]),
        middle=tuple(token for token, kind in between if kind != second_type or not second_type),
        second_start=tuple(token for token, kind in between if kind == second_type and second_type),
        end=tuple(pair.ids[len(owners) - owners[::-1].index(1) :]),
        second_type=second_type if "token_type_ids" in tokenizer.model_input_names else 0,
    )
    words = backend.encode("a", add_special_tokens=False).ids
    first, second = [*special.start, *words, *special.middle], [*special.second_start, *words, *special.end]
    types = [0] * len(first) + [second_type] * len(second)
    expected_single = [*special.start, *words, *special.end]
    expected = (expected_single, [*first, *second], types)
    if len(expected_single) == len(words) or (single.ids, pair.ids, pair.type_ids) != expected:
        raise WeightsError(
            f"{folder}: its tokenizer lays texts out as {single.tokens} and {pair.tokens}; huggingface takes encoders "
            "that put the same special tokens around one text as around two"
        )
    return special


@contextmanager
def _reading(folder: Path) -> Iterator[Any]:
    """transformers without its output; its exceptions become one ``WeightsError``."""
    try:
        with _quiet(folder) as library:
            yield library
    except WeightsError:
        raise
    except Exception as error:  # the library raises many kinds
        text = " ".join(str(error).split())
        if "trust_remote_code" in text:
            text = "it comes with code of its own, which taskloom never runs"
        elif weight_files(folder)[0].suffix == ".bin" and "weights_only" in text:
            text = "it holds objects, which could run code when they are loaded; save the weights as model.safetensors"
        raise WeightsError(f"transformers cannot read {folder}: {text[:400] or type(error).__name__}") from None


@contextmanager
def _quiet(folder: Path) -> Iterator[Any]:
    """transformers without its log messages and progress bars."""
    try:
        import transformers
    except ImportError:
        raise WeightsError(
            f"the encoder in {folder} needs transformers, which is not installed: pip install 'taskloom[hf]'"
        ) from None
    logging: Any = transformers.utils.logging
    verbosity, shows_progress = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield transformers
    finally:
        logging.set_verbosity(verbosity)
        if shows_progress:
            logging.enable_progress_bar()
