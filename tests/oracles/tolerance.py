"""How far results of float32 may be apart that are the same in mathematics: each CPU and library adds in its own order.

A sum of n terms is off by at most n × 6e-8 of the magnitudes that it adds, and two orders of it by twice that from each
other. What the tests' networks compute are sums of some hundred terms of about 1, some of them behind each other: 1e-4
of a number, and 1e-5 where the terms of a small one cancel. What is wrong is so in the first digits.
"""

ROUNDING = {"rtol": 1e-4, "atol": 1e-5}
SCORE_ROUNDING = 1e-5
"""Of probabilities: a sigmoid passes on at most a fourth of what its logit is off."""
