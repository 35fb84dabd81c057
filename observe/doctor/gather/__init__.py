"""Gathers the facts that the checks of `observe.doctor` judge: opens files, asks servers, changes nothing."""
