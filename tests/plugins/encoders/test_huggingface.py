"""huggingface: the vectors of transformers for any architecture, its laws, runs that resume, and what is refused."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_runs import generated, job_of
from tiny_models import OTHERS, TEXTS, new_model, new_tokenizer, save_model
from torch import Tensor, nn

from taskloom.core import Event, SpecialTokens, Tokens, WeightsError, arrange, derive_generator
from taskloom.core.testing import check, laws
from taskloom.plugins.encoders.huggingface import HuggingFace
from taskloom.plugins.encoders.minbert import MinBert
from taskloom.plugins.encoders.padded import Padded
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.runs.training.train import train

PADDED = ["relu bert", "roberta", "xlm-r", "mpnet", "electra", "albert", "deberta", "modernbert", "distilbert"]
WITH_POOLER = {"bert", "relu bert", "roberta", "xlm-r", "mpnet", "albert"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {kind: save_model(kind, root / kind.replace(" ", "-")) for kind in ("bert", *PADDED)}


def built(folder: Path | str, asked: frozenset[str] = frozenset(), **options: Any) -> HuggingFace:
    encoder = HuggingFace(weights=str(folder), **options)
    encoder.requested_poolings = asked
    encoder.check()
    encoder.build(generator=derive_generator(0))
    return encoder.eval()


def laid_out(encoder: HuggingFace, *, joined: bool) -> Tokens:
    columns = [encoder.tokenize(TEXTS), encoder.tokenize(OTHERS)]
    return arrange(columns, "joint" if joined else "single", encoder.special_tokens, encoder.max_length)


# Equality with transformers


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("kind", ["bert", *PADDED])
@torch.no_grad()
def test_states_and_vectors_are_those_of_transformers(folders: dict[str, Path], kind: str, joined: bool) -> None:
    """From texts on: its ids, special tokens, segments, states and poolings."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folders[kind])
    reference = AutoModel.from_pretrained(folders[kind], attn_implementation="eager").eval()
    inputs = tokenizer(TEXTS, OTHERS if joined else None, padding=True, truncation=True, return_tensors="pt")
    output = reference(**inputs)
    hidden, kept = output.last_hidden_state, inputs["attention_mask"].bool()  # [S, L, d], [S, L]
    expected = {
        "cls": hidden[:, 0],
        "mean": torch.stack([states[own].mean(0) for states, own in zip(hidden, kept, strict=True)]),
        "max": torch.stack([states[own].amax(0) for states, own in zip(hidden, kept, strict=True)]),
    }
    if kind in WITH_POOLER:
        expected["pooler"] = output.pooler_output
    encoder = built(folders[kind], frozenset(expected))
    tokens = laid_out(encoder, joined=joined)
    assert torch.equal(tokens.ids, inputs["input_ids"][kept])
    torch.testing.assert_close(encoder.encode(encoder.embed(tokens), tokens), hidden[kept], atol=1e-5, rtol=0)
    own = expected["pooler" if kind in WITH_POOLER else "cls"]
    for way, vectors in {None: own, **expected}.items():
        tokens = laid_out(encoder, joined=joined)
        tokens.poolings = (way,)
        torch.testing.assert_close(encoder(tokens), vectors, atol=1e-5, rtol=0)
    assert isinstance(encoder.inner, MinBert if kind == "bert" else Padded)


