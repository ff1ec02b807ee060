"""Seeds on a Dask cluster (``cleancut simulate sweep --dask URL``), for those who outgrow one machine.

The same seed is the same run only for the same code: each worker is asked which build it is, at first and again with each
seed (workers come and go), and a stranger ends the sweep. Dask is imported here only, and is not needed otherwise.

One seed at a time in each worker process, whatever its number of threads: a planted bug changes code for all of them, and one
interpreter runs one thread anyway. So ``dask worker --nworkers N --nthreads 1``.
"""

from __future__ import annotations

import importlib
import logging
import re
from queue import Empty, SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from coordinator.cli.exits import Exit, Failure
from protocol.version import __version__
from simulations.build import build_digest, python_version
from simulations.sweep import lost, run_seed, run_seed_of_drivers

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from simulations.run import Outcome

CONNECT_SECONDS: Final = 10
WORKERS_SECONDS: Final = 30
"""Until the first worker has come."""
TICK_SECONDS: Final = 0.5
ALONE_TICKS: Final = 120
"""Without any worker, until it is given up."""
LOOK_TICKS: Final = 20
RESULT_SECONDS: Final = 60
AHEAD: Final = 2
"""Seeds per thread that the scheduler has: one runs, one waits."""
_ONE_AT_A_TIME: Final = Lock()
_URL: Final = re.compile(r"(?:(?:tcp|tls|ws|wss)://)?[^\s/]+:(?P<port>[0-9]{1,5})")

# By value: a worker that has no Cleancut could not even take in a function of this module.
_WHO: Final = """
def who():
    try:
        from simulations.build import build_digest, python_version
    except ImportError as error:
        return ("", str(error))
    return (build_digest(), python_version())
"""


def run_on_dask(
    seeds: Iterator[int], *, url: str, mutant: str = "", runtimes: bool = False
) -> Generator[Outcome | None]:
    """Outcomes, as they come; None when none has come for a moment.

    Args:
        seeds: Asked for the next one when the cluster can take it.
        url: Of the scheduler, such as ``tcp://10.0.0.7:8786``.
        mutant: A planted bug.
        runtimes: In the second mode.

    Raises:
        Failure: There is no Dask, no scheduler (any more) or no worker, or a worker is of another build.
    """
    client = _connected(url)
    try:
        yield from _Sweep(client, url, mutant, runtimes=runtimes).run(seeds)
    finally:
        client.close(timeout=CONNECT_SECONDS)


def run_there(seed: int, mutant: str, build: str, *, runtimes: bool = False) -> Outcome | str:
    """What a worker does: the outcome, or why it must not run it."""
    own = build_digest()
    if own != build:
        return own or "a build whose sources cannot be read"
    with _ONE_AT_A_TIME:
        return run_seed_of_drivers(seed, mutant) if runtimes else run_seed(seed, mutant)


def _connected(url: str) -> Any:  # noqa: ANN401 - distributed has no types that are worth it
    try:
        distributed = importlib.import_module("distributed")
    except ImportError as error:
        raise Failure(
            Exit.USAGE, f"sweep --dask needs Dask, which is not installed ({error})", "pip install 'cleancut[dask]'"
        ) from None
    _check_url(url)
    # What is to be said of a lost scheduler is said below, once.
    # Some of its loggers have a level of their own.
    for logger in ("distributed", *logging.root.manager.loggerDict):
        if logger.startswith("distributed"):
            logging.getLogger(logger).setLevel(logging.CRITICAL)
    try:
        client = distributed.Client(url, timeout=CONNECT_SECONDS, name="cleancut-sweep", set_as_default=False)
    except (OSError, TimeoutError, ValueError, TypeError, ImportError) as error:
        raise Failure(
            Exit.UNREACHABLE,
            f"no Dask scheduler at {url}: {str(error) or type(error).__name__}",
            "start one with `dask scheduler`, and workers of this build with `dask worker URL --nthreads 1`",
        ) from None
    return client


def _check_url(url: str) -> None:
    """So that a slip of the pen is said at once, and not after a connection's patience."""
    match = _URL.fullmatch(url)
    if match is None or not 0 < int(match["port"]) < 65536:
        raise Failure(Exit.USAGE, f"{url[:80]!r} is no address of a Dask scheduler", "such as tcp://10.0.0.7:8786")


