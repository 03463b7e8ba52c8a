"""The built-in gradient combiners."""

from taskloom.core import Component, hookimpl
from taskloom.plugins.combiners.aligned_mtl import AlignedMTL
from taskloom.plugins.combiners.cagrad import CAGrad
from taskloom.plugins.combiners.dwa import DWA
from taskloom.plugins.combiners.famo import FAMO
from taskloom.plugins.combiners.gradvac import GradVac
from taskloom.plugins.combiners.gse import GSE
from taskloom.plugins.combiners.imtl_g import IMTLG
from taskloom.plugins.combiners.mean import Mean
from taskloom.plugins.combiners.mgda import MGDA
from taskloom.plugins.combiners.nash_mtl import NashMTL
from taskloom.plugins.combiners.pcgrad import PCGrad
from taskloom.plugins.combiners.sum import Sum
from taskloom.plugins.combiners.torchjd import TorchJD
from taskloom.plugins.combiners.uncertainty import Uncertainty
from taskloom.plugins.combiners.weighted import Weighted


@hookimpl
def taskloom_components() -> list[type[Component]]:
    return [
        AlignedMTL,
        CAGrad,
        DWA,
        FAMO,
        GSE,
        GradVac,
        IMTLG,
        MGDA,
        Mean,
        NashMTL,
        PCGrad,
        Sum,
        TorchJD,
        Uncertainty,
        Weighted,
    ]
