"""The extensions that come with the package, at the doors of the core: each is imported when it is first used."""

from __future__ import annotations
