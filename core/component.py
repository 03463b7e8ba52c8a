"""What all pluggable classes have in common. No torch, so that data sets and metrics need none."""

import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:  # commands that only read the ledger import none of it
    from pydantic_core import CoreSchema
    from pydantic_core.core_schema import ValidationInfo

#: Where the JSON schema of an option refers to the components of a kind.
KIND_REF = "https://taskloom/kinds/"


def kind_schema(kind: str) -> dict[str, Any]:
    """The JSON schema of any component of a kind: a reference into the schema of all grids."""
    return {"allOf": [{"$ref": f"{KIND_REF}{kind}"}]}


def derive_seed(seed: int, *names: str | int) -> int:
    """A seed for one purpose, independent of all others and of the order of calls.

    >>> derive_seed(1, "head", "sst") == derive_seed(1, "head", "sst") != derive_seed(1, "head", "sts")
    True
    """
    text = "\x1f".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


class Component:
    """A class that a grid can name.

    A subclass sets ``name`` (what users type) and states its options as annotated keyword arguments of
    ``__init__``; from them the catalogue derives the model that validates a grid and the schema that completes
    it in an editor. Constructing a component is cheap and only checks options. What needs sizes, files or
    randomness happens in ``build`` or ``prepare``, which the runner calls once before training.

    An option may itself be a component: annotate it with the interface (``loss: Loss``) and the grid may
    give a name or an object there.
    """

    kind: ClassVar[str] = "component"
    name: ClassVar[str] = ""
    #: Options that change no result, and so no identity: locations (the content counts), what is refused.
    location_options: ClassVar[frozenset[str]] = frozenset()
    #: Options that name files or folders: a relative path in a grid's file is relative to that file. Locations change
    #: no result, so they are location options as well.
    path_options: ClassVar[frozenset[str]] = frozenset()
    #: Other distributions that do its arithmetic: their versions are recorded, and tables name rows that differ there.
    relies_on: ClassVar[tuple[str, ...]] = ()
    #: An integer from 1 on that its author raises when the results of the component change, by code or by a default:
    #: results of another revision are not reused. For a built-in, None counts as 1. A third party's component that
    #: states none is identified by a fingerprint of its distribution's code, in which comments and docstrings play no
    #: part; who states one answers for it. A revision inherited from a class of another distribution is not stated.
    revision: ClassVar[int | None] = None

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> "CoreSchema":
        if "kind" not in vars(cls) or cls is Component:
            wanted = "an option that takes a component should be annotated with an interface such as Loss"
            raise TypeError(f"{wanted}. Found {cls.__name__}.")
        from pydantic_core.core_schema import with_info_plain_validator_function

        return with_info_plain_validator_function(partial(_read_component, cls.kind))

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: "CoreSchema", handler: Any) -> dict[str, Any]:
        return kind_schema(cls.kind)


def _read_component(kind: str, value: Any, info: "ValidationInfo") -> Any:
    """A component inside an option, which the validation context resolves or constructs; without one as it is."""
    if not isinstance(value.get("name") if isinstance(value, dict) else value, str):
        from pydantic_core import PydanticCustomError

        raise PydanticCustomError("component", "should be a component: a name, or an object with name and options")
    return info.context(kind, value) if info.context else value
