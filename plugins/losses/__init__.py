"""The built-in losses."""

from taskloom.core import Component, hookimpl
from taskloom.plugins.losses.binary_cross_entropy import BinaryCrossEntropy
from taskloom.plugins.losses.cosine_embedding import CosineEmbedding
from taskloom.plugins.losses.cross_entropy import CrossEntropy
from taskloom.plugins.losses.dynamic_margin import DynamicMargin
from taskloom.plugins.losses.mnr import MNR
from taskloom.plugins.losses.mnr_hinge import MNRHinge
from taskloom.plugins.losses.mse import MSE
from taskloom.plugins.losses.simcse import SimCSE
from taskloom.plugins.losses.smart import Smart
from taskloom.plugins.losses.total import Total


@hookimpl
def taskloom_components() -> list[type[Component]]:
    return [BinaryCrossEntropy, CosineEmbedding, CrossEntropy, DynamicMargin, MNR, MNRHinge, MSE, SimCSE, Smart, Total]
