"""Loss scaling, as both frameworks do it.

Gradients in float16 vanish below 6e-8, and a mean over a batch makes them small. So the loss is multiplied by a scale
before they are computed, and they are divided by it after, in float32. A step in which one of them has overflowed is
left out whole, and the scale halves; it doubles when many steps in a row were good (Micikevicius et al. 2017, "Mixed
Precision Training").
"""

INITIAL_SCALE = 2.0**15
GROWTH_STEPS = 2_000
"""Good steps in a row after which the scale doubles."""
