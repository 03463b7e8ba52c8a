"""For every law of all components, of metrics and of data sets, one that breaks it and is caught."""

import itertools
import re
import time
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch
from pydantic import AfterValidator, Base64Str, Field

from taskloom.core import Component, DataSet, Examples, Labels, Metric, Split, TaskloomError
from taskloom.core.testing import broken_laws, check, general, laws
from taskloom.plugins.losses import MSE
from taskloom.plugins.metrics import Accuracy

LAWS = {(kind, law.name): law for kind in ("metric", "data", "loss") for law in laws(kind)}
MUTANTS: list[tuple[type[Component], str]] = []


def breaks(*names: str) -> Callable[[type[Component]], type[Component]]:
    def mark(mutant: type[Component]) -> type[Component]:
        MUTANTS.extend((mutant, name) for name in names)
        return mutant

    return mark


# Every component


@breaks("it has a name that users can type")
class Unnamed(Accuracy):
    """Without a name."""

    name = "Not A Name"


@breaks("it says what it does")
class Undocumented(Accuracy):
    name = "undocumented"


@breaks("its options are annotated keyword arguments")
class Positional(MSE):
    """Takes its option by position."""

    def __init__(self, target: str = "raw") -> None:
        super().__init__()


@breaks("its options are annotated keyword arguments")
class Unannotated(MSE):
    """Does not say what its option is."""

    def __init__(self, *, target="raw") -> None:  # type: ignore[no-untyped-def]
        super().__init__()


@breaks("its options are annotated keyword arguments")
class Misplaced(MSE):
    """Says that an option it does not have changes no result."""

    location_options = frozenset({"folder"})


@breaks("its options are in the schema with their text")
class Silent(MSE):
    """Does not say what its option does."""

    def __init__(self, *, share: float = 0.5) -> None:
        super().__init__()


@breaks("a wrong value of an option is refused")
class TakesAnything(MSE):
    """Takes any value.

    Options:
        share: anything
    """

    def __init__(self, *, share: Any = 0.5) -> None:
        super().__init__()


turns = itertools.count()


@breaks("a value of an option means the same each time")
class ChangesItsMind(MSE):
    """Reads one value in many ways.

    Options:
        share: how much
    """

    def __init__(self, *, share: Annotated[float, AfterValidator(lambda one: one and one + next(turns))] = 0.0) -> None:
        super().__init__()


@breaks("its defaults can be written in a grid")
class NoDefault(MSE):
    """Has a default that JSON cannot hold.

    Options:
        share: how much
    """

    def __init__(self, *, share: float = float("nan")) -> None:
        super().__init__()


@breaks("making one leaves its defaults as they are")
class Grows(MSE):
    """Adds to its own default.

    Options:
        shares: how much of each
    """

    def __init__(self, *, shares: list[float] = []) -> None:  # noqa: B006
        super().__init__()
        shares.append(1.0)


@breaks("making one leaves its defaults as they are")
class GrowsBelow(Grows):
    """Takes another option, and leaves the one it inherits to its base.

    Options:
        factor: how often
    """

    def __init__(self, *, factor: float = 1.0) -> None:
        super().__init__()


@breaks("making one is quick and prints nothing")
class Chatty(MSE):
    """Prints in its constructor."""

    def __init__(self) -> None:
        super().__init__()
        print("hello")


@breaks("making one draws no random numbers")
class DrawsWhenMade(MSE):
    """Draws from the global state in its constructor."""

    def __init__(self) -> None:
        super().__init__()
        torch.rand(1)


@breaks("it takes what its options allow or says why not")
class FailsAtTheEdge(MSE):
    """A choice of its own is unknown to it.

    Options:
        way: how
    """

    def __init__(self, *, way: Literal["one", "two"] = "one") -> None:
        super().__init__()
        self.factor = {"one": 1}[way]


# Metrics


@breaks("the perfect prediction is best")
class Upside(Metric):
    """Smaller is better."""

    def __call__(self, predicted: Any, expected: Any) -> float:
        return float(np.abs(predicted - expected).mean())


@breaks("the order of examples does not matter")
class FirstOnly(Metric):
    """Looks at the first half twice."""

    def __call__(self, predicted: Any, expected: Any) -> float:
        return float((predicted == expected)[:20].mean() + (predicted == expected).mean())


