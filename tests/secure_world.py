"""Masked uploads by hand: simulated devices, a helper, and the server's part."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import numpy as np

from fl_app.core.types import Order, Update, Upload
from fl_app.core.weighting import Weighting
from fl_app.secure.helper import Helper
from fl_app.secure.ledger import Ledger
from fl_app.secure.masked import Masked
from fl_app.secure.request import Member, Request, Terms
from fl_app.secure.server import SecureAggregation
from fl_app.secure.simulated import find_device, helper_key
from fl_app.secure.simulated import keys as simulated_keys

SIZE, CLIENTS = 64, 6
KEYS = partial(simulated_keys, 0)
TERMS = Terms("task", "fedbuff", "", "delta", SIZE, 4.0, 2.0**18)


class NoMask:
    """A mask of zeros; the seed has no effect."""

    def __init__(self, seed): ...

    def next(self, count):
        return np.zeros(count, np.uint32)


def upload(vector, examples=10):
    return Upload(vector.copy(), "delta", examples, 0.5)


def masked(
    vector, client, *, sequence=0, base_version=3, examples=10, terms=TERMS, keys=KEYS, bare=False
):
    """The update of a client's masked upload; if `bare`, it is rounded but not masked."""
    order = Order(9, client, sequence, base_version, vector, {"run": terms.run}, 0.0)
    mask = Masked(replace(terms, run=""), seed=0, keys=keys)
    with patch("fl_app.secure.masked.Mask", NoMask) if bare else nullcontext():
        sent = mask.send(order, upload(vector, examples))
    return Update.of(sent, client, base_version, 9)


def vectors(count=CLIENTS, seed=0, size=SIZE):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(size).astype(np.float32) / 8 for _ in range(count)]


def helper(bound=3, ledger=None):
    return Helper(helper_key(0), partial(find_device, 0, CLIENTS), ledger or Ledger(), bound)


def request(updates, version=3, weighting=None, terms=TERMS):
    weighting = weighting or Weighting("polynomial", exponent=0.5)
    return Request(terms, version, weighting, [Member.of(update) for update in updates])


def server(proxy=None, bound=3, members=CLIENTS, **weighting):
    return SecureAggregation(
        proxy or helper(bound).sum, TERMS, Weighting(**weighting), members=members
    )
