"""Prepare an installation: Delta's jars and compiled kernels: `aggregator setup`.

What is there already is left as it is, so it can be repeated, also without the network.
"""

import time
from collections.abc import Sequence

from jobs.runtime.command_line import DONE, FAILED
from jobs.runtime.output import say
from jobs.runtime.parts import PARTS
from schemas.errors import AggregatorError


def set_up(parts: Sequence[str]) -> int:
    """Install the named parts one after another, say how long each took, and return the exit code."""
    code = DONE
    for number, name in enumerate(parts, start=1):
        say(f"{number} of {len(parts)}: {PARTS[name]}")
        began = time.monotonic()
        try:
            text = _install(name)
        except (AggregatorError, OSError) as error:
            say(f"error: {error}", err=True)
            code = FAILED
        else:
            say(f"   {text} ({time.monotonic() - began:.0f} s)")
    return code


def _install(name: str) -> str:
    if name in ("delta", "s3"):
        from jobs.installation.spark_jars import install_jars

        install_jars(name)
        return "in Spark's folder, with the sums that were tested"
    if name == "classes":
        from jobs.installation.java_archive import make_class_archive

        make_class_archive()
        return "made"
    from jobs.installation.kernels import compile_kernels

    return f"{compile_kernels(daemons=name == 'kernels')} functions compiled, the others were there"