@breaks("a score is a finite number")
class Undefined(Metric):
    """Is not a number where predictions are constant."""

    def __call__(self, predicted: Any, expected: Any) -> float:
        return float("nan") if np.ptp(predicted) == 0 else float((predicted == expected).mean())


@breaks("extreme predictions have a finite score")
class Likelihood(Metric):
    """Multiplies what may be large."""

    reads = "values"

    def __call__(self, predicted: Any, expected: Any) -> float:
        with np.errstate(over="ignore"):
            return -float(np.exp(np.abs(predicted - expected)).sum())


@breaks("extreme predictions have a finite score")
class Logarithmic(Metric):
    """Has no logarithm of what is below zero."""

    reads = "values"

    def __call__(self, predicted: Any, expected: Any) -> float:
        with np.errstate(invalid="ignore"):
            return -float(np.abs(np.log1p(predicted) - np.log1p(expected)).mean())


@breaks("one example is scored or refused")
class NeedsTwo(Accuracy):
    """Divides by one less than there are."""

    def __call__(self, predicted: Any, expected: Any) -> float:
        return float((predicted == expected).sum() / (len(predicted) - 1)) if len(predicted) > 1 else float("inf")


@breaks("scoring twice gives one score")
class Remembers(Accuracy):
    """Adds up what it has seen."""

    def __call__(self, predicted: Any, expected: Any) -> float:
        self.seen = getattr(self, "seen", 0) + 1
        return super().__call__(predicted, expected) + self.seen


@breaks("it touches no global random state")
class Bootstrap(Accuracy):
    """Draws from numpy's global state."""

    def __call__(self, predicted: Any, expected: Any) -> float:
        np.random.rand()
        return super().__call__(predicted, expected)


@breaks("it leaves predictions and labels as they are")
class Rounds(Accuracy):
    """Sorts what it was given."""

    def __call__(self, predicted: Any, expected: Any) -> float:
        score = super().__call__(predicted, expected)
        predicted.sort()
        return score


# Data sets


class Sound(DataSet):
    """Texts in two classes.

    Options:
        size: how many
    """

    name = "sound"
    labels = Labels.of_classes(2)

    def __init__(self, *, size: Annotated[int, Field(ge=1)] = 4) -> None:
        self.size = size

    def load(self, split: Split) -> Examples:
        texts = tuple(f"text {row} of {split}" for row in range(self.size))
        return Examples((texts,), np.arange(self.size) % 2.0, tuple(f"{split}-{row}" for row in range(self.size)))

    def fingerprint(self) -> str:
        return f"{self.size} texts"


@breaks("examples are whole")
class TwiceTheId(Sound):
    """An id occurs twice."""

    def load(self, split: Split) -> Examples:
        found = super().load(split)
        return Examples(found.columns, found.labels, ("a",) * len(found))


@breaks("examples are whole")
class EmptyText(Sound):
    """A text is empty."""

    def load(self, split: Split) -> Examples:
        found = super().load(split)
        return Examples(((" ", *found.columns[0][1:]),), found.labels, found.ids)


@breaks("labels are what it says")
class LabelTooHigh(Sound):
    """A label is no class."""

    labels = Labels.of_classes(1)


@breaks("loading is repeatable")
class Unstable(Sound):
    """Gives its examples in another order each time."""

    def load(self, split: Split) -> Examples:
        self.turn = not getattr(self, "turn", False)
        found = super().load(split)
        return found if self.turn else Examples((found.columns[0][::-1],), found.labels, found.ids)


@breaks("loading is repeatable")
class Unfingerprinted(Sound):
    """Has another fingerprint each time."""

    def fingerprint(self) -> str:
        return str(time.monotonic_ns())


@breaks("a new process loads the same")
class Deduplicates(Sound):
    """Leaves out what occurs twice with a set, and keeps the set's order."""

    def __init__(self, *, size: Annotated[int, Field(ge=1)] = 20) -> None:
        super().__init__(size=size)

    def load(self, split: Split) -> Examples:
        found = super().load(split)
        return Examples((tuple(set(found.columns[0])),), found.labels, found.ids)


@breaks("it touches no global random state")
class Shuffles(Sound):
    """Draws from numpy's global state."""

    def load(self, split: Split) -> Examples:
        np.random.rand()
        return super().load(split)