@pytest.mark.parametrize("kind", ["roberta", "modernbert"])
def test_gradients_are_those_of_transformers(folders: dict[str, Path], kind: str) -> None:
    reference, encoder = new_model(kind), built(folders[kind], pooling="cls")
    tokens = laid_out(encoder, joined=True)
    slopes = torch.randn(len(tokens), encoder.width, generator=derive_generator(1))
    encoder(tokens).backward(slopes)
    reference(input_ids=tokens.pad(tokens.ids), attention_mask=tokens.mask.long())[0][:, 0].backward(slopes)
    theirs = {name: one.grad for name, one in reference.named_parameters() if not name.startswith("pooler")}
    for name, one in encoder.inner.model.named_parameters():  # type: ignore[union-attr]
        gradient = theirs[name] if theirs[name] is not None else torch.zeros_like(one)
        found = one.grad if one.grad is not None else torch.zeros_like(one)
        torch.testing.assert_close(found, gradient, atol=1e-4, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


def test_special_tokens_are_the_tokenizers_own(folders: dict[str, Path]) -> None:
    assert built(folders["roberta"]).special_tokens == SpecialTokens((0,), (2, 2), (2,), second_type=0)
    assert built(folders["deberta"]).special_tokens == SpecialTokens((2,), (3,), (3,))
    assert built(folders["distilbert"]).special_tokens == SpecialTokens((2,), (3,), (3,), second_type=0)


# Laws


def test_it_keeps_every_law_of_encoders(folders: dict[str, Path]) -> None:
    """With transformers' code, on the pretend GPU too."""
    check(HuggingFace, weights=str(folders["roberta"]))


@pytest.mark.parametrize("kind", ["electra", "deberta", "modernbert"])
def test_and_those_that_look_at_the_architecture_with_any_of_them(folders: dict[str, Path], kind: str) -> None:
    """One has no pooler and embeddings that are narrower than its states, one no positions, one windows."""
    for each in laws("encoder"):
        if each.name in ("a sequence does not depend on its batch", "each part of a batch is pooled as it asks"):
            each(HuggingFace, weights=str(folders[kind]))


def test_it_keeps_every_law_with_berts_packed_layers(folders: dict[str, Path]) -> None:
    check(HuggingFace, weights=str(folders["bert"]))


def test_a_frozen_one_learns_nothing_and_options_reach_the_model(folders: dict[str, Path]) -> None:
    encoder = built(folders["modernbert"], trainable=False, dropout=0.25, attention_dropout=0.5, max_length=10)
    assert not [name for name, one in encoder.named_parameters() if one.requires_grad]
    config = encoder.inner.model.config  # type: ignore[union-attr]
    assert (config.mlp_dropout, config.embedding_dropout, config.attention_dropout) == (0.25, 0.25, 0.5)
    assert (encoder.max_length, built(folders["modernbert"]).max_length) == (10, 48)
    assert {one.p for one in encoder.modules() if isinstance(one, nn.Dropout)} == {0.25, 0.5}


# Runs


class Ear:
    """What an engine gives to a cell; asks it to stop when it has looked a few times."""

    def __init__(self, patience: int = sys.maxsize) -> None:
        self.patience, self.last = patience, ""

    def __call__(self, event: Event) -> None:
        self.last = event.what

    @property
    def stop_asked(self) -> bool:
        self.patience -= 1
        return self.patience < 0


def test_a_run_stopped_again_and_again_ends_where_it_would_have_ended(folders: dict[str, Path], tmp_path: Path) -> None:
    """With dropout, gradient surgery over tasks that read one text and two, and SMART, which replays passes."""
    tasks = {
        "sst": generated("sentiment", 24, 8, loss={"name": "smart", "loss": "cross_entropy"}),
        "para": generated("paraphrase", 24, 8, head={"name": "linear", "reads": "joint"}, loss="binary_cross_entropy"),
    }
    stage = {"combiner": "pcgrad", "optimizer": {"lr": 0.001}, "epochs": 2}
    run = {"encoder": {"name": "huggingface", "weights": str(folders["roberta"])}, "tasks": tasks, "stages": [stage]}
    job = job_of(tmp_path / "whole", run)
    train(job, Ear())
    torch.manual_seed(7)  # what somebody else draws changes nothing
    ends: list[str] = []
    while not ends or ends[-1] == "interrupted":
        assert len(ends) < 50
        ear = Ear(9)
        train(replace(job, folder=str(tmp_path / "stopped")), ear)
        ends.append(ear.last)
    assert ends[-1] == "finished"
    assert len(ends) > 2
    one, other = (load_file(tmp_path / name / "cells/x/best/tensors.safetensors") for name in ("whole", "stopped"))
    assert one.keys() == other.keys()
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


# What it is known by


def test_weights_and_vocabulary_count_by_what_they_are(tmp_path: Path) -> None:
    folder = save_model("roberta", tmp_path / "one")

    def keys() -> tuple[str, str]:
        encoder = HuggingFace(weights=str(folder))
        return encoder.fingerprint(), encoder.vocabulary_key()

    before = keys()
    assert keys() == before
    state = load_file(folder / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in state.items()}, folder / "model.safetensors", {"format": "pt"})
    changed = keys()
    assert changed[0] != before[0]
    assert changed[1] == before[1]
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text.replace('"word7"', '"other"'))
    assert keys()[1] != before[1]
    assert keys()[0] != changed[0]
    assert "transformers" in load_catalogue().get("encoder", "huggingface").versions


