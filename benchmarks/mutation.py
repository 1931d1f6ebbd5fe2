"""How many small faults in the numerical code its tests notice, counted with mutmut.

A mutant is the code with one change: another operator, another number, an argument left out. A
sample of each package's mutants, drawn by seed, is run against the tests that go through the
changed function; a mutant is killed when one of them fails or does not end. The score is the share
that is killed. A change that no test could notice, because nothing follows from it, survives too.

What was run stays in `mutants/`: `mutmut show NAME` prints the change of a survivor.
"""

import importlib.util
import os
import random
import shutil
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO

HELP = "the share of small faults in the numerical code that its tests notice (mutmut)"
PACKAGES = ("softmax_stats", "capture", "readout", "analyses")
KILLED = {"killed", "timeout"}
MUTMUT = "from mutmut.__main__ import cli; cli(prog_name='mutmut')"
GENERATE = "from mutmut import __main__ as mutmut; mutmut.copy_src_dir(); mutmut.create_mutants(1)"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

Names = Mapping[str, Sequence[str]]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--sample", type=int, default=90, help="mutants of each package")
    parser.add_argument("--seed", type=int, default=0, help="which mutants are drawn")
    parser.add_argument("--workers", type=int, default=1, help="mutants that are run at once")


def measure(args: Namespace) -> dict[str, object]:
    if importlib.util.find_spec("mutmut") is None:
        raise SystemExit("mutmut is not installed; `pip install mutmut==3.8.1` and run this again")
    shutil.rmtree("mutants", ignore_errors=True)  # one that was interrupted may lack mutants
    _python([GENERATE])
    every = by_package(_statuses())
    drawn = sample(every, args.sample, args.seed)
    names = [name for some in drawn.values() for name in some]
    _python([MUTMUT, "run", "--max-children", str(args.workers), *names])
    return {"seed": args.seed} | scores(every, drawn, _statuses())


def by_package(names: Iterable[str]) -> Names:
    return {each: sorted(name for name in names if package(name) == each) for each in PACKAGES}


def package(name: str) -> str:
    return name.split(".")[1]


def sample(every: Names, size: int, seed: int) -> Names:
    """So many mutants of each package, all of them where there are fewer; the same for a seed."""
    draw = random.Random(seed)
    return {each: sorted(draw.sample(some, min(size, len(some)))) for each, some in every.items()}


def statuses(listed: str) -> dict[str, str]:
    """What became of each mutant, from the lines `name: status` of `mutmut results`."""
    lines = (line.strip().rpartition(": ") for line in listed.splitlines())
    return {name: status for name, _, status in lines if name}


def scores(every: Names, drawn: Names, status: Mapping[str, str]) -> dict[str, object]:
    """Counts and shares of each package; `score` weighs a package by how many mutants it has."""
    alive = [name for some in drawn.values() for name in some if status[name] not in KILLED]
    found: dict[str, object] = {"sample": sum(map(len, drawn.values()))}
    total = 0.0
    for each, some in drawn.items():
        killed = len(some) - sum(package(name) == each for name in alive)
        total += len(every[each]) * killed / len(some)
        found |= {
            f"mutants_{each}": len(every[each]),
            f"sample_{each}": len(some),
            f"killed_{each}": killed,
            f"score_{each}": killed / len(some),
        }
    return found | {
        "score": total / sum(map(len, every.values())),
        "timeouts": sum(status[name] == "timeout" for some in drawn.values() for name in some),
        "survivors": " ".join(alive),
    }


def _statuses() -> dict[str, str]:
    return statuses(_python([MUTMUT, "results", "--all", "true"], subprocess.PIPE))


def _python(code: Sequence[str], out: int | TextIO = sys.stderr) -> str:
    """What mutmut prints, in a process of its own; its progress goes where no result is."""
    run = [sys.executable, "-c", *code]
    done = subprocess.run(run, env=os.environ | ONE_THREAD, stdout=out, encoding="utf-8")
    if done.returncode != 0:
        raise SystemExit("mutmut came to no end; it says why above")
    return done.stdout
