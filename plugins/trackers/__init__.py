"""Built-in trackers: where curves, parameters, final scores and tables go beside the registry."""

from taskloom.core import Component, hookimpl
from taskloom.plugins.trackers.jsonl import JSONL
from taskloom.plugins.trackers.mlflow import MLflow
from taskloom.plugins.trackers.tensorboard import TensorBoard
from taskloom.plugins.trackers.wandb import Trackio, WandB


@hookimpl
def taskloom_components() -> list[type[Component]]:
    return [JSONL, MLflow, TensorBoard, Trackio, WandB]
