"""Weights of minbert: all ways of saving them load, and those that do not fit are refused."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from taskloom.core import Dropout, SpecialTokens, Tokens, WeightsError, derive_generator
from taskloom.plugins.encoders.minbert import MinBert
from taskloom.registry.installed.catalogue import load_catalogue

os.environ.setdefault("HF_HUB_OFFLINE", "1")
TINY = {"layers": 2, "width": 16, "heads": 4, "feed_forward": 24, "vocabulary": 60, "max_length": 48}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{number}" for number in range(55))]


@pytest.fixture(scope="module")
def tiny_reference():  # type: ignore[no-untyped-def]
    """A random BERT of transformers, every tensor different from its initial value."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=60,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=24,
        max_position_embeddings=48,
        layer_norm_eps=1e-5,
        attn_implementation="eager",
    )
    model = BertModel(config).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


@pytest.fixture
def tiny_folder(tiny_reference, tmp_path: Path) -> Path:  # type: ignore[no-untyped-def]
    folder = tmp_path / "tiny"
    tiny_reference.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return folder


def built(folder: Path, **options: object) -> MinBert:
    encoder = MinBert(weights=str(folder), **options)  # type: ignore[arg-type]
    encoder.build(generator=derive_generator(0))
    return encoder.eval()


def random_tokens(lengths: list[int]) -> Tokens:
    """Joined pairs: the second half of each sequence is of the second segment."""
    generator = torch.Generator().manual_seed(0)
    sequences = [torch.randint(5, 60, (n,), generator=generator).tolist() for n in lengths]
    return Tokens.pack(sequences, [[0] * (n // 2) + [1] * (n - n // 2) for n in lengths])


def reference_output(model, tokens: Tokens):  # type: ignore[no-untyped-def]
    ids, types = tokens.pad(tokens.ids), tokens.pad(tokens.types)
    return model(input_ids=ids, token_type_ids=types, attention_mask=tokens.mask.long())


def _prefixed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"bert.{name}": value for name, value in state.items()} | {"cls.predictions.bias": torch.zeros(60)}


def _old_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    def old(name: str) -> str:
        return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

    return {f"bert.{old(name)}": value for name, value in state.items()}


@pytest.mark.parametrize("rename", [dict, _prefixed, _old_names])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_all_ways_of_saving_load(
    tiny_folder: Path,
    tiny_reference,  # type: ignore[no-untyped-def]
    rename: Callable[[dict[str, Tensor]], dict[str, Tensor]],
    file: str,
    parts: int,
) -> None:
    state = rename(load_file(tiny_folder / "model.safetensors"))
    (tiny_folder / "model.safetensors").unlink()
    stem, _, kind = file.rpartition(".")
    names = [file] if parts == 1 else [f"{stem}-{part}-of-{parts}.{kind}" for part in range(parts)]
    split = {name: {key: state[key] for key in sorted(state)[part::parts]} for part, name in enumerate(names)}
    for name, some in split.items():
        torch.save(some, tiny_folder / name) if kind == "bin" else save_file(some, tiny_folder / name)
    if parts > 1:
        index = {"metadata": {}, "weight_map": {key: name for name, some in split.items() for key in some}}
        (tiny_folder / f"{file}.index.json").write_text(json.dumps(index))
    encoder = built(tiny_folder)
    tokens = random_tokens([1, 40, 7, 7, 21])
    with torch.no_grad():
        states = encoder.encode(encoder.embed(tokens), tokens)
        expected = reference_output(tiny_reference, tokens)
    torch.testing.assert_close(states, tokens.unpad(expected.last_hidden_state), atol=1e-5, rtol=0)
    torch.testing.assert_close(encoder(tokens), expected.pooler_output, atol=1e-5, rtol=0)


def test_half_precision_weights_become_single(tiny_folder: Path) -> None:
    state = load_file(tiny_folder / "model.safetensors")
    save_file({name: value.half() for name, value in state.items()}, tiny_folder / "model.safetensors")
    encoder = built(tiny_folder)
    assert {parameter.dtype for parameter in encoder.parameters()} == {torch.float32}


def test_gradients_equal_to_transformers(tiny_folder: Path, tiny_reference) -> None:  # type: ignore[no-untyped-def]
    encoder = built(tiny_folder)
    tokens = random_tokens([5, 30, 2])
    target = torch.randn(3, 16, generator=derive_generator(0))
    (encoder(tokens) * target).sum().backward()
    tiny_reference.zero_grad()
    (reference_output(tiny_reference, tokens).pooler_output * target).sum().backward()
    theirs = dict(tiny_reference.named_parameters())
    word = encoder.embeddings.word.grad.to_dense()
    torch.testing.assert_close(word, theirs["embeddings.word_embeddings.weight"].grad, atol=1e-5, rtol=1e-4)
    for number in range(2):
        attention = f"encoder.layer.{number}.attention.self"
        expected = torch.cat([theirs[f"{attention}.{part}.weight"].grad for part in ("query", "key", "value")])
        torch.testing.assert_close(encoder.layers[number].qkv.weight.grad, expected, atol=1e-5, rtol=1e-4)


def test_dropout_comes_from_config_unless_given(tiny_folder: Path) -> None:
    path = tiny_folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "hidden_dropout_prob": 0.25}))
    assert built(tiny_folder).layers[0].dropout.p == 0.25
    encoder = built(tiny_folder, dropout=0.0, attention_dropout=0.5)
    assert (encoder.embeddings.dropout.p, encoder.layers[1].attention_dropout.p) == (0.0, 0.5)


