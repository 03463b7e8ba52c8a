"""The size of a cell before it runs: its steps, and the bytes of its weights."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from pydantic_core import to_json
from torch import nn

from taskloom.core import DataSet, Encoder, Pool, Sampler, SharedModules
from taskloom.registry.installed.catalogue import Catalogue
from taskloom.runs.grid.hold_out import split_off
from taskloom.runs.training.checkpoint import module_state
from taskloom.runs.training.feed import numbered_texts
from taskloom.runs.training.model import requested_poolings

Spec = Mapping[str, Any]


class Sizes:
    """Steps and weights of resolved runs; data and encoders that runs share are read and built once."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._known: dict[bytes, Any] = {}

    def steps(self, spec: Spec) -> int:
        """Optimizer steps of all stages."""
        return sum(self._stage(spec, stage) for stage in spec["stages"])

    def weights(self, spec: Spec) -> int:
        """Bytes of the encoder's, the heads' and the losses' tensors, equal for every seed."""
        tasks = {name: self._catalogue.make_task(name, task) for name, task in spec["tasks"].items()}
        poolings = requested_poolings(tasks)
        key = to_json([spec["encoder"], sorted(poolings)])
        if key not in self._known:
            encoder = self._catalogue.make(Encoder, spec["encoder"])
            encoder.requested_poolings = poolings
            encoder.build(generator=torch.Generator())
            self._known[key] = encoder.width, _bytes(encoder)
        width, size = self._known[key]
        shared, generator = SharedModules(0), torch.Generator()
        for name, task in tasks.items():
            task.build_head(width=width, generator=generator, shared=shared)
            task.loss.prepare(labels=task.labels, rows=self._pool(spec, name).size)
        modules = [shared, *(module for task in tasks.values() for module in (task.head, task.loss))]
        return int(size + _bytes(nn.ModuleList(modules)))

    def _stage(self, spec: Spec, stage: Spec) -> int:
        data_specs = {name: spec["tasks"][name]["data"] for name in stage["tasks"]}
        key = to_json([stage["sampler"], stage["epochs"], data_specs, spec.get("hold_out")])
        if key not in self._known:
            sampler = self._catalogue.make(Sampler, stage["sampler"])
            pools = {name: self._pool(spec, name) for name in data_specs}
            sampler.prepare(pools, generator=torch.Generator(), epochs=stage["epochs"])
            self._known[key] = sampler.steps * stage["epochs"]
        return int(self._known[key])

    def _pool(self, spec: Spec, task: str) -> Pool:
        data, hold_out = spec["tasks"][task]["data"], spec.get("hold_out")
        key = to_json(["pool", data, hold_out])
        if key not in self._known:
            examples = self._catalogue.make(DataSet, dict(data)).load("train")
            examples = examples if hold_out is None else split_off(examples, hold_out)[0]
            lengths = np.array([sum(map(len, row)) for row in zip(*examples.columns, strict=True)])  # in characters
            self._known[key] = Pool(len(examples), examples.labels, lengths, numbered_texts(examples))
        pool: Pool = self._known[key]
        return pool


def _bytes(module: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in module_state(module, "").values())
