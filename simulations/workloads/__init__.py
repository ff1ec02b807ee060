"""What the agents of a simulated cluster do. A workload says what its messages and states carry, for conservation (I5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from simulations.workloads.bank import Bank
from simulations.workloads.base import Workload
from simulations.workloads.conversation import Conversation
from simulations.workloads.growth import Growth
from simulations.workloads.hot_spot import HotSpot
from simulations.workloads.orders import Orders
from simulations.workloads.pipeline import Pipeline
from simulations.workloads.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulations.options import Options

    MakeWorkload = Callable[[Options, dict[str, tuple[str, ...]]], Workload]


def workload_of(options: Options, targets: dict[str, tuple[str, ...]]) -> Workload:
    """The workload that the options name.

    Args:
        options: Of the run.
        targets: Participant -> participants that it may send to.
    """
    return _KINDS[options.workload](options, targets)


def kind_of(options: Options) -> type[Workload]:
    """What the agents of a world do; of users' agents nothing is known."""
    return _KINDS.get(options.workload, Workload)


_KINDS: Final[dict[str, type[Workload]]] = {
    "bank": Bank,
    "ring": Ring,
    "pipeline": Pipeline,
    "conversation": Conversation,
    "growth": Growth,
    "hot-spot": HotSpot,
    "orders": Orders,
}
