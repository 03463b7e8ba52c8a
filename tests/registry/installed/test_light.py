"""Data sets and metrics are made without torch, and are what the whole catalogue makes."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from taskloom.core import Component, DataSet, Metric, RequestError
from taskloom.registry.installed.catalogue import load_catalogue
from taskloom.registry.installed.light import make_light, own_components

SPECS: list[tuple[type[Component], dict[str, Any]]] = [
    (DataSet, {"name": "generated", "task": "sentiment", "dev_size": 7}),
    (
        DataSet,
        {"name": "table", "train": "a.csv", "dev_share": 0.5, "text": "t", "label": "l", "classes": ["no", "yes"]},
    ),
    (Metric, {"name": "macro_f1"}),
]


@pytest.mark.parametrize(("interface", "spec"), SPECS)
def test_it_is_what_the_catalogue_makes(interface: type[Component], spec: dict[str, Any]) -> None:
    light, whole = make_light(interface, spec), load_catalogue().make(interface, spec)
    assert type(light) is type(whole)
    assert repr(vars(light)) == repr(vars(whole))


def test_our_data_sets_and_metrics_need_no_torch() -> None:
    for kind in ("data", "metric"):
        assert set(own_components(kind)) == set(load_catalogue().names(kind))
    code = (
        "import sys\nfrom taskloom.core import DataSet, Metric\n"
        "from taskloom.registry.installed.light import make_light\n"
        "make_light(DataSet, {'name': 'generated', 'task': 'similarity'}).load('dev')\n"
        "make_light(Metric, {'name': 'pearson'})\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_third_partys_is_made_by_the_whole_catalogue(install: Callable[..., None]) -> None:
    install(
        "half",
        """
        from taskloom.core import Metric, hookimpl

        class Half(Metric):
            name = "half"

            def __call__(self, predicted, expected):
                return 0.5

        @hookimpl
        def taskloom_components():
            return [Half]
        """,
    )
    assert make_light(Metric, {"name": "half"}).name == "half"


@pytest.mark.parametrize(
    "spec", [{"name": "generated"}, {"name": "genrated"}, {"name": "table", "train": "a", "text": "t"}]
)
def test_what_is_wrong_is_said_as_ever(spec: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as light:
        make_light(DataSet, spec)
    with pytest.raises(RequestError) as whole:
        load_catalogue().make(DataSet, spec)
    assert str(light.value) == str(whole.value)
