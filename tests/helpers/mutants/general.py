"""Metrics that break a law of every component."""

from typing import Annotated, Any, Literal

from mutants.base import Cosine, mutant
from pydantic import AfterValidator, Field


class Percent(Cosine):
    """Has options of many types, all of them sound.

    Options:
        share: how much
        mode: in which way
        device: where
    """

    name = "percent"

    def __init__(
        self,
        *,
        share: Annotated[float, Field(ge=0, le=100), AfterValidator(lambda one: one / 100)] = 0.0,
        mode: Literal["plain", "fast"] = "plain",
        device: Annotated[int, Field(ge=0)] | None = None,
    ) -> None:
        if device == 0 and mode == "fast":
            raise ValueError("device 0 is not fast")


def positional(self: Any, share: float = 0.5) -> None: ...


def anything(self: Any, *, share: Any = 0.5) -> None: ...


def undocumented(self: Any, *, share: float = 0.5) -> None: ...


def no_json(self: Any, *, share: float = float("nan")) -> None: ...


def growing(self: Any, *, shares: list[float] = []) -> None:  # noqa: B006
    shares.append(1.0)


def choosy(self: Any, *, way: Literal["one", "two"] = "one") -> None:
    self.factor = {"one": 1}[way]


SHARE = "Takes an option.\n\nOptions:\n    share: how much\n    shares: how much of each\n    way: how"
SOUND: list[tuple[type, dict[str, Any]]] = [(Percent, {})]
MUTANTS = {
    "it has a name and a summary": [
        mutant(Cosine, "has a name with capitals", name="Not A Name"),
        mutant(Cosine, ""),
    ],
    "its options are annotated and documented": [
        mutant(Cosine, SHARE, __init__=positional),
        mutant(Cosine, SHARE, __init__=anything),
        mutant(Cosine, "does not say what its option does", __init__=undocumented),
        mutant(Cosine, SHARE, __init__=no_json),
        mutant(Cosine, "has a location that is not an option", location_options=frozenset({"folder"})),
    ],
    "making one leaves its defaults as they are": [mutant(Cosine, SHARE, __init__=growing)],
    "it takes what its options allow or says why not": [mutant(Cosine, SHARE, __init__=choosy)],
}
