"""What `taskloom new-plugin` writes keeps every law; slips that third parties make in it are caught, with the input."""

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy

from taskloom.core import ENDS, Component, DataSet, Event, Examples, Labels, Loss, Metric, Prediction
from taskloom.core.testing import broken_laws, check, engines
from taskloom.plugins.heads import Linear
from taskloom.runs.scaffold import package_files
from taskloom.runs.scaffold.names import Names


@pytest.fixture
def written(install: Callable[..., None]) -> Callable[[str], Any]:
    """The class that `taskloom new-plugin` writes, out of an installed package."""

    def of(kind: str) -> Any:
        install(f"new_{kind}", package_files(Names(f"new_{kind}"), kind)[f"taskloom_new_{kind}/__init__.py"])
        return getattr(import_module(f"taskloom_new_{kind}"), f"New{kind.capitalize()}")

    return of


def require_caught(wrong: type[Component], *laws: str, **options: Any) -> None:
    """It breaks these laws at least, and the message names each of them with an input."""
    with pytest.raises(AssertionError) as caught:
        check(wrong, **options)
    for law in laws:
        assert f"{law!r}: " in str(caught.value), str(caught.value)
        told = str(caught.value).partition(f"{law!r}: ")[2].partition("\n")[0]
        assert "with " in told, f"{law}: {told}"


# Encoders


def mixes_neighbours(base: Any) -> Any:
    class Wrong(base):  # type: ignore[misc]
        """Adds the token before, whatever sequence that is of."""

        def encode(self, embedded: Tensor, tokens: Any) -> Tensor:
            return super().encode(embedded + 0.5 * embedded.roll(1, 0), tokens)  # type: ignore[no-any-return]

    return Wrong


def counts_through(base: Any) -> Any:
    class Wrong(base):  # type: ignore[misc]
        """Counts positions through the whole batch."""

        def embed(self, tokens: Any) -> Tensor:
            places = torch.arange(len(tokens.ids), dtype=torch.float32).sin()
            return super().embed(tokens) + places[:, None]  # type: ignore[no-any-return]

    return Wrong


def divides_by_the_longest(base: Any) -> Any:
    class Wrong(base):  # type: ignore[misc]
        """Takes the mean over padding too."""

        def pool(self, states: Tensor, tokens: Any) -> Tensor:
            return tokens.pad(states).mean(1)  # type: ignore[no-any-return]

    return Wrong


def one_key_for_all(base: Any) -> Any:
    class Wrong(base):  # type: ignore[misc]
        """Has an option that changes the ids, and not the key under which they are kept."""

        def __init__(self, *, keep_case: bool = False) -> None:
            super().__init__(width=8)
            self.keep_case = keep_case

        def tokenize(self, texts: Sequence[str]) -> Any:
            found = super().tokenize(texts)
            return [ids[::-1].copy() for ids in found] if self.keep_case else found

    return Wrong


ALONE = "a sequence does not depend on its batch"


@pytest.mark.parametrize(
    ("make", "law"),
    [
        (mixes_neighbours, ALONE),
        (counts_through, ALONE),
        (divides_by_the_longest, ALONE),
        (one_key_for_all, "the vocabulary key follows the ids"),
    ],
)
def test_encoders(written: Callable[[str], Any], make: Callable[[Any], Any], law: str) -> None:
    right = written("encoder")
    options = {} if make is one_key_for_all else {"width": 8}
    assert broken_laws(right, width=8) == []
    require_caught(make(right), law, **options)


# Engines


def swallows_failures(base: Any) -> Any:
    class Wrong(base):  # type: ignore[misc]
        """Does not pass on that a job failed."""

        def poll(self, seconds: float) -> list[Event]:
            return [event for event in super().poll(seconds) if event.what != "failed"]

    return Wrong


def ends_twice(base: Any) -> Any:
    class Wrong(base):  # type: ignore[misc]
        """Says of a job that failed that it is lost as well."""

        def poll(self, seconds: float) -> list[Event]:
            found = super().poll(seconds)
            return [*found, *(Event("lost", e.cell, e.facts, e.fence) for e in found if e.what == "failed")]

    return Wrong


def unfenced_ends(base: Any) -> Any:
    class Wrong(base):  # type: ignore[misc]
        """Loses the fence of what it says itself."""

        def poll(self, seconds: float) -> list[Event]:
            found = super().poll(seconds)
            return [Event(e.what, e.cell, e.facts) if e.what == "lost" else e for e in found]

    return Wrong


def last_first(base: Any) -> Any:
    class Wrong(base):  # type: ignore[misc]
        """Passes on the newest event first, the end excepted."""

        def __init__(self) -> None:
            super().__init__()
            self.kept: list[Event] = []

        def poll(self, seconds: float) -> list[Event]:
            found = super().poll(seconds)
            self.kept = [*(event for event in found[::-1] if event.what == "log"), *self.kept]
            logs, self.kept = (self.kept, []) if any(e.what in ENDS for e in found) else ([], self.kept)
            return [*logs, *(event for event in found if event.what != "log")]

    return Wrong


