"""The built-in heads."""

from taskloom.core import Component, hookimpl
from taskloom.plugins.heads.both_orders import BothOrders
from taskloom.plugins.heads.cosine import Cosine
from taskloom.plugins.heads.cosine_features import CosineFeatures
from taskloom.plugins.heads.cosine_sigmoid import CosineSigmoid
from taskloom.plugins.heads.embedding import Embedding
from taskloom.plugins.heads.linear import Linear
from taskloom.plugins.heads.shared_layer import SharedLayer


@hookimpl
def taskloom_components() -> list[type[Component]]:
    return [BothOrders, Cosine, CosineFeatures, CosineSigmoid, Embedding, Linear, SharedLayer]
