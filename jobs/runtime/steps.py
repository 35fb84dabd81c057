"""The log line of each long step of a command, which the command shows on stderr (`jobs.runtime.command_line`)."""

import logging

STEPS_LOGGER = "jobs.steps"
"""Name of the logger of a command's long steps."""

_steps = logging.getLogger(STEPS_LOGGER)


def log_step(text: str) -> None:
    """Log which long step begins."""
    _steps.info(text)