def test_keys_change_with_what_they_stand_for(tiny_folder: Path) -> None:
    encoder = MinBert(weights=str(tiny_folder))
    key, content = encoder.vocabulary_key(), encoder.fingerprint()
    assert MinBert(weights=str(tiny_folder), pooling="cls").fingerprint() == content
    state = load_file(tiny_folder / "model.safetensors")
    state["pooler.dense.bias"] += 1
    save_file(state, tiny_folder / "model.safetensors")
    assert encoder.vocabulary_key() == key
    assert encoder.fingerprint() != content
    (tiny_folder / "vocab.txt").write_text("\n".join(reversed(WORDS)))
    assert encoder.vocabulary_key() != key
    assert MinBert().fingerprint() == ""
    assert MinBert().vocabulary_key() != MinBert(vocabulary=100).vocabulary_key()


def identity(folder: Path, **options: object) -> tuple[object, str]:
    """What of an encoder counts for a result: its options, less the places, and its content."""
    catalogue = load_catalogue()
    resolved, problems = catalogue.resolve("encoder", {"name": "minbert", "weights": str(folder), **options})
    assert not problems
    return catalogue.without_defaults("encoder", resolved), catalogue.make(MinBert, resolved).fingerprint()


def test_weights_count_by_what_they_are_and_not_by_where_they_lie(tiny_folder: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(tiny_folder, tmp_path / "elsewhere")
    assert identity(tiny_folder) == identity(moved)
    assert identity(tiny_folder) != identity(moved, pooling="cls")
    edit_weights(moved, lambda state: state["pooler.dense.bias"].add_(1))
    assert identity(tiny_folder) != identity(moved)


def test_tokenize_and_keys_need_no_build(tiny_folder: Path) -> None:
    encoder = MinBert(weights=str(tiny_folder))
    (ids,) = encoder.tokenize(["word3 nothing word0"])
    np.testing.assert_array_equal(ids, [8, 1, 5])
    assert not list(encoder.parameters())
    encoder.build(generator=derive_generator(0))
    assert (encoder.width, encoder.max_length, encoder.special_tokens) == (16, 48, SpecialTokens((2,), (3,), (3,)))


# Weights that cannot be used


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, folder / "model.safetensors")


