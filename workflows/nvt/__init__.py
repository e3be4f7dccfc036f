"""NVTabular 23.8 for Rankline: imported quietly, extended with operators, and saved without executable code."""
