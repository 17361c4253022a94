"""TinyTL: biases, the head and small residual branches are trained, kernels stay.

Source: Cai et al., TinyTL: Reduce Memory, Not Parameters for Efficient On-Device Learning, NeurIPS
2020. Its backbones are pre-trained with group normalisation, weight standardisation and the modules
in place, and quantised to 8 bits; here they are what they are, with batch normalisation on stored
statistics, and the modules start at random. It saves memory, not operations.
"""

from __future__ import annotations

from related.tinytl.training import METHODS, tinytl_tensors, with_lite_residuals

__all__ = ["METHODS", "tinytl_tensors", "with_lite_residuals"]
