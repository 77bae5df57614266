"""Simulated worlds with known ground truth, and loaders of public data sets."""

from offpolicy.datasets.coat import load_coat
from offpolicy.datasets.jester import JesterDesign, JesterWorld, load_jester, simulate_log
from offpolicy.datasets.kuairec import load_kuairec
from offpolicy.datasets.obd import Campaign, load_obd
from offpolicy.datasets.ranking_data import CandidateLists, RankingData
from offpolicy.datasets.request_worlds import RequestWorld
from offpolicy.datasets.synthetic import ExtremeShape, ExtremeWorld, LinearSoftmaxWorld
from offpolicy.datasets.xmc import Csr, XmcData, load_xmc
from offpolicy.datasets.yahoo_r3 import load_yahoo_r3

__all__ = [
    "Campaign",
    "CandidateLists",
    "Csr",
    "ExtremeShape",
    "ExtremeWorld",
    "JesterDesign",
    "JesterWorld",
    "LinearSoftmaxWorld",
    "RankingData",
    "RequestWorld",
    "XmcData",
    "load_coat",
    "load_jester",
    "load_kuairec",
    "load_obd",
    "load_xmc",
    "load_yahoo_r3",
    "simulate_log",
]