def leaves_them(base: Any) -> Any:
    class Wrong(base):  # type: ignore[misc]
        """Closes, and lets jobs go on."""

        def close(self) -> None:
            pass

    return Wrong


@pytest.mark.parametrize(
    ("make", "law"),
    [
        (swallows_failures, "every job ends with exactly one event"),
        (ends_twice, "every job ends with exactly one event"),
        (unfenced_ends, "events carry the fence of their job"),
        (last_first, "events of a job come in order and whole"),
        (leaves_them, "closing ends what still runs"),
    ],
)
def test_engines(
    written: Callable[[str], Any], make: Callable[[Any], Any], law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = written("engine")
    if make is ends_twice:
        assert broken_laws(right) == []
    monkeypatch.setattr(engines, "LIMIT", 1.0)
    monkeypatch.setattr(engines, "OUTLIVED", 1.0)
    require_caught(make(right), law)


# Losses, heads, samplers, metrics, data


class SummedContrast(Loss):
    """Each left text should be nearest to its right one: the sum over the batch, and not the mean."""

    name = "summed_contrast"
    expects = "vectors"
    vectors = (2,)
    reduction = "sum"

    def forward(self, prediction: Prediction, target: Tensor) -> Tensor:
        vectors = prediction.vectors
        left, right = vectors if vectors.dtype is torch.float64 else vectors.float()
        near = cosine_similarity(left[:, None], right[None], dim=-1, eps=1e-6)
        return cross_entropy(5 * near, torch.arange(len(near)), reduction=self.reduction)


class MeanContrast(SummedContrast):
    """Each left text should be nearest to its right one."""

    name = "mean_contrast"
    reduction = "mean"


def test_losses() -> None:
    law = "the loss of a batch is no sum"
    assert law not in broken_laws(MeanContrast)
    require_caught(SummedContrast, law)


class Column(Linear):
    """Decides in a column."""

    def decide(self, score: Tensor) -> Tensor:
        return super().decide(score)[:, None]


class OneForAll(Linear):
    """Decides once for the batch."""

    def decide(self, score: Tensor) -> Tensor:
        return super().decide(score)[:1]


class Shares(Linear):
    """Gives the share of each class where one should be decided for."""

    def decide(self, score: Tensor) -> Tensor:
        return score.softmax(-1) if score.dim() == 2 else super().decide(score)


@pytest.mark.parametrize("wrong", [Column, OneForAll, Shares])
def test_heads(wrong: type[Linear]) -> None:
    require_caught(wrong, "it decides in the units of the labels")


def test_a_sampler_as_new_plugin_writes_it(written: Callable[[str], Any]) -> None:
    right = written("sampler")

    class Wrong(right):  # type: ignore[misc]
        """Says that it goes through all rows, and draws them."""

        uses = "passes"

    assert broken_laws(right) == []
    require_caught(Wrong, "it uses the rows that it says")


class Share(Metric):
    """The share that is right."""

    name = "share"
    reads = "classes"
    give: Callable[[float], Any] = staticmethod(float)

    def __call__(self, predicted: Any, expected: Any) -> Any:
        return type(self).give(float((predicted == expected).mean()))


@pytest.mark.parametrize(
    "give",
    [str, bool, np.float64, np.float32, torch.tensor, int, lambda score: [score]],
    ids=lambda give: give.__name__,
)
def test_metrics(give: Callable[[float], Any]) -> None:
    class Wrong(Share):
        """Gives something else than a float."""

    Wrong.give = staticmethod(give)
    assert broken_laws(Share) == []
    require_caught(Wrong, "a score is a finite number")


class Lines(DataSet):
    """Lines of a file: the first half to be learnt from.

    Options:
        file: where they are
    """

    name = "lines"
    labels = Labels.of_classes(2)
    columns = 1

    def __init__(self, *, file: str) -> None:
        self.file = file

    def load(self, split: Any) -> Examples:
        lines = Path(self.file).read_text().splitlines()
        chosen = {"train": lines[: len(lines) // 2], "dev": lines[len(lines) // 2 :], "test": lines[-2:]}[split]
        ids = tuple(f"{split}{place}" for place in range(len(chosen)))
        return Examples((tuple(chosen),), np.arange(len(chosen)) % 2.0, ids)

    def fingerprint(self) -> str:
        return Path(self.file).read_text()


class Constant(Lines):
    """Has one fingerprint for every file."""

    def fingerprint(self) -> str:
        return "lines, version 1"


def test_data(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("".join(f"line {place}\n" for place in range(12)))
    assert broken_laws(Lines, file=str(tmp_path / "lines.txt")) == []
    require_caught(Constant, "content follows the examples", file=str(tmp_path / "lines.txt"))
