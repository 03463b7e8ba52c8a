"""Labels in files: class numbers, class names, several spellings of one class, or values."""

from typing import Annotated

from pydantic import Field

from taskloom.core import Labels

Classes = (
    Annotated[int, Field(ge=2)]
    | Annotated[list[str], Field(min_length=2)]
    | Annotated[dict[str, Annotated[int, Field(ge=0)]], Field(min_length=2)]
)


def read_number(text: str) -> float:
    """A number as files write it; ``ValueError`` for anything else, also for Python's ``1_000``."""
    return float(text.replace("_", "?"))


def is_number(text: str) -> bool:
    try:
        read_number(text)
    except ValueError:
        return False
    return True


def spelling(label: str) -> str:
    """A label in the form in which it is compared: equal numbers are equal, however they are written.

    >>> spelling("1.0"), spelling("positive")
    ('1', 'positive')
    """
    return f"{read_number(label):g}" if is_number(label) else label


def labels_of(label: str | None, classes: Classes | None, range: tuple[float, float] | None) -> Labels | None:
    """The meaning of the labels, from the options ``label``, ``classes`` and ``range``."""
    options = [name for name, value in (("classes", classes), ("range", range)) if value is not None]
    if len(options) != (label is not None):
        needs = "exactly one of classes and range" if label is not None else "neither classes nor range without label"
        raise ValueError(f"{needs} should be given. Found {' and '.join(options) or 'none'}.")
    if range is not None:
        if not range[0] < range[1]:
            raise ValueError(f"range should go from low to high. Found {list(range)}.")
        return Labels.of_range(*range)
    if classes is None or isinstance(classes, int):
        return None if classes is None else Labels.of_classes(classes)
    numbered = _numbered(classes)
    numbers = sorted(set(numbered.values()))
    if len(numbers) < 2 or numbers[-1] != len(numbers) - 1:
        listed = ", ".join(map(str, numbers))
        raise ValueError(f"classes should have the numbers 0, 1, 2 … without a gap. Found {listed}.")
    names = {number: name for name, number in reversed(numbered.items())}  # the first of each
    return Labels.of_classes(len(numbers), [names[number] for number in numbers])


def spellings_of(classes: Classes | None) -> dict[str, int]:
    """Spelling of a class in files → its number; empty where files have the numbers."""
    if classes is None or isinstance(classes, int):
        return {}
    numbers = {spelling(name): number for name, number in _numbered(classes).items()}
    if len(numbers) < len(classes):
        raise ValueError(f"classes should be different names. Found {list(classes)}.")
    return numbers


def _numbered(classes: list[str] | dict[str, int]) -> dict[str, int]:
    return classes if isinstance(classes, dict) else {name: number for number, name in enumerate(classes)}