# What is refused


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, folder / "model.safetensors", {"format": "pt"})


def only_pickled(folder: Path, content: object) -> None:
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / "pytorch_model.bin")


BAD: dict[str, tuple[Callable[[Path], object], dict[str, Any], str]] = {
    "own code": (
        lambda f: edit_config(f, model_type="mine", auto_map={"AutoConfig": "code.Mine", "AutoModel": "code.Mine"}),
        {},
        "it comes with code of its own, which taskloom never runs",
    ),
    "unknown family": (lambda f: edit_config(f, model_type="mine"), {}, "transformers cannot read .*`mine`"),
    "decoder": (lambda f: (f / "config.json").write_text('{"model_type": "t5"}'), {}, "an encoder with a decoder"),
    "broken config": (lambda f: (f / "config.json").write_text("{"), {}, "config.*is not a valid JSON"),
    "no vocabulary": (lambda f: (f / "tokenizer.json").unlink(), {}, "no vocabulary; it should have .*tokenizer.json"),
    "tensor missing": (
        lambda f: edit_weights(f, lambda s: s.pop("encoder.layer.1.output.dense.bias")),
        {},
        "do not fit the architecture: encoder.layer.1.output.dense.bias missing",
    ),
    "wrong size": (lambda f: edit_config(f, intermediate_size=32), {}, "transformers cannot read .*"),
    "no pooler": (
        lambda f: edit_weights(f, lambda s: (s.pop("pooler.dense.weight"), s.pop("pooler.dense.bias"))),
        {"pooling": "pooler"},
        "has no pooler; pooling should be 'cls', 'mean' or 'max'",
    ),
    "too long": (lambda f: None, {"max_length": 49}, r"max_length 49 \(the weights have 48\)"),
    "large vocabulary": (
        lambda f: edit_weights(f, lambda s: None) or edit_words(f, 20),
        {},
        "the vocabulary has 75 tokens, the word table 60 rows",
    ),
    "objects": (lambda f: only_pickled(f, nn.Dropout(0.1)), {}, "could run code .* save the weights as model.safetens"),
}


def edit_words(folder: Path, more: int) -> None:
    tokenizer = new_tokenizer("roberta")
    tokenizer.add_tokens([f"more{number}" for number in range(more)])
    tokenizer.save_pretrained(folder)


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_used_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    spoil, options, message = BAD[case]
    folder = save_model("roberta", tmp_path / "one")
    spoil(folder)
    encoder = HuggingFace(weights=str(folder), **options)
    with pytest.raises(WeightsError, match=message) as caught:
        encoder.check()
    assert "\n" not in str(caught.value)
    assert "trust_remote_code" not in str(caught.value), "the library would advise to run the code"


@torch.no_grad()
def test_what_is_exported_transformers_loads(folders: dict[str, Path], tmp_path: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    encoder = built(folders["mpnet"], pooling="cls")
    for parameter in encoder.parameters():
        parameter.add_(0.01)  # as training does
    assert encoder.export(tmp_path, []) == []
    assert (encoder.pooling, encoder.normalized) == ("cls", False)
    inputs = AutoTokenizer.from_pretrained(tmp_path)(TEXTS, padding=True, return_tensors="pt")
    hidden = AutoModel.from_pretrained(tmp_path, attn_implementation="eager").eval()(**inputs)[0]
    torch.testing.assert_close(encoder(laid_out(encoder, joined=False)), hidden[:, 0], atol=1e-5, rtol=0)


def test_plain_pickled_weights_are_read(tmp_path: Path) -> None:
    folder = save_model("distilbert", tmp_path / "one")
    expected = built(folder).inner.state_dict()  # type: ignore[union-attr]
    only_pickled(folder, load_file(folder / "model.safetensors"))
    found = built(folder).inner.state_dict()  # type: ignore[union-attr]
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())


def test_without_the_library_the_message_has_the_command(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(WeightsError, match=r"transformers, which is not installed: pip install 'taskloom\[hf\]'"):
        HuggingFace(weights=str(folders["roberta"])).check()
    built(folders["bert"])  # needs it not
