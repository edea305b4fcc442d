"""Failures as standalone scripts."""

from __future__ import annotations

from fabench.parity.repro.script import script

__all__ = ["script"]
