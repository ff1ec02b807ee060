"""One run of users' agents, and what its test is told of it: the failure's message, its files, its commands.

What is asked for besides comes from variables (`simulations.user`): by hand, or from `cleancut simulate`, which starts the
test with them and reads what it is told back (`simulations.user_command`).
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from protocol.errors import ConfigError
from simulations.replay_files import begin_trace, end_trace, stored
from simulations.shrink import TRIALS_MAX
from simulations.user_runs import UserShrinker, picture, run_plan
from simulations.user_test import (
    EXPLAIN,
    OUTPUT,
    PROGRESS,
    REPLAY,
    RESULT,
    SEED,
    SHRINK,
    TRACE,
    WINDOW,
    again_command,
    short,
    shown,
    store,
    write,
)
from simulations.world import SECOND

if TYPE_CHECKING:
    from simulations.options import Run
    from simulations.run import Outcome
    from simulations.user_workload import UserPlan


class Reported:
    """One run, and what is told of it."""

    def __init__(self, plan: UserPlan, what: Run, *, test: str, alone: bool) -> None:
        self._plan = plan
        self._what = what
        self._test = test
        self._alone = alone
        self._said: list[str] = []
        self._smaller: Run | None = None
        self.outcome: Outcome
        self.cuts = 0

    def carry_out(self) -> None:
        """Run it.

        Raises:
            AssertionError: It fails.
        """
        __tracebackhide__ = True  # pytest shows the user's own line
        if self._alone:
            self._traced()
        else:
            self.outcome, self.cuts = run_plan(self._plan, self._what)
        if self.outcome.ok:
            if self._alone:
                self._draw()
                self._tell_command("")
            return
        message = self._failure()
        self._tell_command(message)
        raise AssertionError(message)

    def _traced(self) -> None:
        path = os.environ.get(TRACE, "")
        print(_described(self._what))  # noqa: T201 - what SIM_SEED is for
        with open(path, "w", encoding="utf-8") if path else nullcontext(sys.stdout) as file:
            if path:
                begin_trace(file, self._what)
            self.outcome, self.cuts = run_plan(self._plan, self._what, trace_file=file)
            if path:
                end_trace(file, self.outcome)
        if self._what.digest and self._what.digest != self.outcome.digest:
            print("other events than when the file was written: the test, or Cleancut, has changed")  # noqa: T201 - as above

    def _failure(self) -> str:
        outcome = self.outcome
        again, _ = run_plan(self._plan, self._what)
        lines = [
            f"seed {self._what.options.seed}: {outcome.invariant} is broken ({outcome.kind}): {outcome.text}",
            _described(self._what).partition("\n")[0],
            f"faults that fired: {', '.join(f'{kind} {count}' for kind, count in outcome.fired.items()) or 'none'}",
            "last events (virtual ms, who, what, details):",
            *(line[:200] for line in outcome.last),
        ]
        if again.digest != outcome.digest:
            lines.append(
                "NOT REPRODUCIBLE: the same seed ran differently a second time. The agents depend on something that no seed "
                "decides: the time of day, uuid4, os.urandom, the order of a set, a global that an earlier run changed."
            )
        file = self._keep()
        if _trials():
            if again.digest == outcome.digest:
                file = self._shrink(file) or file
            else:
                self._said.append("not made smaller: it is not reproducible")
        self._draw()
        lines += self._said
        lines += self._commands(file, os.environ.get(REPLAY, ""))
        return "\n".join(lines)

    def _commands(self, file: Path | None, came_from: str) -> list[str]:
        """How to go on, in a shell."""
        lines = []
        verbs = ("replay", "explain") if self._smaller is not None else ("replay", "shrink", "explain")
        if file is not None and self._test:
            lines = [f"{verb + ':':8} cleancut simulate {verb} {shown(file)}" for verb in verbs]
        elif file is not None:
            # Only a test can be found again by its name.
            settings: dict[str, dict[str, str]] = {"shrink": {SHRINK: "1"}, "explain": {EXPLAIN: f"{short(file)}.svg"}}
            lines = [
                f"{verb + ':':8} {again_command('', {**settings.get(verb, {}), REPLAY: short(file)})}"
                for verb in verbs[1:]
            ]
        if self._smaller is None and not came_from:
            seed = {SEED: str(self._what.options.seed)}
            lines.append(f"again, with its trace: {again_command(self._test, seed)}")
        elif file is not None:
            lines.append(f"again, with its trace: {again_command(self._test, {REPLAY: short(file)})}")
        return lines

    def _keep(self) -> Path | None:
        """Store the failure; the file from which it came if there is one."""
        if os.environ.get(REPLAY):
            return Path(os.environ[REPLAY]).absolute()
        try:
            file = store(stored(self._what, self.outcome), test=self._test)
        except OSError as error:
            self._said.append(f"not kept: {error}")
            return None
        self._said.append(f"kept: {shown(file)}")
        return file

    def _shrink(self, file: Path | None) -> Path | None:
        """Make it smaller; the smaller one's file."""
        target = Path(os.environ[OUTPUT]) if os.environ.get(OUTPUT) else file and file.with_suffix(".small.json")

        def smaller(what: Run) -> None:
            if target is not None:
                write(target, what)

        def tell(line: str) -> None:
            print(f"{PROGRESS}{line}", file=sys.stderr, flush=True)  # noqa: T201 - it takes minutes

        shrinker = UserShrinker(self._plan, self._what, self.outcome, tell=tell, trials_max=_trials(), smaller=smaller)
        small = shrinker.shrink()
        self._smaller = small
        smaller(small)
        before, after = self._what, small
        faults = "".join(f"\n  {line}" for line in _faults(after))
        dropped = len(after.user.left_out) if after.user is not None else 0
        self._said.append(
            f"smaller, after {shrinker.trials} runs: {len(before.faults)} faults became {len(after.faults)}, "
            f"{before.options.nodes} participants {after.options.nodes}, "
            f"{before.options.faults_ns / SECOND:.1f} s {after.options.faults_ns / SECOND:.1f} s"
            f"{f', without {dropped} of the start messages' if dropped else ''}{faults}"
        )
        self._said.append(f"there: {shrinker.outcome.invariant} is broken: {shrinker.outcome.text}")
        if target is not None:
            self._said.append(f"kept: {shown(target.absolute())}")
        return target and target.absolute()

    def _draw(self) -> None:
        """The picture that is asked for."""
        path = os.environ.get(EXPLAIN, "")
        if not path:
            return
        from simulations.scene import NothingToShow

        window = json.loads(os.environ.get(WINDOW, "") or "[null, null, null]")
        try:
            svg, said = picture(
                self._plan, self._smaller or self._what, epoch=window[0], begin=window[1], end=window[2]
            )
            Path(path).write_text(svg, encoding="utf-8")
        except (NothingToShow, OSError) as error:
            self._said.append(f"not drawn: {error}")
            return
        self._said += [f"drawn: {shown(Path(path).absolute())}", *said]

    def _tell_command(self, message: str) -> None:
        """To the command that started this test, if one did."""
        path = os.environ.get(RESULT, "")
        if not path:
            return
        document = {
            "outcome": msgspec.to_builtins(self.outcome),
            "said": self._said,
            "message": message,
            "smaller": None if self._smaller is None else msgspec.to_builtins(self._smaller),
        }
        Path(path).write_text(json.dumps(document), encoding="utf-8")


def _trials() -> int:
    """Runs for making a failure smaller; 0: not asked for."""
    text = os.environ.get(SHRINK, "")
    if text in {"", "0"}:
        return 0
    try:
        trials = int(text)
    except ValueError:
        trials = 0
    if not 1 <= trials <= 1_000_000:
        raise ConfigError(SHRINK, f"{text[:80]!r} is neither 1 nor a number of runs")
    return TRIALS_MAX if trials == 1 else trials


def _described(what: Run) -> str:
    from simulations.command import describe_options

    return "\n  ".join([f"{describe_options(what.options)}\nfaults: {len(what.faults)}", *_faults(what)])


def _faults(what: Run) -> list[str]:
    from simulations.command import describe_fault

    return [describe_fault(fault) for fault in what.faults]
