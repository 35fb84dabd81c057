"""Gathers the facts for the checks of `observe.doctor`: opens files, asks servers, changes nothing."""
