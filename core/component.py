"""What all pluggable classes have in common."""

from typing import Any, ClassVar


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
    #: Options that change no result, and so no identity: where something lies (its content counts), what is refused.
    location_options: ClassVar[frozenset[str]] = frozenset()
    #: Other distributions that do its arithmetic: their versions are part of a result's identity too.
    relies_on: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # A class without a docstring of its own must not show its base's in the catalogue.
        if cls.__doc__ is None:
            cls.__doc__ = ""