def only_pickled(folder: Path, content: object) -> None:
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / "pytorch_model.bin")


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "has no config.json"),
    "broken config": (lambda f: (f / "config.json").write_text("{"), "config.json .* JSON"),
    "config of another kind": (lambda f: (f / "config.json").write_text("[]"), "config.json .* object"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "model.safetensors or pytorch_model.bin"),
    "no vocabulary": (lambda f: (f / "vocab.txt").unlink(), "tokenizer.json or vocab.txt"),
    "large vocabulary": (
        lambda f: (f / "vocab.txt").write_text("\n".join([*WORDS, "more"])),
        "the vocabulary has 61 tokens, the word table 60 rows",
    ),
    "activation": (lambda f: edit_config(f, hidden_act="relu"), "hidden_act: .*'gelu' .*'relu'"),
    "family": (
        lambda f: edit_config(f, model_type="roberta"),
        "minbert: model_type: .*'bert' .*'roberta'.*; the encoder 'huggingface'",
    ),
    "positions": (
        lambda f: edit_config(f, position_embedding_type="relative_key"),
        "position_.*'relative_key'",
    ),
    "decoder": (lambda f: edit_config(f, is_decoder=True), "is_decoder: .*False .*True"),
    "dropout": (lambda f: edit_config(f, hidden_dropout_prob="no"), "hidden_dropout_prob: .*number .*'no'"),
    "size missing": (lambda f: edit_config(f, hidden_size=None), "hidden_size: .*integer .*None"),
    "width": (
        lambda f: edit_config(f, hidden_size=20),
        r"do not fit the architecture: .*word_embeddings.weight is \[60, 16\], config.json needs \[60, 20\]",
    ),
    "heads": (lambda f: edit_config(f, num_attention_heads=3), "heads should divide width. Found width 16 and heads 3"),
    "layers": (
        lambda f: edit_config(f, num_hidden_layers=3),
        r"encoder.layer.2.attention.self.query.weight is missing; .* and \d+ more",
    ),
    "tensor missing": (
        lambda f: edit_weights(f, lambda s: s.pop("encoder.layer.1.output.LayerNorm.bias")),
        "encoder.layer.1.output.LayerNorm.bias is missing",
    ),
    "no pooler": (
        lambda f: edit_weights(f, lambda s: (s.pop("pooler.dense.weight"), s.pop("pooler.dense.bias"))),
        "has no pooler; pooling should be 'cls', 'mean' or 'max'",
    ),
    "no bert": (
        lambda f: save_file({"x": torch.zeros(1)}, f / "model.safetensors"),
        "embeddings.word_embeddings.weight is missing",
    ),
    "cut off": (lambda f: (f / "model.safetensors").write_bytes(b"\x08\0\0\0"), "model.safetensors cannot be read"),
    "code": (
        lambda f: only_pickled(f, Dropout(0.1)),
        "cannot be read as plain tensors by name: .* could run code .*; save the weights as model.safetensors$",
    ),
    "no names": (lambda f: only_pickled(f, [torch.zeros(1)]), "cannot be read as plain tensors by name"),
    "no archive": (
        lambda f: ((f / "model.safetensors").unlink(), (f / "pytorch_model.bin").write_bytes(b"junk")),
        "cannot be read as plain tensors",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_unusable_weights_are_refused_before_anything_is_built(tiny_folder: Path, case: str) -> None:
    MinBert(weights=str(tiny_folder)).check()
    spoil, message = BAD[case]
    spoil(tiny_folder)
    encoder = MinBert(weights=str(tiny_folder))
    with pytest.raises(WeightsError, match=message) as caught:
        encoder.check()
    assert "\n" not in str(caught.value)
    assert "weights_only" not in str(caught.value), "torch would advise to run the code"
    with pytest.raises(WeightsError, match=message):
        encoder.build(generator=derive_generator(0))
    assert not list(encoder.parameters())


def test_weights_without_pooler_serve_other_poolings(tiny_folder: Path) -> None:
    BAD["no pooler"][0](tiny_folder)
    assert built(tiny_folder, pooling="mean").pooler is None


def test_sizes_that_disagree_with_the_weights(tiny_folder: Path) -> None:
    MinBert(weights=str(tiny_folder), **TINY).check()
    with pytest.raises(WeightsError) as caught:
        MinBert(weights=str(tiny_folder), layers=12, width=16, heads=2, max_length=512).check()
    for part in (
        "layers 12 (the weights have 2)",
        "heads 2 (the weights have 4)",
        "max_length 512 (the weights have 48)",
    ):
        assert part in str(caught.value)
    assert "width" not in str(caught.value)
    assert built(tiny_folder, max_length=10).max_length == 10