class _Sweep:
    """One sweep over a connected client."""

    def __init__(self, client: Any, url: str, mutant: str, *, runtimes: bool) -> None:  # noqa: ANN401 - as above
        self._client = client
        self._url = url
        self._mutant = mutant
        self._runtimes = runtimes
        self._build = build_digest()
        self._ended: SimpleQueue[Any] = SimpleQueue()
        self._open: dict[str, tuple[Any, int]] = {}
        """Key -> future and seed."""
        self._window = 0
        self._alone = 0

    def run(self, seeds: Iterator[int]) -> Generator[Outcome | None]:
        """See `run_on_dask`."""
        self._check_workers()
        ticks = 0
        more = True
        try:
            while True:
                while more and len(self._open) < self._window:
                    seed = next(seeds, None)
                    if seed is None:
                        more = False
                    else:
                        self._submit(seed)
                if not self._open:
                    return
                try:
                    future = self._ended.get(timeout=TICK_SECONDS)
                except Empty:
                    ticks += 1
                    self._look(ticks)
                    yield None
                    continue
                self._alone = 0
                yield self._outcome(future)
        finally:
            if self._client.status == "running":
                self._client.cancel([future for future, _ in self._open.values()], force=True)

    def _submit(self, seed: int) -> None:
        future = self._client.submit(
            run_there,
            seed,
            self._mutant,
            self._build,
            runtimes=self._runtimes,
            pure=False,
            key=f"{self._client.id}-seed-{seed}",
        )
        self._open[future.key] = (future, seed)
        future.add_done_callback(self._ended.put)

    def _outcome(self, future: Any) -> Outcome:  # noqa: ANN401 - a future of distributed
        _, seed = self._open.pop(future.key)
        if future.status == "cancelled" or self._client.status != "running":
            raise self._gone()
        try:
            found = future.result(timeout=RESULT_SECONDS)
        except (ImportError, AttributeError) as error:
            raise Failure(
                Exit.REFUSED, f"a Dask worker cannot run seed {seed}: {error}", "install this build of Cleancut there"
            ) from None
        except Exception as error:
            if self._client.status != "running":
                raise self._gone() from None
            if type(error).__name__ != "KilledWorker":
                raise Failure(Exit.REFUSED, f"Dask failed with seed {seed}: {type(error).__name__}: {error}") from error
            return lost(seed, "died, on each Dask worker that tried it (out of memory?)")
        if isinstance(found, str):
            raise self._stranger("a Dask worker that came later", found, "")
        return found  # type: ignore[no-any-return]  # what `run_there` gives

    def _check_workers(self) -> None:
        try:
            self._client.wait_for_workers(1, timeout=WORKERS_SECONDS)
        except TimeoutError:
            raise Failure(
                Exit.UNREACHABLE,
                f"the Dask scheduler at {self._url} has no workers",
                f"start some: dask worker {self._url} --nworkers N --nthreads 1",
            ) from None
        scope: dict[str, Any] = {"__name__": "__main__"}
        exec(_WHO, scope)  # noqa: S102 - a constant of this module
        for address, answer in sorted(self._client.run(scope["who"], on_error="return").items()):
            if isinstance(answer, BaseException):
                raise Failure(Exit.REFUSED, f"the Dask worker {address} does not answer: {answer}")
            build, more = answer
            if build != self._build:
                raise self._stranger(f"the Dask worker {address}", build, more)
            if more != python_version():
                raise Failure(
                    Exit.REFUSED,
                    f"the Dask worker {address} runs Python {more}, and this is {python_version()}: results might differ",
                    "use the same version there",
                )
        self._window = AHEAD * max(1, sum(self._client.nthreads().values()))

    def _look(self, ticks: int) -> None:
        """Nothing has come for a moment: is there anybody?"""
        if self._client.status != "running":
            raise self._gone()
        if ticks % LOOK_TICKS:
            return
        try:
            threads = sum(self._client.nthreads().values())
        except OSError:
            raise self._gone() from None
        self._window = max(self._window, AHEAD * threads)
        self._alone = 0 if threads else self._alone + LOOK_TICKS
        if self._alone >= ALONE_TICKS:
            raise Failure(Exit.UNREACHABLE, f"the Dask scheduler at {self._url} has no workers any more")

    def _gone(self) -> Failure:
        running = ", ".join(str(seed) for _, seed in list(self._open.values())[:8])
        return Failure(
            Exit.UNREACHABLE,
            f"the Dask scheduler at {self._url} is gone" + (f"; seeds {running} were running" if running else ""),
            "run the rest again with --seeds",
        )

    def _stranger(self, who: str, build: str, why: str) -> Failure:
        has = f"runs another build of Cleancut ({build})" if build else f"has no Cleancut ({why})"
        return Failure(
            Exit.REFUSED,
            f"{who} {has}; this is {__version__}, build {self._build}: the same seed would be another run",
            "install this very commit there",
        )