@breaks("dev is not train again")
class OneSplit(Sound):
    """Has one split under three names."""

    def load(self, split: Split) -> Examples:
        return super().load("train")


@breaks("content follows the examples")
class ConstantContent(Sound):
    """Has one fingerprint for all sizes."""

    def fingerprint(self) -> str:
        return "some texts"


@pytest.mark.parametrize(("mutant", "law"), MUTANTS, ids=lambda x: getattr(x, "__name__", x))
def test_a_mutant_is_caught(mutant: type[Component], law: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(f"breaks the law {law!r}: ")):
        LAWS[mutant.kind, law](mutant)


def test_every_law_has_a_mutant() -> None:
    names = {law for _, law in MUTANTS}
    assert {law.name for law in LAWS.values() if law.holds in general.LAWS} <= names
    own = {key for key, law in LAWS.items() if law.holds not in general.LAWS and law.kind != "loss"}
    assert own <= {(mutant.kind, law) for mutant, law in MUTANTS}


def test_a_sound_data_set_passes() -> None:
    check(Sound)
    check(Sound, size=7)


def test_a_constructor_that_ends_the_program_breaks_laws_and_ends_nothing() -> None:
    class Leaves(MSE):
        """Ends the program."""

        name = "leaves"

        def __init__(self) -> None:
            raise SystemExit(3)

    with pytest.raises(AssertionError, match=r"loss 'leaves': \d+ laws break for one reason: SystemExit: 3"):
        check(Leaves)


def test_options_that_are_read_by_a_validator_of_their_own_pass() -> None:
    class Percent(MSE):
        """Takes shares, counts and text in base 64.

        Options:
            share: how much
            counts: how often
            text: in base 64
        """

        name = "percent"

        def __init__(
            self,
            *,
            share: Annotated[float, AfterValidator(abs)] = 0.0,
            counts: Counter[str] = Counter(),  # noqa: B006
            text: Base64Str = "",
        ) -> None:
            super().__init__()

    assert broken_laws(Percent) == []


def test_a_type_that_cannot_be_read_breaks_laws_and_ends_nothing() -> None:
    class Odd:
        @classmethod
        def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
            raise SystemExit(3)

    class Takes(MSE):
        """Takes what cannot be read."""

        name = "takes"

        def __init__(self, *, odd: Odd | None = None) -> None:
            super().__init__()

    Takes.__init__.__annotations__["odd"] = Odd
    assert "its options are annotated keyword arguments" in broken_laws(Takes)


def test_a_constructor_that_takes_ages_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Accuracy):
        """Takes its time."""

        name = "slow"

        def __init__(self) -> None:
            time.sleep(0.02)

    monkeypatch.setattr(general, "PATIENCE", 0.01)
    assert broken_laws(Slow) == ["making one is quick and prints nothing"]


def test_threads_are_as_they_were() -> None:
    seen: list[int] = []

    class Looks(Accuracy):
        """Looks at the number of threads."""

        name = "looks"

        def __call__(self, predicted: Any, expected: Any) -> float:
            seen.append(torch.get_num_threads())
            return super().__call__(predicted, expected)

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        check(Looks)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {1}


class OnlyBinary(Accuracy):
    """The share of right answers to yes-or-no questions."""

    name = "only_binary"

    def __call__(self, predicted: Any, expected: Any) -> float:
        if not set(np.unique([*predicted, *expected])) <= {0.0, 1.0}:
            raise TaskloomError("metric 'only_binary' should have labels of two classes")
        return super().__call__(predicted, expected)


class OnlyShares(Metric):
    """One less the mean distance of shares."""

    name = "only_shares"
    reads = "values"

    def __call__(self, predicted: Any, expected: Any) -> float:
        if expected.max() > 1:
            raise ValueError("metric 'only_shares' should have labels from 0 to 1")
        return 1 - float(np.abs(predicted - expected).mean())


class RefusesAll(Accuracy):
    """Takes nothing."""

    name = "refuses_all"

    def __call__(self, predicted: Any, expected: Any) -> float:
        raise ValueError("not these")


def test_metrics_may_refuse_some_labels_and_not_all() -> None:
    check(OnlyBinary)
    check(OnlyShares)
    with pytest.raises(AssertionError, match=r"it refuses every kind of labels: labels of 5 classes \(not these\); "):
        check(RefusesAll)
