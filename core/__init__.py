"""taskloom.core: the five interfaces, what flows between them, specifications, hooks and the conformance kit.

Names are loaded when they are first used, so that a command which only reads the ledger imports no torch. The imports
below are the list of public names: type checkers read them, and so does this module, from its own source.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskloom.core.combiner import GradientCombiner as GradientCombiner
    from taskloom.core.combiner import Step as Step
    from taskloom.core.component import Component as Component
    from taskloom.core.component import derive_seed as derive_seed
    from taskloom.core.data import DataSet as DataSet
    from taskloom.core.data import Examples as Examples
    from taskloom.core.data import Labels as Labels
    from taskloom.core.data import Metric as Metric
    from taskloom.core.data import Split as Split
    from taskloom.core.encoder import Encoder as Encoder
    from taskloom.core.engine import ENDS as ENDS
    from taskloom.core.engine import Emit as Emit
    from taskloom.core.engine import Engine as Engine
    from taskloom.core.engine import Event as Event
    from taskloom.core.engine import Job as Job
    from taskloom.core.engine import Work as Work
    from taskloom.core.errors import DataError as DataError
    from taskloom.core.errors import DeviceError as DeviceError
    from taskloom.core.errors import EngineError as EngineError
    from taskloom.core.errors import OutOfMemory as OutOfMemory
    from taskloom.core.errors import PluginError as PluginError
    from taskloom.core.errors import Problem as Problem
    from taskloom.core.errors import RegistryError as RegistryError
    from taskloom.core.errors import RequestError as RequestError
    from taskloom.core.errors import TaskloomError as TaskloomError
    from taskloom.core.errors import TrainingError as TrainingError
    from taskloom.core.errors import WeightsError as WeightsError
    from taskloom.core.errors import unknown as unknown
    from taskloom.core.forward import predict as predict
    from taskloom.core.gradients import Gradients as Gradients
    from taskloom.core.gradients import TaskGradients as TaskGradients
    from taskloom.core.gradients import combine_gradients as combine_gradients
    from taskloom.core.gradients import densify_gradients as densify_gradients
    from taskloom.core.gradients import gramian_of as gramian_of
    from taskloom.core.gradients import products_of as products_of
    from taskloom.core.gradients import take_gradients as take_gradients
    from taskloom.core.head import Head as Head
    from taskloom.core.head import SharedModules as SharedModules
    from taskloom.core.hookspecs import hookimpl as hookimpl
    from taskloom.core.loss import Expects as Expects
    from taskloom.core.loss import Loss as Loss
    from taskloom.core.loss import LossProgram as LossProgram
    from taskloom.core.loss import run_program as run_program
    from taskloom.core.overall import Overall as Overall
    from taskloom.core.prediction import Prediction as Prediction
    from taskloom.core.prediction import Replay as Replay
    from taskloom.core.prediction import ReplayRequest as ReplayRequest
    from taskloom.core.prediction import ScoreMeans as ScoreMeans
    from taskloom.core.random import Dropout as Dropout
    from taskloom.core.random import bind_generator as bind_generator
    from taskloom.core.random import derive_generator as derive_generator
    from taskloom.core.random import init_linear as init_linear
    from taskloom.core.random import new_linear as new_linear
    from taskloom.core.sampler import Group as Group
    from taskloom.core.sampler import Pool as Pool
    from taskloom.core.sampler import Rows as Rows
    from taskloom.core.sampler import Sampler as Sampler
    from taskloom.core.sampler import TaskBatch as TaskBatch
    from taskloom.core.specs import CellSpec as CellSpec
    from taskloom.core.specs import ComponentSpec as ComponentSpec
    from taskloom.core.specs import GridSpec as GridSpec
    from taskloom.core.specs import OptimizerSpec as OptimizerSpec
    from taskloom.core.specs import ResourcesSpec as ResourcesSpec
    from taskloom.core.specs import RunSpec as RunSpec
    from taskloom.core.specs import ScheduleSpec as ScheduleSpec
    from taskloom.core.specs import StageSpec as StageSpec
    from taskloom.core.specs import TableSpec as TableSpec
    from taskloom.core.specs import TaskSpec as TaskSpec
    from taskloom.core.tokens import Ids as Ids
    from taskloom.core.tokens import Reads as Reads
    from taskloom.core.tokens import SpecialTokens as SpecialTokens
    from taskloom.core.tokens import Tokens as Tokens
    from taskloom.core.tokens import arrange as arrange
    from taskloom.core.tokens import place_arrays as place_arrays
    from taskloom.core.tracker import TrackedRun as TrackedRun
    from taskloom.core.tracker import Tracker as Tracker
    from taskloom.core.tracker import figures as figures
    from taskloom.core.work import find_work as find_work
    from taskloom.core.work import is_out_of_memory as is_out_of_memory
    from taskloom.core.work import perform as perform
    from taskloom.core.work import reason_of as reason_of


def _read_homes() -> dict[str, str]:
    """Public name → the module that defines it."""
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


_HOMES = _read_homes()
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
