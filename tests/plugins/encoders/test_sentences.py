"""Folders of sentence-transformers, old and new: their own vectors, or a message, never silently others."""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import TEXTS, save_model
from torch import Tensor

from taskloom.core import Tokens, WeightsError, arrange, derive_generator
from taskloom.plugins.encoders.huggingface import HuggingFace
from taskloom.plugins.encoders.minbert import MinBert

LONG = [*TEXTS, "The CAT and the Dog " * 12]


def reference_vectors(root: Path, texts: list[str] = LONG) -> Tensor:
    from sentence_transformers import SentenceTransformer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return SentenceTransformer(str(root), device="cpu").encode(texts, convert_to_tensor=True)


def built(root: Path | str, **options: Any) -> HuggingFace:
    encoder = HuggingFace(weights=str(root), **options)
    encoder.check()
    encoder.build(generator=derive_generator(0))
    return encoder.eval()


def laid_out(encoder: HuggingFace, texts: list[str] = LONG) -> Tokens:
    return arrange([encoder.tokenize(texts)], "single", encoder.special_tokens, encoder.max_length)


def sentences(
    root: Path,
    kind: str = "bert",
    *,
    pooling: dict[str, Any] | None = None,
    more: tuple[str, ...] = (),
    path: str = "",
    texts: dict[str, Any] | None = None,
) -> Path:
    """Write a folder as sentence-transformers did through the years."""
    save_model(kind, root / path)
    (root / path / "sentence_bert_config.json").write_text(json.dumps(texts or {}))
    modules = [("Transformer", path), ("Pooling", "1_Pooling"), *((name, f"2_{name}") for name in more)]
    lines = [
        {"idx": number, "name": str(number), "path": where, "type": f"sentence_transformers.models.{name}"}
        for number, (name, where) in enumerate(modules)
    ]
    (root / "modules.json").write_text(json.dumps(lines))
    (root / "1_Pooling").mkdir()
    flags = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True}
    (root / "1_Pooling" / "config.json").write_text(json.dumps(pooling or flags))
    return root


def flags(way: str) -> dict[str, Any]:
    every = {"cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens", "sqrt": "mean_sqrt_len_tokens"}
    named = {f"pooling_mode_{flag}": name == way for name, flag in every.items()}
    return {"word_embedding_dimension": 16, **named}


@pytest.mark.parametrize("kind", ["bert", "mpnet"])
@pytest.mark.parametrize(
    "shape",
    [
        {"pooling": flags("cls")},
        {"pooling": flags("max"), "path": "0_Transformer"},
        {"pooling": flags("mean"), "more": ("Normalize",), "texts": {"max_seq_length": 9, "do_lower_case": True}},
        {"pooling": {"embedding_dimension": 16, "pooling_mode": "cls"}, "more": ("Normalize",)},
        {"pooling": {"embedding_dimension": 16, "pooling_mode": ["max"]}, "path": "0_BERT"},
    ],
    ids=["old cls", "old max in a subfolder", "old mean, normalized, cut", "new cls, normalized", "new max"],
)
@torch.no_grad()
def test_vectors_are_those_of_sentence_transformers(tmp_path: Path, kind: str, shape: dict[str, Any]) -> None:
    root = sentences(tmp_path / "one", kind, **shape)
    encoder = built(root)
    tokens = laid_out(encoder)
    expected = reference_vectors(root)
    torch.testing.assert_close(encoder(tokens), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(encoder.pool(encoder.encode(encoder.embed(tokens), tokens), tokens), encoder(tokens))


@torch.no_grad()
def test_so_are_those_of_minilm(minilm: Path) -> None:
    texts = ["A man is playing a guitar.", "Nobody, not even the rain, has such small hands.", "word " * 400]
    encoder = built("minilm")
    assert (encoder.width, encoder.max_length) == (384, 256)
    torch.testing.assert_close(encoder(laid_out(encoder, texts)), reference_vectors(minilm, texts), atol=1e-5, rtol=0)


@torch.no_grad()
def test_what_sentence_transformers_writes_today_is_read(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    before = sentences(tmp_path / "before", "mpnet", more=("Normalize",), texts={"max_seq_length": 12})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        SentenceTransformer(str(before), device="cpu").save(str(tmp_path / "after"))
    encoder = built(tmp_path / "after")
    assert encoder.max_length == 12
    torch.testing.assert_close(encoder(laid_out(encoder)), reference_vectors(before), atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_pooling_that_is_stated_goes_before_the_folders(tmp_path: Path) -> None:
    """Without normalization; the same for a head that asks."""
    root = sentences(tmp_path / "one", more=("Normalize",))
    plain, own = built(root, pooling="mean"), built(root)
    tokens = laid_out(own)
    assert not plain(tokens).allclose(own(tokens))
    torch.testing.assert_close(torch.nn.functional.normalize(plain(tokens)), own(tokens))
    joined = Tokens.join([tokens, laid_out(own)])
    joined.poolings = (None, "mean")
    torch.testing.assert_close(own(joined), torch.cat([own(tokens), plain(tokens)]))


def test_the_folders_ways_count_for_identity(tmp_path: Path) -> None:
    one = sentences(tmp_path / "one", pooling=flags("cls"))
    moved = shutil.copytree(one, tmp_path / "moved")
    assert HuggingFace(weights=str(one)).fingerprint() == HuggingFace(weights=str(moved)).fingerprint()
    (moved / "1_Pooling" / "config.json").write_text(json.dumps(flags("max")))
    assert HuggingFace(weights=str(one)).fingerprint() != HuggingFace(weights=str(moved)).fingerprint()


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (
            {"more": ("Dense", "Normalize")},
            "it is Transformer → Pooling → Dense → Normalize, not Transformer → Pooling",
        ),
        ({"pooling": flags("sqrt")}, "its pooling is 'mean_sqrt_len'"),
        ({"pooling": {"pooling_mode": ["cls", "mean"]}}, "its pooling is 'cls' and 'mean'"),
        ({"pooling": {"pooling_mode": 3}}, "config.json does not fit sentence-transformers: pooling_mode"),
    ],
)
def test_what_cannot_be_expressed_is_refused_until_a_pooling_is_stated(
    tmp_path: Path, shape: dict[str, Any], message: str
) -> None:
    root = sentences(tmp_path / "one", **shape)
    with pytest.raises(WeightsError, match=message) as caught:
        HuggingFace(weights=str(root)).check()
    assert "\n" not in str(caught.value)
    HuggingFace(weights=str(root), pooling="mean").check()


def test_a_prompt_before_every_text_is_refused(tmp_path: Path) -> None:
    root = sentences(tmp_path / "one")
    (root / "config_sentence_transformers.json").write_text('{"prompts": {"q": "Q: "}, "default_prompt_name": "q"}')
    with pytest.raises(WeightsError, match=r"it puts the prompt 'q' before every text\. State a pooling .*'cls'"):
        HuggingFace(weights=str(root)).check()


def test_minbert_reads_the_transformer_of_such_a_folder(tmp_path: Path) -> None:
    """Its own pooling stays BERT's."""
    root = sentences(tmp_path / "one", path="0_Transformer")
    encoder = MinBert(weights=str(root))
    encoder.build(generator=derive_generator(0))
    assert encoder.pooler is not None
