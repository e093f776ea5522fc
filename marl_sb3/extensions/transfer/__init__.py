"""Take initial weights from runs and SB3 zips; export policies to SB3 zips and ONNX."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
