"""Models and tokenizers of transformers, read from a folder: never code of others, never pickled objects."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from taskloom.core import SpecialTokens, WeightsError
from taskloom.plugins.encoders.folders import weight_files

#: What configurations call the shares that are dropped: of hidden values, and of attention weights.
DROPOUT = {
    "dropout": ("hidden_dropout_prob", "hidden_dropout", "dropout", "embedding_dropout", "mlp_dropout"),
    "attention_dropout": ("attention_probs_dropout_prob", "attention_dropout"),
}
_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


def load_model(folder: Path, dropout: dict[str, float]) -> tuple[Any, set[str]]:
    """The model in float32 and the names of weights that it has and the folder does not."""
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
        # The fused kernels of attention add in any order on a GPU's way back.
        model, facts = library.AutoModel.from_pretrained(
            folder,
            config=config,
            attn_implementation="eager",
            use_safetensors=weight_files(folder)[0].suffix == ".safetensors",
            weights_only=True,
            output_loading_info=True,
            **_LOCAL,
        )
        return model.float().train(), set(facts["missing_keys"])


def load_tokenizer(folder: Path) -> Any:
    """The fast tokenizer, which neither cuts nor pads."""
    files = {"tokenizer.json", "vocab.txt", "vocab.json"}
    if any((folder / name).is_file() for name in files) or any(folder.glob("*.model")):
        with _reading(folder) as library:
            tokenizer = library.AutoTokenizer.from_pretrained(folder, use_fast=True, **_LOCAL)
        files = {"tokenizer.json", *tokenizer.vocab_files_names.values()}
    if not any((folder / name).is_file() for name in files):  # the library would go on with no words at all
        raise WeightsError(f"{folder} has no vocabulary; it should have {' or '.join(sorted(files))}")
    if not tokenizer.is_fast:
        raise WeightsError(f"{folder} has no fast tokenizer; save one beside the weights, as tokenizer.json")
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def special_tokens_of(folder: Path, tokenizer: Any) -> SpecialTokens:
    """What the tokenizer puts around one text and around two, found by looking at what it does."""
    backend = tokenizer.backend_tokenizer
    one, two = backend.encode("a"), backend.encode("a", "a")
    first, second = (len(two.sequence_ids) - two.sequence_ids[::-1].index(0), two.sequence_ids.index(1))
    middle = list(zip(two.ids[first:second], two.type_ids[first:second], strict=True))
    after = two.type_ids[second]
    found = SpecialTokens(
        start=tuple(two.ids[: two.sequence_ids.index(0)]),
        middle=tuple(number for number, kind in middle if kind != after or not after),
        second_start=tuple(number for number, kind in middle if kind == after and after),
        end=tuple(two.ids[len(two.sequence_ids) - two.sequence_ids[::-1].index(1) :]),
        second_type=after if "token_type_ids" in tokenizer.model_input_names else 0,
    )
    words = backend.encode("a", add_special_tokens=False).ids
    alone = [*found.start, *words, *found.end]
    pair = [*found.start, *words, *found.middle, *found.second_start, *words, *found.end]
    kinds = [0] * len((*found.start, *words, *found.middle)) + [after] * len((*found.second_start, *words, *found.end))
    if not alone[len(words) :] or (one.ids, two.ids, two.type_ids) != (alone, pair, kinds):
        raise WeightsError(
            f"{folder}: its tokenizer lays texts out as {one.tokens} and {two.tokens}; huggingface takes encoders that "
            "put the same special tokens around one text as around two"
        )
    return found


@contextmanager
def _reading(folder: Path) -> Iterator[Any]:
    """transformers, without its reports and bars; what it raises becomes one message."""
    try:
        import transformers
    except ImportError:
        raise WeightsError(
            f"{folder} is run by transformers, which is not installed; pip install 'taskloom[hf]'"
        ) from None
    logging: Any = transformers.utils.logging
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield transformers
    except WeightsError:
        raise
    except Exception as error:  # the library raises many kinds
        text = " ".join(str(error).split())
        if "trust_remote_code" in text:
            text = "it comes with code of its own, which taskloom never runs"
        elif weight_files(folder)[0].suffix == ".bin" and "weights_only" in text:
            text = "it holds objects, which could run code when they are loaded; save the weights as model.safetensors"
        raise WeightsError(f"transformers cannot read {folder}: {text[:400] or type(error).__name__}") from None
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()
