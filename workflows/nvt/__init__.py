"""NVTabular 23.8 as Rankline uses it: imported quietly, with operators of ours, saved without running code."""
