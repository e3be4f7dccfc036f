"""Constants of loss scaling, common to both frameworks.

Gradients below 6e-8 underflow in float16, and the mean over a batch makes them small. Therefore the loss is multiplied
by a scale before the backward pass, and the gradients are divided by it in float32. A step with an overflowing gradient
is skipped and halves the scale; many good steps in a row double it (Micikevicius et al. 2017, "Mixed Precision
Training").
"""

INITIAL_SCALE = 2.0**15
GROWTH_STEPS = 2_000
"""Good steps in a row after which the scale doubles."""
